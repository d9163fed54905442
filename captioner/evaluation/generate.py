"""Free-running captions of a prepared split, from its stored features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.data.captions import CaptionedImage
from captioner.data.features import progress_bar, store_key
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.files import write_json
from captioner.model.regions import Regions


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
    key = store_key(captioner.encoder, captioner.preprocess)
    # A fine-tuned encoder has no stored features: the photographs themselves are encoded.
    fine_tuned = captioner.encoder.weights is None and key != prepared.key
    store = None if fine_tuned else prepared.features(key)
    captions: dict[int | str, Caption] = {}
    title = f"captioning {split}, {selection or captioner.selection}"
    with progress_bar(title, len(images)) as advance:
        for first in range(0, len(images), batch_size):
            batch = images[first : first + batch_size]
            names = [image.file_name for image in batch]
            if store is None:
                regions = captioner.encode([prepared.images / name for name in names])
            else:
                features = store.batch(names).to(captioner.device)
                regions = Regions(features, store.grid, sources=list(names))
            decoded = captioner.decode(regions, selection, beam_size=beam_size, seed=seed, **decoding)
            captions |= {image.id: caption for image, caption in zip(batch, decoded, strict=True)}
            advance(len(batch))
    return captions


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
