"""A caption as a picture: the photograph, then one panel a word with where the model looked for it.

Soft attention is drawn as a heat map of the weights. Hard attention is drawn as what the decoder
received: the regions in `selected`, clear and outlined, with the distribution faint beneath.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from captioner.bounds import Bounds
from captioner.caption import Caption
from captioner.data import images
from captioner.errors import UserError, kind_of
from captioner.files import path_of, replacing
from captioner.geometry import Box, Geometry

Floats = NDArray[np.float32]

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
SOFTWARE = ("Software", "captioner")  # the text in a PNG that tells it from other people's

# Lengths in pixels of the strip. Every photograph gets the same area whatever its shape, unless it
# is so long that PANEL_SIDE bounds it; NARROWEST leaves room for a word beneath a very tall one, and
# one that is thinner than THINNEST is drawn thicker than it is, so that something can be seen.
PANEL_AREA, PANEL_SIDE, NARROWEST, THINNEST = 288 * 216, 420, 112, 64
MARGIN, GUTTER, ROW_GAP, TITLE_GAP = 30, 18, 20, 14
GATE_GAP, GATE_HEIGHT, BASELINE, LABEL_HEIGHT = 5, 3, 30, 36
TITLE_SIZE, WORD_SIZE, NOTE_SIZE, SMALLEST_SIZE = 22, 17, 13, 11
WIDEST, PLEASANT_SHAPE = 2200, 1.7

PAPER, INK, GREY, TRACK = "#ffffff", "#1d1d1f", "#76767c", "#e6e6ea"
# From outside in. The cyan is in no muted photograph and not in the palette; the black keeps it
# apart from a bright sky. A small region gets the last line alone, which leaves its neighbours visible.
OUTLINE, SMALL_REGION = ("#000000", "#50e1ff", "#50e1ff"), 12

# How opaque the colour is where a weight is largest: the photograph stays visible beneath.
SOFT_OPACITY, HARD_OPACITY = 0.75, 0.45


def draw_strip(caption: Caption, image: Image.Image | None = None, columns: int | None = None) -> Image.Image:
    """Draw the photograph and a panel for each of the T words, with the caption as the title.

    Beneath a panel stand its word, the word's probability and, as a bar, the gate.

    Args:
        caption: what to draw.
        image: the photograph, at any scale; by default the caption's own.
        columns: panels in a row; by default as many as give the strip a pleasant shape.

    Raises:
        UserError: no photograph, another photograph than the caption's, or fewer than one column.
    """
    if not isinstance(caption, Caption):
        raise UserError(f"draw_strip takes a caption, not {kind_of(caption)}: give one that a model made")
    photo, geometry = _photograph(caption, image)
    layout = Layout.of(caption, geometry, columns)
    photo = photo.resize(layout.panel, Image.Resampling.LANCZOS, reducing_gap=3.0)
    strip = Image.new("RGB", layout.size, PAPER)
    draw = ImageDraw.Draw(strip)
    y = MARGIN
    for text, size in layout.heading:
        y += _line_height(size)
        ink = INK if size == TITLE_SIZE else GREY
        draw.text((MARGIN, y - size // 3), text, ink, _font(size), anchor="ls")
    strip.paste(photo, layout.corner(0))
    for t in range(len(caption.words)):
        corner = layout.corner(t + 1)
        strip.paste(_heated(photo, caption, t, geometry), corner)
        for index in caption.looked_at(t):
            _reveal(strip, corner, photo, geometry.cell_box(index, caption.grid), geometry)
        _label(draw, layout.label(t + 1), caption, t)
    return strip


def save_picture(image: Image.Image, path: str | Path) -> Path:
    """Write the picture in the format of its suffix, whole or not at all; folders are made.

    A file that is there already is replaced. A PNG is marked, see `is_drawn_here`.

    Raises:
        UserError: a suffix of no known format, or a place that cannot be written.
    """
    path = path_of(path, "a picture is written to a path")
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"unknown picture format {path.suffix!r}; {path}; use one of {', '.join(FORMATS)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = PngInfo()
        mark.add_text(*SOFTWARE)
        with replacing(path) as partial:
            image.save(partial, FORMATS[path.suffix.lower()], pnginfo=mark)  # other formats leave it out
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write a picture ({reason}); {path}; choose another place") from error
    return path


def is_drawn_here(path: Path) -> bool:
    """Whether a file is a PNG that `save_picture` wrote, by the mark near its beginning."""
    with path.open("rb") as file:
        return b"tEXt" + "\0".join(SOFTWARE).encode() in file.read(256)


@dataclass(frozen=True)
class Layout:
    """Where everything in a strip is, in its pixels.

    Attributes:
        count: number of panels, T + 1; panel 0 is the photograph alone, panel t + 1 is word t's.
        columns: panels in a row.
        panel: width and height of the photograph in a panel.
        heading: lines of text above the panels, each with its size.
    """

    count: int
    columns: int
    panel: tuple[int, int]
    heading: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, caption: Caption, geometry: Geometry, columns: int | None = None) -> Layout:
        """Lay out the strip of a caption of a photograph of this geometry."""
        if columns is not None:
            Bounds(1, whole=True).check("columns", columns)
        count = len(caption.words) + 1
        panel = _panel_size(geometry.width, geometry.height)
        columns = min(columns, count) if columns else _pleasant_columns(count, panel)
        width = columns * (max(panel[0], NARROWEST) + GUTTER) - GUTTER
        texts = ((_title(caption), TITLE_SIZE), (_note(caption, geometry), NOTE_SIZE))
        heading = tuple((line, size) for text, size in texts for line in _wrap(text, size, width))
        return cls(count, columns, panel, heading)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the strip."""
        rows = math.ceil(self.count / self.columns)
        (across, down), bottom = self._pitch, 0 if self.count > 1 else LABEL_HEIGHT
        return (
            2 * MARGIN + self.columns * across - GUTTER,
            self._top + rows * down - ROW_GAP - bottom + MARGIN,
        )

    def corner(self, index: int) -> tuple[int, int]:
        """Top left corner of the photograph in a panel."""
        left, top, width = self.label(index)
        return left + (width - self.panel[0]) // 2, top - self.panel[1]

    def label(self, index: int) -> tuple[int, int, int]:
        """Left edge, top edge and width of the room for a panel's label."""
        (across, down), (row, column) = self._pitch, divmod(index, self.columns)
        left, top = MARGIN + column * across, self._top + row * down + self.panel[1]
        return left, top, across - GUTTER

    @property
    def _pitch(self) -> tuple[int, int]:
        return (
            max(self.panel[0], NARROWEST) + GUTTER,
            self.panel[1] + LABEL_HEIGHT + ROW_GAP,
        )

    @property
    def _top(self) -> int:
        lines = sum(_line_height(size) for _, size in self.heading)
        return MARGIN + lines + (TITLE_GAP if lines else 0)


