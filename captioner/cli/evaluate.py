"""Score a model's captions of a split: BLEU-1 to BLEU-4, METEOR, ROUGE-L, CIDEr and SPICE.

The captions are saved before they are scored. Scores are fractions, as pycocoevalcap gives them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from captioner.cli.arguments import check_at_least, check_json, check_spares, check_writable, note
from captioner.errors import UserError, printable

if TYPE_CHECKING:
    from rich.table import Table

    from captioner.evaluation.metrics import Scores

SUMMARY = "score a model's captions of a split: BLEU, METEOR, ROUGE-L, CIDEr, SPICE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--selection", help="soft, sample, argmax, top:4 and others (the model's own)")
    add("--beam-size", type=int, default=3, metavar="K", help="1 is greedy (%(default)s)")
    add(
        "--max-length",
        type=int,
        default=20,
        metavar="WORDS",
        help="the longest caption (%(default)s)",
    )
    add(
        "--length-penalty",
        type=float,
        default=0.7,
        metavar="P",
        help="beams are ranked by log-probability / length ** P (%(default)s)",
    )
    add("--seed", type=int, default=0, help="of random selection rules (%(default)s)")
    add(
        "--captions",
        type=Path,
        metavar="FILE",
        help="where to save the captions (X.captions.json with --json X.json, else captions-SPLIT.json)",
    )
    add_common_arguments(parser)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What `evaluate` and `compare` share."""
    add = parser.add_argument
    add(
        "--model",
        default="flickr8k-hard",
        help="an embedded model's name or a folder (%(default)s)",
    )
    add("--data", required=True, metavar="DIR", help="a folder that `captioner prepare` wrote")
    add("--split", default="test", help="which images (%(default)s)")
    add(
        "--tokenizer",
        choices=("ptb", "python"),
        default="ptb",
        help="ptb is the standard and needs Java; python is close to it (%(default)s)",
    )
    add("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    add("--batch-size", type=int, default=64, metavar="N", help="images at a time (%(default)s)")


def run(args: argparse.Namespace) -> int:
    check_at_least(args, beam_size=1, max_length=1, batch_size=1)
    check_json(args.json)
    if args.captions == Path("-"):
        raise UserError("--captions - is no file, and standard output has the scores: give a file")
    captions_file = args.captions or default_captions_file(args.json, args.split)
    check_writable("--captions", captions_file)
    if args.json is not None and captions_file.resolve() == Path(args.json).resolve():
        raise UserError(f"--captions and --json are both {args.json}: give two files")
    tokenizer = usable_tokenizer(args.tokenizer)

    import captioner
    from captioner.attention.selection import selection_rule
    from captioner.captioner import model_files
    from captioner.data.prepared import Prepared
    from captioner.evaluation.generate import generate, references, save_captions, split_images
    from captioner.evaluation.metrics import score

    if args.selection is not None:
        selection_rule(args.selection)
    prepared = Prepared.open(args.data)
    images = split_images(prepared, args.split)
    inputs = [*prepared.files(), *model_files(args.model)]
    check_spares("--json", args.json, inputs)
    check_spares("--captions", captions_file, inputs)
    model = captioner.load(args.model)
    settings = {
        "model": args.model,
        "data": args.data,
        "split": args.split,
        "images": len(images),
        "selection": args.selection or model.selection,
        "beam_size": args.beam_size,
        "max_length": args.max_length,
        "length_penalty": args.length_penalty,
        "seed": args.seed,
        "tokenizer": tokenizer,
    }
    captions = generate(
        model,
        prepared,
        args.split,
        args.selection,
        args.beam_size,
        args.seed,
        args.batch_size,
        max_length=args.max_length,
        length_penalty=args.length_penalty,
    )
    save_captions(captions, captions_file)
    note(f"{len(captions)} captions are in {captions_file}")

    texts = {image: caption.text for image, caption in captions.items()}
    scores = score(references(images), texts, tokenizer)
    if unfinished := sum(not caption.finished for caption in captions.values()):
        scores.warnings.append(
            f"{unfinished} of {len(captions)} captions were cut off at {args.max_length} words"
        )
    how = f"{settings['selection']}, beam {args.beam_size}"
    title = f"{args.model} on {args.split} ({len(images)} images), {how}"
    report(args.json, scores.to_dict() | {"settings": settings}, title, table(scores))
    return 0


def table(scores: Scores) -> Table:
    from rich.table import Table

    grid = Table("metric")
    grid.add_column("score", justify="right")
    for name, value in scores.metrics.items():
        grid.add_row(name, "-" if value is None else f"{value:.4f}")
    return grid


def report(target: str | None, result: Mapping[str, Any], title: str, shown: Table) -> None:
    """Print the table and what qualifies it; write the JSON where it was asked for."""
    from captioner.cli.console import Console
    from captioner.files import write_json

    if target == "-":
        print(json.dumps(result, indent=2, allow_nan=False))
    elif target is not None:
        write_json(result, Path(target))
    console = Console(stderr=target == "-", markup=False, highlight=False)
    console.print(printable(title), soft_wrap=True)
    console.print(shown)
    for name, why in result["skipped"].items():
        console.print(printable(f"{name} was skipped: {why}"), soft_wrap=True)
    for warning in result["warnings"]:
        console.print(printable(f"warning: {warning}"), soft_wrap=True)


def usable_tokenizer(asked: Literal["ptb", "python"]) -> Literal["ptb", "python"]:
    """The tokenizer that this machine can run; says at once what a missing Java costs."""
    from captioner.evaluation.java import java_missing

    reason = java_missing()
    if reason is None:
        return asked
    instead = ", and the python tokenizer takes the place of ptb" if asked == "ptb" else ""
    note(
        f"{reason}; METEOR and SPICE will be skipped{instead}. "
        "On Debian or Ubuntu: apt-get install default-jre-headless"
    )
    return "python"


def default_captions_file(target: str | None, split: str) -> Path:
    """Beside the JSON result, or in this folder."""
    if target is None or target == "-":
        return Path(f"captions-{split}.json")
    return Path(target).with_suffix(".captions.json")
