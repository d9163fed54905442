"""Prepare a data set for training: check it, build the vocabulary, encode the photographs.

Give the captions as a COCO or Karpathy JSON file, or `shapes` for synthetic pictures, drawn anew.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.cli.arguments import add_on_bad_image, check_at_least, note, report_bad
from captioner.errors import UserError, printable

if TYPE_CHECKING:
    from captioner.data.captions import CaptionSet
    from captioner.data.images import Preprocess
    from captioner.data.prepared import Prepared
    from captioner.model.encoder import Encoder

Colour = tuple[float, float, float]

SUMMARY = "read and check a data set; write its captions, vocabulary and region features"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a captions file (COCO or Karpathy JSON), or `shapes`")
    add("--images", type=Path, metavar="DIR", help="the folder that file names are relative to")
    add("--out", type=Path, metavar="DIR", required=True, help="the folder to write")
    add("--encoder", metavar="NAME", help="a CNN of torchvision or timm (efficientnet_lite0)")
    add("--weights", metavar="PATH", help="the encoder's state dict (its ImageNet weights)")
    add(
        "--layer",
        help="where to cut the encoder, such as features.35 of vgg19 (its last feature map)",
    )
    add(
        "--stride",
        type=int,
        choices=(8, 16, 32),
        help="pixels of the input per region, for a finer grid by dilation (the network's own)",
    )
    add(
        "--grid",
        type=rows_and_columns,
        metavar="ROWSxCOLS",
        help="a coarser grid, whose regions are means of the network's cells (the network's own)",
    )
    add("--size", type=rows_and_columns, metavar="ROWSxCOLS", help="the encoder's input (224x224)")
    add(
        "--resize",
        choices=("squash", "crop", "pad"),
        default="squash",
        help="how a photograph gets that size (%(default)s)",
    )
    add("--min-count", type=int, default=5, help="rarer words become <unk> (%(default)s)")
    add("--seed", type=int, default=0, help="of the shapes (%(default)s)")
    add("--batch-size", type=int, default=32, help="photographs at a time (%(default)s)")
    add("--workers", type=int, default=1, help="processes that read photographs (%(default)s)")
    add_on_bad_image(parser)


def rows_and_columns(text: str) -> tuple[int, int]:
    """`448x224`, or one number for a square."""
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"give ROWSxCOLS such as 7x7, or one number for a square, not {text!r}"
        )
    return int(match[1]), int(match[2] or match[1])


def run(args: argparse.Namespace) -> int:
    check_at_least(args, min_count=1, batch_size=1, workers=0)
    check_source(args)

    from captioner.data.prepared import prepare, refuse_others

    encoder, preprocess = build_encoder(args)
    encoder.measure(preprocess.size)  # what it cannot encode is refused before an older set is touched
    refuse_others(args.out)
    captions, images = read_source(args)
    splits = captions.splits()
    if absent := [split for split in ("train", "val") if split not in splits]:
        note(
            f"{args.source} has no {' and no '.join(absent)} split, which `captioner fit` needs: "
            f"its splits are {', '.join(splits)}"
        )
    prepared = prepare(
        captions,
        images,
        args.out,
        encoder,
        preprocess,
        min_count=args.min_count,
        batch_size=args.batch_size,
        workers=args.workers,
        on_bad_image=args.on_bad_image,
    )
    print_summary(prepared)
    return report_bad(prepared.features().bad, args.on_bad_image, len(captions.images))


def check_source(args: argparse.Namespace) -> None:
    """Captions come with the folder of their photographs, shapes without."""
    if args.source == "shapes":
        if args.images is not None:
            raise UserError("--images does not go with shapes, which are drawn anew: leave it out")
        return
    if not Path(args.source).exists():
        raise UserError(f"no captions file at {args.source}: check the path, or give `shapes`")
    if args.images is None:
        raise UserError("--images is missing: give the folder that the captions' file names are relative to")


def read_source(args: argparse.Namespace) -> tuple[CaptionSet, Path]:
    """The captions and the folder of the photographs; shapes are drawn into the output folder."""
    if args.source == "shapes":
        from captioner.data.prepared import unprepare
        from captioner.data.shapes import write_shapes

        unprepare(args.out)
        return write_shapes(args.out, seed=args.seed), args.out / "images"
    from captioner.data.captions import read_captions
    from captioner.data.prepared import parts

    if Path(args.source).resolve() in [part.resolve() for part in parts(args.out)]:
        raise UserError(f"{args.source} would be replaced by what is written: choose another --out")
    return read_captions(args.source), args.images


def build_encoder(args: argparse.Namespace) -> tuple[Encoder, Preprocess]:
    """The encoder, and preprocessing with the pixel scale that it was trained with."""
    from captioner.data.images import Preprocess
    from captioner.data.shapes import SIDE
    from captioner.model.encoder import Encoder

    if args.source == "shapes":
        name, size = "patches", (SIDE, SIDE)
    else:
        name, size = "efficientnet_lite0", (224, 224)
    encoder = Encoder(args.encoder or name, args.weights or "default", args.layer, args.stride, args.grid)
    mean, std = pixel_scale(encoder.name)
    return encoder, Preprocess(args.size or size, args.resize, mean, std)


def pixel_scale(encoder: str) -> tuple[Colour, Colour]:
    """Mean and standard deviation of each colour that the encoder's weights expect."""
    import timm
    import torchvision

    from captioner.model.encoder import split_name

    if encoder == "patches":
        return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    library, name = split_name(encoder)
    if library == "torchvision":
        preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    else:
        preset = timm.get_pretrained_cfg(name)
    mean, std = map(tuple, (preset.mean, preset.std))
    return mean, std


def print_summary(prepared: Prepared) -> None:
    """What is in the prepared folder, a split a row, and what was left out of it."""
    from rich.table import Table

    from captioner.cli.console import Console
    from captioner.text.tokenizer import tokenize

    table = Table("split", title=printable(prepared.root), title_justify="left")
    for column in ("images", "captions", "words", "known words"):
        table.add_column(column, justify="right")
    for split in prepared.captions.splits():
        images = prepared.captions.split(split)
        sentences = [tokenize(text) for image in images for text in image.captions]
        table.add_row(
            printable(split),
            str(len(images)),
            str(len(sentences)),
            str(sum(map(len, sentences))),
            f"{prepared.vocabulary.coverage(sentences):.2%}",
        )
    features = prepared.features()
    rows, cols = features.grid
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(table)
    console.print(f"vocabulary  {len(prepared.vocabulary)} words")
    console.print(f"features    {rows} x {cols} regions of {features.size}, {prepared.encoder['name']}")
    for reason, number in prepared.captions.dropped.items():
        console.print(printable(f"left out    {number} {reason}"))