def heat_map(weights: Floats, geometry: Geometry, size: tuple[int, int]) -> Floats:
    """One word's weights as a smooth surface over the photograph.

    Args:
        weights: (rows, cols) the attention distribution.
        geometry: which part of the photograph the grid covers.
        size: width and height of the photograph as drawn.

    Returns:
        (height, width): the weight at each pixel, exact at cell centres and cubic between them,
        NaN where the encoder saw nothing.
    """
    x1, y1, x2, y2 = geometry.view
    x = (np.arange(size[0]) + 0.5) * geometry.width / size[0]
    y = (np.arange(size[1]) + 0.5) * geometry.height / size[1]
    across, down = (x - x1) / (x2 - x1), (y - y1) / (y2 - y1)
    rows, cols = weights.shape
    smooth = _cubic(down * rows - 0.5, rows) @ weights @ _cubic(across * cols - 0.5, cols).T
    # A cubic curve dips below and rises above what it joins; weights do neither.
    surface = smooth.clip(0, weights.max()).astype(np.float32)
    surface[(down < 0) | (down > 1), :] = np.nan
    surface[:, (across < 0) | (across > 1)] = np.nan
    return surface


def _cubic(positions: NDArray[np.float64], cells: int) -> Floats:
    """(P, cells) matrix of Catmull-Rom interpolation at P positions, counted in cells."""
    last = cells - 1
    positions = positions.clip(0, last)
    first = np.floor(positions)
    t = positions - first
    taps = (
        (-t + 2 * t**2 - t**3) / 2,
        (2 - 5 * t**2 + 3 * t**3) / 2,
        (t + 4 * t**2 - 3 * t**3) / 2,
        (-(t**2) + t**3) / 2,
    )
    matrix = np.zeros((len(positions), cells), np.float32)
    for offset, tap in enumerate(taps, start=-1):
        # Mirrored at the outer centres, so that the map runs level from there to the edge.
        cell = (last - np.abs(last - np.abs(first + offset))).clip(0, last).astype(int)
        matrix[np.arange(len(positions)), cell] += tap
    return matrix


