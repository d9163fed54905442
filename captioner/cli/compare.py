"""Compare selection rules: the same model and images, each random rule with several seeds.

Prints each metric's mean, and its standard deviation over the seeds where a rule is random.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from captioner.cli.arguments import check_at_least, check_json, check_spares
from captioner.cli.evaluate import add_common_arguments, report, usable_tokenizer

if TYPE_CHECKING:
    from rich.table import Table

    from captioner.evaluation.compare import Comparison, Row

SUMMARY = "score the same model under several selection rules, with seeds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--selections",
        nargs="+",
        default=["soft", "sample", "argmax"],
        metavar="RULE",
        help="selection rules, among them sample:4, top:4, threshold:0.9, mean:5 (soft sample argmax)",
    )
    add("--seeds", type=int, default=5, metavar="N", help="runs of each random rule (%(default)s)")
    add("--beam-size", type=int, default=1, metavar="K", help="1 is greedy (%(default)s)")
    add("--limit", type=int, metavar="N", help="only the first N images of the split (all)")
    add_common_arguments(parser)


def run(args: argparse.Namespace) -> int:
    check_at_least(args, seeds=1, beam_size=1, limit=1, batch_size=1)
    check_json(args.json)
    tokenizer = usable_tokenizer(args.tokenizer)

    import torch

    import captioner
    from captioner.attention.selection import selection_rule
    from captioner.captioner import model_files
    from captioner.data.prepared import Prepared
    from captioner.evaluation.compare import compare
    from captioner.evaluation.generate import split_images

    for name in args.selections:
        selection_rule(name)
    prepared = Prepared.open(args.data)
    images = split_images(prepared, args.split, args.limit)
    check_spares("--json", args.json, [*prepared.files(), *model_files(args.model)])
    model = captioner.load(args.model)
    settings = {
        "model": args.model,
        "data": args.data,
        "split": args.split,
        "images": len(images),
        "beam_size": args.beam_size,
        "batch_size": args.batch_size,
        "tokenizer": tokenizer,
        "trained_with": model.trained_with,
        "device": str(model.device),
        "threads": torch.get_num_threads(),
    }
    comparison = compare(
        model,
        prepared,
        args.split,
        args.selections,
        range(args.seeds),
        args.beam_size,
        args.batch_size,
        args.limit,
        tokenizer,
    )
    title = f"{args.model} on {args.split} ({len(images)} images), beam {args.beam_size}"
    report(args.json, comparison.to_dict() | {"settings": settings}, title, table(comparison))
    return 0


def table(comparison: Comparison) -> Table:
    from rich.table import Table

    grid = Table("metric")
    for row in comparison.rows:
        seeds = f" ({len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
        grid.add_column(f"{row.selection}{seeds}", justify="right")
    for name in comparison.rows[0].runs[0]:
        grid.add_row(name, *(cell(row, name) for row in comparison.rows))
    grid.add_section()
    times = (1000 * row.seconds_per_image for row in comparison.rows)
    grid.add_row("ms per image", *(f"{time:.1f}" for time in times))
    return grid


def cell(row: Row, name: str) -> str:
    """The mean, and the spread where there is more than one run; a dash for a skipped metric."""
    figure = row.metrics.get(name)
    if figure is None:
        return "-"
    return f"{figure.mean:.4f}" + (f" ± {figure.std:.4f}" if len(row.seeds) > 1 else "")
