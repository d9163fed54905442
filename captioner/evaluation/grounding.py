"""Grounding: is the attention on the thing that the word names?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from captioner.caption import Caption
from captioner.data.captions import CaptionedImage
from captioner.data.images import read
from captioner.data.prepared import Prepared
from captioner.geometry import Box, Geometry

PHRASE = 3  # words: article, adjective, noun


def pointing(
    captions: Mapping[int | str, Caption], images: Iterable[CaptionedImage], prepared: Prepared
) -> float | None:
    """The pointing game (Zhang et al. 2016, arXiv 1608.00507), a share in [0, 1].

    Of the nouns that name a thing whose box is known, how often the centre of the region that was looked at
    lay in the box. A noun's phrase is the noun and up to two words before it ("a red circle"), but no other
    such noun; its region is that of the step whose look counted most, by the gate: the one of largest weight,
    of those that were selected where some were. None where no noun names a boxed thing.
    """
    hits: list[bool] = []
    for image in images:
        if not image.boxes:
            continue
        caption = captions[image.id]
        geometry = caption.geometry or photograph_geometry(prepared, image.file_name)
        begin = 0
        for t, word in enumerate(caption.words):
            boxes = [box["box"] for box in image.boxes if box["word"] == word]
            if boxes:
                cell = geometry.cell_box(region_of(caption, begin, t), caption.grid)
                hits.append(not is_empty(cell) and any(inside(centre_of(cell), box) for box in boxes))
                begin = t + 1
    return sum(hits) / len(hits) if hits else None


def region_of(caption: Caption, begin: int, noun: int) -> int:
    """The region that a noun's phrase was written from; the phrase starts at `begin` or later."""
    start = max(begin, noun - PHRASE + 1)
    t = start + int(caption.gate[start : noun + 1].argmax())
    weights = caption.weights[t].tolist()
    return max(caption.looked_at(t) or range(len(weights)), key=weights.__getitem__)


def photograph_geometry(prepared: Prepared, file_name: str) -> Geometry:
    """Where the encoder's grid lies on a photograph of the data set."""
    width, height = read(prepared.images / file_name).size
    return Geometry(width, height, prepared.preprocess.view(width, height))


def is_empty(box: Box) -> bool:
    """A cell of padding has no part of the photograph."""
    x1, y1, x2, y2 = box
    return x1 >= x2 or y1 >= y2


def centre_of(box: Box) -> tuple[float, float]:
    x1, y1, x2, y2 = box
    return (x1 + x2) / 2, (y1 + y2) / 2


def inside(point: tuple[float, float], box: Box) -> bool:
    (x, y), (x1, y1, x2, y2) = point, box
    return x1 <= x < x2 and y1 <= y < y2