def _photograph(caption: Caption, image: Image.Image | None) -> tuple[Image.Image, Geometry]:
    photo = caption.image if image is None else images.read(image)
    if photo is None:
        raise UserError(
            f"no photograph to draw on; caption {caption.text!r}; pass it as draw_strip(caption, image)"
        )
    width, height = photo.size
    geometry = caption.geometry or Geometry(width, height, (0.0, 0.0, float(width), float(height)))
    # A copy at another scale is off by rounding only.
    skew = abs(width * geometry.height - height * geometry.width)
    if skew > max(geometry.width, geometry.height):
        raise UserError(
            f"the photograph is {width} x {height}, the captioned one {geometry.width} x "
            f"{geometry.height}; caption {caption.text!r}; pass the photograph that was captioned"
        )
    return photo, geometry


def _heated(photo: Image.Image, caption: Caption, t: int, geometry: Geometry) -> Image.Image:
    """The photograph, muted so that colour means attention, with word t's weights over it."""
    weights = np.array(caption.weights[t].tolist(), np.float32).reshape(caption.grid)
    grey = Image.blend(photo, photo.convert("L").convert("RGB"), 0.75)
    pixels = 16 + 0.7 * np.asarray(grey, np.float32)
    # The largest weight is hottest, but nothing is that is under three times an even share:
    # an even distribution is a flat, calm tint rather than magnified noise.
    hottest = max(float(weights.max()), min(1.0, 3 / weights.size))
    heat = heat_map(weights, geometry, photo.size) / hottest
    unseen = np.isnan(heat)
    level = np.where(unseen, 0, heat).clip(0, 1)
    opacity = SOFT_OPACITY if caption.selected is None else HARD_OPACITY
    alpha = opacity * level[..., None] ** 0.8
    pixels += alpha * (_palette()[(255 * level).round().astype(int)] - pixels)
    pixels[unseen] = 0.4 * pixels[unseen] + 0.6 * 255
    return Image.fromarray(pixels.round().astype(np.uint8))


@cache
def _palette() -> Floats:
    """(256, 3) colours of a perceptually even map that the colour-blind can read."""
    return (255 * matplotlib.colormaps["inferno"](np.arange(256))[:, :3]).astype(np.float32)


