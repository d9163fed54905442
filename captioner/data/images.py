"""Read any picture as a person sees it, and make it the encoder's input."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from captioner.errors import UserError
from captioner.geometry import Box, Geometry

Source: TypeAlias = str | Path | bytes | BinaryIO | Image.Image

SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".avif", ".jp2"),
}
Triple = tuple[float, float, float]


def read(source: Source, max_pixels: int = 100_000_000) -> Image.Image:
    """Read a picture: upright (EXIF), RGB, its first frame, over white where it is transparent.

    Args:
        source: a path, the bytes of a file, an open binary file, or a PIL image.
        max_pixels: larger pictures are refused before they are decoded: memory stays bounded.

    Raises:
        UserError: it cannot be read, or is too large; the message names the file.
    """
    name = describe(source)
    if isinstance(source, Image.Image):
        return upright_rgb(source, name, max_pixels)
    try:
        with warnings.catch_warnings():
            # The size is checked here, once, with our own bound and message.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
                return upright_rgb(picture, name, max_pixels)
    except FileNotFoundError:
        raise UserError(f"no picture at {name}: check the path") from None
    except IsADirectoryError:
        raise UserError(f"{name} is a folder, not a picture") from None
    except Image.DecompressionBombError:
        raise UserError(f"{name} has far more than {max_pixels:,} pixels: make it smaller") from None
    except UnidentifiedImageError:
        raise UserError(
            f"{name} is not a picture in a format that can be read, whatever its name says: "
            "convert it to JPEG or PNG"
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError) as error:
        # Pillow's decoders raise any of these for a damaged file.
        if isinstance(error, UserError):
            raise
        reason = str(error) or type(error).__name__
        raise UserError(f"{name} cannot be read ({reason}): is the file whole?") from None


def describe(source: Source) -> str:
    """What to call a picture in a message."""
    if isinstance(source, str | Path):
        return str(source)
    if isinstance(source, bytes):
        return f"a picture of {len(source)} bytes"
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else "the picture"


def upright_rgb(picture: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = picture.size
    if width * height > max_pixels:
        raise UserError(f"{name} has {width} x {height} pixels, more than {max_pixels:,}: make it smaller")
    if width == 0 or height == 0:
        raise UserError(f"{name} has no pixels")
    picture.load()
    return to_rgb(ImageOps.exif_transpose(picture))


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

    A range of [0, 1], 8 or 16 bits that holds all values is taken for the picture's; any other is
    stretched to its own extremes.
    """
    levels = np.nan_to_num(np.asarray(picture, dtype=np.float64))
    low, high = float(levels.min()), float(levels.max())
    sixteen_bits = picture.mode.startswith("I;16")
    if picture.mode == "F" and low >= 0 and high <= 1:
        top = 1.0
    elif not sixteen_bits and low >= 0 and high <= 255:
        top = 255.0
    elif low >= 0 and high <= 65535:
        top = 65535.0
    else:
        levels, top = levels - low, (high - low) or 1.0
    grey = Image.fromarray((levels * (255.0 / top)).round().astype(np.uint8))
    transparent = picture.info.get("transparency")
    if transparent is not None and not isinstance(transparent, bytes):
        mask = Image.fromarray(np.where(np.asarray(picture) == transparent, 0, 255).astype(np.uint8))
        grey.putalpha(mask)
    return grey


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Pictures in files, folders (with their subfolders, sorted) and lists (.txt, a path a line).

    Paths in a list are relative to the list's own folder.

    Raises:
        UserError: a path that is not there, or no picture in a folder or list.
    """
    found = [image for path in paths for image in images_at(Path(path))]
    if not found:
        raise UserError("no pictures given: name files, folders, or a .txt list of paths")
    return found


def images_at(path: Path) -> Iterator[Path]:
    if path.is_dir():
        inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not inside:
            raise UserError(f"no pictures in the folder {path}: give one with JPEG or PNG files")
        yield from inside
    elif not path.exists():
        raise UserError(f"no picture at {path}: check the path")
    elif path.suffix.lower() == ".txt":
        yield from listed(path)
    else:
        yield path


def listed(path: Path) -> Iterator[Path]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a list of paths in UTF-8: write one path a line") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise UserError(f"the list {path} is empty: write one path a line")
    for name in names:
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
    resize: Literal["squash", "crop", "pad"] = "squash"
    mean: Triple = (0.5, 0.5, 0.5)
    std: Triple = (0.5, 0.5, 0.5)

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
            scale = min(width / columns, height / rows)  # original pixels per input pixel
            x, y = (width - columns * scale) / 2, (height - rows * scale) / 2
            return x, y, x + columns * scale, y + rows * scale
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
        """The view of an image, at the input's size; padding is the encoder's mean colour."""
        rows, columns = self.size
        bicubic = Image.Resampling.BICUBIC
        if image.size == (columns, rows):
            return image
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
            UserError: settings that are not known.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UserError(
                f"unknown preprocessing {', '.join(unknown)}: known are {', '.join(sorted(known))}"
            )
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)
