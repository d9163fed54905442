"""Free-running captions of a prepared split, from its stored features."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.bounds import Bounds
from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.data.captions import CaptionedImage
from captioner.data.features import FeatureStore, progress_bar, store_key
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.files import write_json
from captioner.model.regions import Regions


@dataclass(frozen=True)
class RegionSource:
    """The regions of a prepared set's photographs, by file name.

    Attributes:
        captioner: whose encoder it is.
        prepared: the data set.
        store: its features; None for a fine-tuned encoder, which has to encode the photographs themselves.
    """

    captioner: Captioner
    prepared: Prepared
    store: FeatureStore | None

    @classmethod
    def open(cls, captioner: Captioner, prepared: Prepared) -> RegionSource:
        """Raises UserError where the stored features are another encoder's."""
        key = store_key(captioner.encoder, captioner.preprocess)
        fine_tuned = captioner.encoder.weights is None and key != prepared.key
        return cls(captioner, prepared, None if fine_tuned else prepared.features(key))

    def __getitem__(self, names: Sequence[str]) -> Regions:
        if self.store is None:
            return self.captioner.encode([self.prepared.images / name for name in names])
        features = self.store.batch(names).to(self.captioner.device)
        return Regions(features, self.store.grid, sources=list(names))


@dataclass(frozen=True)
class Generated:
    """Captions by image id, and the seconds that decoding them took, without reading their regions."""

    captions: dict[int | str, Caption]
    seconds: float


def generate(
    captioner: Captioner,
    prepared: Prepared,
    split: str = "test",
    selection: str | None = None,
    beam_size: int = 3,
    seed: int = 0,
    batch_size: int = 64,
    limit: int | None = None,
    **decoding: Any,
) -> dict[int | str, Caption]:
    """Caption every image of a split, or its first `limit`, by the image's id.

    Args:
        batch_size: images at a time; it does not change their captions.
        decoding: more settings of `Captioner.decode`.

    Raises:
        UserError: no such split, features that another encoder made, an unknown selection rule.
    """
    images = split_images(prepared, split, limit)
    source = RegionSource.open(captioner, prepared)
    settings = {"selection": selection, "beam_size": beam_size, "seed": seed} | decoding
    return caption_images(source, images, batch_size, **settings).captions


def caption_images(
    source: RegionSource, images: Sequence[CaptionedImage], batch_size: int = 64, **decoding: Any
) -> Generated:
    """Caption images, with settings of `Captioner.decode`."""
    Bounds(1, whole=True).check("batch_size", batch_size)
    captions: dict[int | str, Caption] = {}
    seconds = 0.0
    title = f"captioning, {decoding.get('selection') or source.captioner.selection}"
    with progress_bar(title, len(images)) as advance:
        for first in range(0, len(images), batch_size):
            batch = images[first : first + batch_size]
            regions = source[[image.file_name for image in batch]]
            started = time.perf_counter()
            decoded = source.captioner.decode(regions, **decoding)
            seconds += time.perf_counter() - started
            captions |= {image.id: caption for image, caption in zip(batch, decoded, strict=True)}
            advance(len(batch))
    return Generated(captions, seconds)


def split_images(prepared: Prepared, split: str, limit: int | None = None) -> list[CaptionedImage]:
    """The images of a split, or its first `limit`."""
    if limit is not None and limit < 1:
        raise UserError(f"the number of images must be at least 1, not {limit}")
    return prepared.captions.split(split)[:limit]


def references(images: Iterable[CaptionedImage]) -> dict[int | str, tuple[str, ...]]:
    """What people wrote of each image, by its id."""
    return {image.id: image.captions for image in images}


def save_captions(captions: Mapping[int | str, Caption], path: Path) -> None:
    """Write captions by image id in COCO's results layout, which other programs score too."""
    write_json([{"image_id": image, "caption": c.text} for image, c in captions.items()], path)