def _reveal(
    strip: Image.Image, corner: tuple[int, int], photo: Image.Image, box: Box, geometry: Geometry
) -> None:
    """Show the photograph itself in a box of original pixels; the outline lies around the box."""
    scale = (photo.width / geometry.width, photo.height / geometry.height) * 2
    left, top, right, bottom = (round(edge * s) for edge, s in zip(box, scale, strict=True))
    x, y = corner
    draw = ImageDraw.Draw(strip)
    small = 0 < min(right - left, bottom - top) < SMALL_REGION
    outline = OUTLINE[-1:] if small else OUTLINE
    for distance, colour in zip(range(len(outline), 0, -1), outline, strict=True):
        start = (x + left - distance, y + top - distance)
        draw.rectangle((*start, x + right - 1 + distance, y + bottom - 1 + distance), fill=colour)
    strip.paste(photo.crop((left, top, right, bottom)), (x + left, y + top))


def _label(draw: ImageDraw.ImageDraw, place: tuple[int, int, int], caption: Caption, t: int) -> None:
    left, top, width = place
    y, filled = top + GATE_GAP, round(width * float(caption.gate[t]))
    for length, shade in ((width, TRACK), (filled, GREY)):
        if length > 0:
            draw.rectangle((left, y, left + length - 1, y + GATE_HEIGHT - 1), fill=shade)
    probability = f"{math.exp(float(caption.word_log_probs[t])):.2f}"
    font = _font(NOTE_SIZE)
    draw.text((left + width, top + BASELINE), probability, GREY, font, anchor="rs")
    word, font = _fit(caption.words[t], width - font.getlength(probability) - 8)
    draw.text((left, top + BASELINE), word, INK, font, anchor="ls")


def _title(caption: Caption) -> str:
    return caption.text if caption.finished else f"{caption.text} …"


def _note(caption: Caption, geometry: Geometry) -> str:
    if not caption.words:
        return ""
    rows, cols = caption.grid
    x1, y1, x2, y2 = geometry.view
    whole = x1 <= 0 and y1 <= 0 and x2 >= geometry.width and y2 >= geometry.height
    return (
        f"selection: {caption.selection} · {rows} × {cols} regions · "
        "number: the word's probability · bar: gate"
        + ("" if whole else " · pale: out of the model's view")
        + (" · drawn thicker than it is" if _is_thin(geometry.width, geometry.height) else "")
    )


def _panel_size(width: int, height: int) -> tuple[int, int]:
    scale = min(math.sqrt(PANEL_AREA / (width * height)), PANEL_SIDE / max(width, height))
    return max(THINNEST, round(width * scale)), max(THINNEST, round(height * scale))


def _is_thin(width: int, height: int) -> bool:
    return min(width, height) / max(width, height) < THINNEST / PANEL_SIDE


def _pleasant_columns(count: int, panel: tuple[int, int]) -> int:
    """Near the pleasant shape, with few empty places in the last row, and not too wide."""
    width, height = max(panel[0], NARROWEST), panel[1] + LABEL_HEIGHT

    def unpleasantness(columns: int) -> float:
        rows = math.ceil(count / columns)
        shape, empty = columns * width / (rows * height), rows * columns - count
        return math.log(shape / PLEASANT_SHAPE) ** 2 + 1.5 * empty / columns

    fitting = (WIDEST - 2 * MARGIN + GUTTER) // (width + GUTTER)
    return min(range(1, min(count, fitting) + 1), key=unpleasantness)


def _wrap(text: str, size: int, width: int) -> list[str]:
    """Lines no wider than `width`; a word that is wider by itself is broken."""
    font = _font(size)
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for character in word:
            if lines[-1] and font.getlength(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def _fit(word: str, width: float) -> tuple[str, ImageFont.FreeTypeFont]:
    """The word at the largest size that fits, shortened if even the smallest does not."""
    for size in range(WORD_SIZE, SMALLEST_SIZE - 1, -1):
        font = _font(size)
        if font.getlength(word) <= width:
            return word, font
    while word and font.getlength(f"{word}…") > width:
        word = word[:-1]
    return f"{word}…", font


def _line_height(size: int) -> int:
    return round(1.4 * size)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # By path: matplotlib's font manager takes seconds to index a fresh machine's fonts.
    name = "DejaVuSans-Bold.ttf" if size == TITLE_SIZE else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)
