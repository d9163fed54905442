"""Caption photographs: files, folders, or .txt lists of files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from captioner.cli.arguments import (
    add_on_bad_image,
    check_at_least,
    check_folder,
    check_json,
    check_spares,
    note,
    report_bad,
    show,
)
from captioner.errors import UserError, printable
from captioner.files import replacing

if TYPE_CHECKING:
    from PIL import Image

    from captioner.caption import Caption
    from captioner.captioner import Captioner

SUMMARY = "caption photographs, and draw where the model looked for each word"
FEW = 16  # photographs that need no progress bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("photos", nargs="+", metavar="PHOTO", help="a photograph, a folder, or a .txt list of them")
    add(
        "--model",
        default="flickr8k-hard",
        help="an embedded model's name or a folder (%(default)s)",
    )
    add("--selection", metavar="RULE", help="soft, sample, argmax, top:4 and others (the model's own)")
    add("--beam-size", type=int, default=3, metavar="K", help="1 is greedy (%(default)s)")
    add("--max-length", type=int, default=20, metavar="N", help="the most words (%(default)s)")
    add("--seed", type=int, default=0, help="of random selection rules (%(default)s)")
    add(
        "--overlay",
        type=Path,
        metavar="DIR",
        help="draw the attention for each photograph as a PNG",
    )
    add("--json", metavar="FILE", help="write one JSON line a photograph; - for standard output")
    add_on_bad_image(parser)
    add(
        "--batch-size",
        type=int,
        default=16,
        metavar="N",
        help="photographs at a time (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    check_at_least(args, beam_size=1, max_length=1, batch_size=1)
    check_json(args.json)

    import captioner
    from captioner.attention.selection import selection_rule
    from captioner.captioner import model_files
    from captioner.data.images import find_images

    if args.selection is not None:
        selection_rule(args.selection)
    photos = find_images(args.photos)
    overlays = overlay_paths(photos, args.overlay) if args.overlay else None
    check_spares("--json", args.json, [*photos, *args.photos, *model_files(args.model), *(overlays or [])])
    model = captioner.load(args.model)
    bad: dict[str, str] = {}
    texts: dict[Path, str] = {}
    done, unfinished = 0, 0
    with json_lines(args.json) as lines:
        for i, caption in captions_of(model, photos, args, bad):
            if overlays is not None:
                caption.save_overlay(overlays[i])
            line = json.dumps(caption.to_dict())
            if lines is not None:
                lines.write(line + "\n")
            show(line if args.json == "-" else printable(f"{photos[i]}: {caption.text}"))
            texts[photos[i].resolve()] = caption.text
            done += 1
            unfinished += not caption.finished
        if not texts and args.on_bad_image == "skip":
            raise UserError("not one of the photographs could be read: nothing was captioned")
    if empty := sum(not text for text in texts.values()):
        note(f"{empty} of {done} captions have no words: is {args.model} a trained model?")
    if unfinished:
        note(f"{unfinished} of {done} captions were cut off at {args.max_length} words")
    if len(texts) > 2 and len(set(texts.values())) == 1:
        note(f"all {len(texts)} photographs got the same caption: is {args.model} a trained model?")
    return report_bad(bad, args.on_bad_image, len(photos))


def captions_of(
    model: Captioner, photos: Sequence[Path], args: argparse.Namespace, bad: dict[str, str]
) -> Iterator[tuple[int, Caption]]:
    """Index and caption of each readable photograph as it comes; other's errors go to `bad`."""
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # captions go above the bar, but not into a pipe's
        disable=len(photos) <= FEW or not sys.stderr.isatty(),
    )
    with progress:
        for first in progress.track(range(0, len(photos), args.batch_size), description="captioning"):
            batch = range(first, min(first + args.batch_size, len(photos)))
            pictures = read_photos(photos, batch, args.on_bad_image, bad)
            captions = model.caption(
                list(pictures.values()),
                batch_size=args.batch_size,
                selection=args.selection,
                beam_size=args.beam_size,
                max_length=args.max_length,
                seed=args.seed,
            )
            for i, caption in zip(pictures, captions, strict=True):
                yield i, replace(caption, source=str(photos[i]))


def read_photos(
    photos: Sequence[Path], batch: range, on_bad_image: str, bad: dict[str, str]
) -> dict[int, Image.Image]:
    """The readable photographs of a batch by index; the errors of the others go to `bad`."""
    from captioner.data import images

    pictures = {}
    for i in batch:
        try:
            pictures[i] = images.read(photos[i])
        except UserError as error:
            if on_bad_image == "raise":
                raise
            bad[str(photos[i])] = str(error)
            if on_bad_image == "skip":
                note(f"left out: {error}")
    return pictures


def overlay_paths(photos: Sequence[Path], folder: Path) -> list[Path]:
    """A PNG in the folder for each photograph, named after it; `-2` and so on where names meet.

    Raises:
        UserError: the folder cannot be written, or an overlay would replace a photograph or what is no
            overlay.
    """
    from captioner.visualization.overlay import is_drawn_here

    check_folder("--overlay", folder)
    originals = {photo.resolve() for photo in photos}
    taken: set[str] = set()
    paths = []
    for photo in photos:
        name, number = photo.stem, 1
        while name.casefold() in taken:
            number += 1
            name = f"{photo.stem}-{number}"
        taken.add(name.casefold())
        path = folder / f"{name}.png"
        if path.resolve() in originals:
            raise UserError(f"the overlay {path} would replace a photograph: give --overlay another folder")
        if path.exists() and not (path.is_file() and is_drawn_here(path)):
            raise UserError(
                f"the overlay {path} would replace what captioner has not drawn: move it, or give --overlay "
                "another folder"
            )
        paths.append(path)
    return paths


@contextmanager
def json_lines(target: str | None) -> Iterator[TextIO | None]:
    """The file for JSON lines, if one was asked for; it appears when it is complete."""
    if target is None or target == "-":
        yield None
        return
    with replacing(target) as partial, partial.open("w") as file:
        yield file
