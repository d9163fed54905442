"""Read any picture as a person sees it, and make it the encoder's input."""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from captioner.errors import UserError, kind_of, printable
from captioner.geometry import Box, Geometry

Resize: TypeAlias = Literal["squash", "crop", "pad"]
Source: TypeAlias = str | Path | bytes | BinaryIO | Image.Image

SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".avif", ".jp2"),
}
# Pillow decodes these itself. Of the others it hands some to outside programs, such as EPS to Ghostscript.
RASTER = (
    *("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "CUR"),
    *("ICNS", "TGA", "PCX", "DCX", "PSD", "DDS", "SGI", "SUN", "QOI", "XBM", "XPM", "MSP", "FLI", "PCD"),
)
LARGEST_INPUT = 4096  # pixels of a side of the encoder's input
# What Pillow's decoders raise for a damaged file.
DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    MemoryError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
)
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
Triple = tuple[float, float, float]


def read(source: Source, max_pixels: int = 100_000_000) -> Image.Image:
    """Read a picture: upright (EXIF), RGB, its first frame, over white where it is transparent.

    Args:
        source: a path, the bytes of a file, an open binary file, or a PIL image.
        max_pixels: larger pictures are refused before they are decoded: memory stays bounded.
            Pillow's own limit (twice its `MAX_IMAGE_PIXELS`) holds too.

    Raises:
        UserError: it cannot be read, or is too large; the message names the file.
    """
    refuse_others(source)
    name = describe(source)
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that are checked here, and of metadata that nobody looks at.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            if isinstance(source, Image.Image):
                refuse_unloaded(source, name)
                return upright_rgb(source, name, max_pixels)
            refuse_address(source)
            refuse_pipe(source, name)
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            with Image.open(file, formats=raster_formats()) as picture:
                return upright_rgb(picture, name, max_pixels)
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"no picture at {name}: check the path") from None
    except IsADirectoryError:
        raise UserError(f"{name} is a folder, not a picture: name a file in it") from None
    except Image.DecompressionBombError:
        limit = min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))
        raise UserError(f"{name} has more than {limit:,} pixels: make it smaller") from None
    except UnidentifiedImageError:
        if is_empty(source):
            raise UserError(f"{name} is empty: give a file with a picture in it") from None
        raise UserError(
            f"{name} is not a picture in a format that can be read, whatever its name says: "
            "convert it to JPEG or PNG"
        ) from None
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{name} cannot be read ({reason}): is the file whole, and yours to read?") from None


@cache
def raster_formats() -> list[str]:
    """Those of `RASTER` that this Pillow knows."""
    Image.init()
    return [name for name in RASTER if name in Image.OPEN]


def refuse_others(source: object) -> None:
    if not isinstance(source, str | Path | bytes | Image.Image) and not hasattr(source, "read"):
        raise UserError(
            f"a photograph cannot be {kind_of(source)}: give a path, bytes, an open file, a PIL image "
            "(PIL.Image.fromarray makes one of an array), a tensor (3, H, W), or a list of these"
        )


def refuse_address(source: object) -> None:
    """Before a path is made of it, which has one slash less."""
    if isinstance(source, str) and re.match(r"[a-z][a-z0-9+.-]+://", source, re.IGNORECASE):
        raise UserError(
            f"{printable(source)} is an address, which is not downloaded: fetch it and name the file"
        )


def refuse_pipe(source: Source, name: str) -> None:
    """A picture is read back and forth; a pipe that nobody writes to would be waited for without end."""
    if isinstance(source, str | Path) and Path(source).is_fifo():
        raise UserError(f"{name} is a pipe, not a file: save the picture and name its file")


def refuse_unloaded(picture: Image.Image, name: str) -> None:
    """A picture whose pixels an outside program would have to make; one that has them is as good as any."""
    if getattr(picture, "tile", None) and picture.format not in raster_formats():
        raise UserError(f"{name} is {picture.format}, not in a raster format: convert it to JPEG or PNG")


