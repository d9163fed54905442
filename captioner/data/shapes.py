"""Shapes: a synthetic data set, drawn in seconds, on which the aim of attention can be measured.

Each picture shows two coloured shapes and two grey ones on a light, noisy ground. The captions
name the coloured ones and their relation, from either side: "red circle is left of blue
square", "blue square to the right of red circle". The two differ in shape and in colour, so
that a noun has one box.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from captioner.data.captions import CaptionedImage, CaptionSet

SIDE, CELL = 112, 16  # pixels of a picture and of a cell of its 7 x 7 grid
SIZES = range(12, 16)  # pixels of a shape: it fills most of a cell, whose middle it always covers
JITTER = 2  # pixels that a thing may be off the middle of its cell
MARGIN, GAP = 1, 4  # pixels to the border and between shapes
CLEAR = 16  # pixels by which the larger displacement exceeds the smaller: the relation is plain
SMOOTH = 4  # shapes are drawn so many times larger and reduced, for smooth edges

COLOURS = {
    "red": (210, 40, 40),
    "green": (45, 150, 65),
    "blue": (40, 85, 205),
    "yellow": (230, 190, 20),
    "purple": (145, 60, 170),
    "black": (35, 35, 40),
}
# Corners on the unit square; the circle has none.
SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    "circle": (),
    "square": ((0, 0), (1, 0), (1, 1), (0, 1)),
    "triangle": ((0.5, 0), (1, 1), (0, 1)),
    "diamond": ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    "cross": (
        *((1 / 3, 0), (2 / 3, 0), (2 / 3, 1 / 3), (1, 1 / 3), (1, 2 / 3), (2 / 3, 2 / 3)),
        *((2 / 3, 1), (1 / 3, 1), (1 / 3, 2 / 3), (0, 2 / 3), (0, 1 / 3), (1 / 3, 1 / 3)),
    ),
}
# How the first, the left or upper one, is to the second, and the second to the first.
BESIDE = (
    ("is left of", "is right of"),
    ("to the left of", "to the right of"),
    ("on the left of", "on the right of"),
)
STACKED = (("is above", "is below"), ("above", "below"), ("sits above", "sits below"))


@dataclass(frozen=True)
class Thing:
    """A coloured shape in a picture; left, top and size in pixels."""

    shape: str
    colour: str
    left: int
    top: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def box(self) -> list[int]:
        """x1, y1, x2, y2 in pixels, the last two exclusive."""
        return [self.left, self.top, self.left + self.size, self.top + self.size]

    def offset(self, other: Thing) -> tuple[float, float]:
        """Pixels to the right and down from this centre to the other's."""
        half = (other.size - self.size) / 2
        return other.left - self.left + half, other.top - self.top + half


def write_shapes(
    root: str | Path, train: int = 2000, val: int = 200, test: int = 200, seed: int = 0
) -> CaptionSet:
    """Write `root/images/*.png` and `root/captions.json`; file names are relative to `root/images`.

    A picture depends on the seed, its split and its number alone: sets of any size begin alike.
    Each image's `boxes` are {"word": "circle", "colour": "red", "box": [x1, y1, x2, y2]} in pixels.
    """
    folder = Path(root) / "images"
    folder.mkdir(parents=True, exist_ok=True)
    images: list[CaptionedImage] = []
    for split, number in (("train", train), ("val", val), ("test", test)):
        for i in range(number):
            random = Random(f"{seed} {split} {i}")
            first, second = place(random)
            file_name = f"{split}_{i:05d}.png"
            draw(first, second, random).save(folder / file_name, compress_level=1)
            images.append(
                CaptionedImage(
                    id=len(images) + 1,
                    file_name=file_name,
                    captions=describe(first, second, random),
                    split=split,
                    boxes=tuple(boxes(first, second)),
                )
            )
    captions = CaptionSet(images)
    captions.save(Path(root) / "captions.json")
    return captions


def place(random: Random) -> tuple[Thing, Thing]:
    """Two things that do not touch, one plainly beside or plainly above the other."""
    shapes = random.sample(list(SHAPES), 2)
    colours = random.sample(list(COLOURS), 2)
    while True:
        first, second = (
            Thing(shape, colour, *corner(size, random), size)
            for shape, colour, size in zip(shapes, colours, random.choices(SIZES, k=2), strict=True)
        )
        dx, dy = map(abs, first.offset(second))
        apart = max(dx, dy) >= (first.size + second.size) / 2 + GAP
        if apart and abs(dx - dy) >= CLEAR:
            return first, second


def corner(size: int, random: Random) -> tuple[int, int]:
    """Left and top of a thing near the middle of a cell."""
    middles = (CELL * random.randrange(SIDE // CELL) + CELL // 2 for _ in range(2))
    left, top = (middle + random.randint(-JITTER, JITTER) - size // 2 for middle in middles)
    last = SIDE - MARGIN - size
    return min(max(left, MARGIN), last), min(max(top, MARGIN), last)


def describe(first: Thing, second: Thing, random: Random) -> tuple[str, ...]:
    """Five captions, at least two in each direction."""
    dx, dy = first.offset(second)
    beside = abs(dx) > abs(dy)
    if (dx if beside else dy) < 0:
        first, second = second, first
    captions = []
    for forwards, backwards in BESIDE if beside else STACKED:
        captions.append(f"{first.name} {forwards} {second.name}")
        captions.append(f"{second.name} {backwards} {first.name}")
    return tuple(random.sample(captions, 5))


def boxes(*things: Thing) -> list[dict[str, Any]]:
    return [{"word": thing.shape, "colour": thing.colour, "box": thing.box} for thing in things]


def draw(first: Thing, second: Thing, random: Random) -> Image.Image:
    """The picture of two things, RGB, `SIDE` pixels square."""
    tint = np.array([random.randint(220, 248) for _ in range(3)], np.int16)
    noise = np.frombuffer(random.randbytes(SIDE * SIDE), np.uint8).reshape(SIDE, SIDE, 1) % 7
    picture = Image.fromarray((tint + noise - 3).astype(np.uint8))
    for thing in distractors(first, second, random):
        picture.paste(
            (random.randint(130, 160),) * 3, (thing.left, thing.top), outline(thing.shape, thing.size)
        )
    for thing in (first, second):
        colour = tuple(max(0, c + random.randint(-15, 15)) for c in COLOURS[thing.colour])
        picture.paste(colour, (thing.left, thing.top), outline(thing.shape, thing.size))
    return picture


def distractors(first: Thing, second: Thing, random: Random) -> list[Thing]:
    """Two grey shapes that touch nothing: without them what is not seen could be told from the whole."""
    chosen: list[Thing] = []
    while len(chosen) < 2:
        size = random.choice(SIZES)
        thing = Thing(random.choice(list(SHAPES)), "grey", *corner(size, random), size)
        others = (first, second, *chosen)
        if all(max(map(abs, thing.offset(t))) >= (size + t.size) / 2 + MARGIN for t in others):
            chosen.append(thing)
    return chosen


def outline(shape: str, size: int) -> Image.Image:
    """Mask of a shape that touches all four sides of a square of `size` pixels."""
    large = size * SMOOTH
    mask = Image.new("L", (large, large))
    canvas = ImageDraw.Draw(mask)
    if shape == "circle":
        canvas.ellipse((0, 0, large - 1, large - 1), fill=255)
    else:
        canvas.polygon([(x * (large - 1), y * (large - 1)) for x, y in SHAPES[shape]], fill=255)
    return mask.reduce(SMOOTH)