def is_empty(source: Source) -> bool:
    if isinstance(source, str | Path):
        return Path(source).stat().st_size == 0
    return isinstance(source, bytes) and not source


def describe(source: Source) -> str:
    """What to call a picture in a message: printable, in one line."""
    if isinstance(source, bytes):
        return f"a picture of {len(source)} bytes"
    if isinstance(source, str | Path):
        name = str(source)
    else:
        name = str(getattr(source, "filename", None) or getattr(source, "name", None) or "the picture")
    return printable(name)


def upright_rgb(picture: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = picture.size
    if width * height > max_pixels:
        raise UserError(f"{name} has {width} x {height} pixels, more than {max_pixels:,}: make it smaller")
    if width == 0 or height == 0:
        raise UserError(f"{name} has no pixels: give a picture that has some")
    picture.load()
    rgb, turn = to_rgb(picture), TURNS.get(orientation(picture))
    upright = rgb.copy() if turn is None else rgb.transpose(turn)
    upright.info.clear()  # an orientation left there would turn the picture again when it is read again
    return upright


def orientation(picture: Image.Image) -> int:
    """EXIF's orientation, 1 (upright) where there is none."""
    try:
        return picture.getexif().get(ExifTags.Base.Orientation, 1)
    except DAMAGED:  # damaged metadata leaves the pixels as good as they are
        return 1


def to_rgb(picture: Image.Image) -> Image.Image:
    """8-bit RGB from any of Pillow's modes, transparent parts white."""
    if picture.mode.startswith(("I", "F")):
        picture = eight_bits(picture)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        picture = Image.alpha_composite(white, layer)
    return picture.convert("RGB")


def eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit, 32-bit and floating-point greys as 8-bit greys.

    A range of [0, 1] (floats), 8 or 16 bits that holds all values is taken for the picture's; any
    other is stretched to its own extremes. What is not a number is black.
    """
    levels = np.array(picture, dtype=np.float64)
    finite = np.isfinite(levels)
    low = float(levels.min(initial=np.inf, where=finite))
    high = float(levels.max(initial=-np.inf, where=finite))
    # Pillow reads a PGM of 16 bits as 32-bit integers.
    sixteen_bits = picture.mode.startswith("I;16") or (picture.mode, picture.format) == ("I", "PPM")
    if picture.mode == "F" and low >= 0 and high <= 1:
        black, white = 0.0, 1.0
    elif not sixteen_bits and low >= 0 and high <= 255:
        black, white = 0.0, 255.0
    elif low >= 0 and high <= 65535:
        black, white = 0.0, 65535.0
    else:
        black, white = low, max(high, low + 1)
    levels = np.nan_to_num(levels, copy=False, nan=black, posinf=white, neginf=black)
    levels -= black
    levels *= 255 / (white - black)
    grey = Image.fromarray(levels.round(out=levels).astype(np.uint8))
    transparent = picture.info.get("transparency")
    if transparent is not None and not isinstance(transparent, bytes):
        mask = Image.fromarray(np.where(np.asarray(picture) == transparent, 0, 255).astype(np.uint8))
        grey.putalpha(mask)
    return grey


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Pictures in files, folders (with their subfolders, sorted) and lists (.txt, a path a line).

    Paths in a list are relative to the list's own folder; `read` tells which of them are missing.

    Raises:
        UserError: a path that is not there or may not be read, or no picture in a folder or list.
    """
    found: list[Path] = []
    for path in paths:
        refuse_address(path)
        try:
            found += images_at(Path(path))
        except OSError as error:
            where = describe(error.filename or str(path))
            raise UserError(f"{where} cannot be read ({error.strerror}): is it yours to read?") from None
    if not found:
        raise UserError("no pictures given: name files, folders, or a .txt list of paths")
    return found


def images_at(path: Path) -> Iterator[Path]:
    if path.is_dir():
        inside = [p for p in files_under(path) if p.suffix.lower() in SUFFIXES and p.is_file()]
        if not inside:
            raise UserError(f"no pictures in the folder {describe(path)}: give one with photographs")
        yield from sorted(inside)
    elif not path.exists():
        raise UserError(f"no picture at {describe(path)}: check the path")
    elif path.suffix.lower() == ".txt":
        yield from listed(path)
    else:
        yield path


def files_under(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders; unlike `rglob`, an OSError for one that may not be read."""

    def refuse(error: OSError) -> None:
        raise error

    for inner, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(inner, name) for name in names)


def listed(path: Path) -> Iterator[Path]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{describe(path)} is not a list of paths in UTF-8: write one path a line") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise UserError(f"the list {describe(path)} is empty: write one path a line")
    for name in names:
        refuse_address(name)
        yield path.parent / name


@dataclass(frozen=True)
class Preprocess:
    """How a photograph becomes the encoder's input. It travels with the model.

    Attributes:
        size: rows and columns of the input, in pixels.
        resize: `squash` the whole photograph to the size, `crop` its middle, or `pad` (letterbox).
        mean, std: of the pixels that the encoder's weights expect, red, green and blue in [0, 1].
    """

    size: tuple[int, int] = (224, 224)
    resize: Resize = "squash"
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if self.resize not in (known := get_args(Resize)):
            raise UserError(f"unknown resize {self.resize}: known are {', '.join(known)}")
        if min(self.size) < 1 or max(self.size) > LARGEST_INPUT:
            raise UserError(
                f"an input of {self.size[0]} x {self.size[1]} pixels: give from 1 to {LARGEST_INPUT} a side"
            )

    def __call__(self, image: Image.Image) -> tuple[Tensor, Geometry]:
        """Pixels (3, rows, columns) float32 of an upright RGB picture, and where they lie on it."""
        geometry = Geometry(image.width, image.height, self.view(image.width, image.height))
        rgb = np.asarray(self.resample(image, geometry.view), dtype=np.float32) / 255
        normalised = (rgb - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return torch.from_numpy(normalised).permute(2, 0, 1).contiguous(), geometry

    def view(self, width: int, height: int) -> Box:
        """The part of a photograph that the input shows, in its pixels."""
        if self.resize == "squash":
            return 0.0, 0.0, float(width), float(height)
        rows, columns = self.size
        if self.resize == "crop":
            across = min(width, height * columns / rows)
            down = min(height, width * rows / columns)
            x, y = (width - across) / 2, (height - down) / 2
            return x, y, width - x, height - y  # never outside, however it rounds
        (inner_width, inner_height), (left, top) = self.letterbox(width, height)
        across, down = width / inner_width, height / inner_height
        x, y = -left * across, -top * down
        return x, y, x + columns * across, y + rows * down

    def letterbox(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The whole photograph inside the padded input: width and height, left and top."""
        rows, columns = self.size
        scale = max(width / columns, height / rows)
        inner = max(1, round(width / scale)), max(1, round(height / scale))
        return inner, ((columns - inner[0]) // 2, (rows - inner[1]) // 2)

    def resample(self, image: Image.Image, view: Box) -> Image.Image:
        """The view of an image at the input's size; padding is the encoder's mean colour.

        Pillow copies an image that has that size already: its pixels pass through as they are.
        """
        rows, columns = self.size
        bicubic = Image.Resampling.BICUBIC
        if self.resize != "pad":
            return image.resize((columns, rows), bicubic, box=view)
        inner, offset = self.letterbox(*image.size)
        red, green, blue = (round(255 * level) for level in self.mean)
        canvas = Image.new("RGB", (columns, rows), (red, green, blue))
        canvas.paste(image.resize(inner, bicubic), offset)
        return canvas

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocess:
        """What `to_dict` gave.

        Raises:
            UserError: settings or values that are not known.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UserError(
                f"unknown preprocessing {', '.join(unknown)}: known are {', '.join(sorted(known))}"
            )
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)
