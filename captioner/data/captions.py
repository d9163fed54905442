"""Captions of photographs: a reader for the known layouts; COCO's is the one that is written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from captioner.errors import UserError
from captioner.files import read_json, write_json

EMPTY = "empty captions"
ORPHANS = "captions of unknown images"
BARE = "images without captions"


@dataclass(frozen=True)
class CaptionedImage:
    """A photograph and its captions.

    Attributes:
        id: unique in its set.
        file_name: relative to the folder of photographs.
        captions: one or more, as people wrote them.
        split: train, val, test or another name.
        boxes: what is where, if that is known: {"word": "circle", "box": [x1, y1, x2, y2]} in
            pixels of the photograph.
    """

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str = "train"
    boxes: tuple[dict[str, Any], ...] = ()


@dataclass
class CaptionSet:
    """Captioned photographs of all splits.

    Attributes:
        images: each with at least one caption.
        dropped: what the reader left out, reason to number.
    """

    images: list[CaptionedImage]
    dropped: dict[str, int] = field(default_factory=dict)

    def splits(self) -> dict[str, int]:
        """Number of photographs in each split; Karpathy's `restval` counts as train."""
        return dict(Counter(merged(image.split) for image in self.images))

    def split(self, name: str) -> list[CaptionedImage]:
        """The photographs of one split; `restval` belongs to train.

        Raises:
            UserError: there is no such split.
        """
        chosen = [image for image in self.images if merged(image.split) == merged(name)]
        if not chosen:
            sizes = ", ".join(f"{split} ({size})" for split, size in self.splits().items())
            meant = [f"did you mean {s!r}, of " for s in self.splits() if s.casefold() == name.casefold()]
            advice = f"{meant[0]}{sizes}?" if meant else f"choose from {sizes or 'none'}"
            raise UserError(f"the captions have no split {name!r}: {advice}")
        return chosen

    def save(self, path: str | Path) -> None:
        """Write COCO's layout as JSON; a file that exists stays whole until the new one is."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for image in self.images:
            entry = {"id": image.id, "file_name": image.file_name, "split": image.split}
            images.append(entry | ({"boxes": list(image.boxes)} if image.boxes else {}))
            for caption in image.captions:
                number = len(annotations) + 1
                annotations.append({"id": number, "image_id": image.id, "caption": caption})
        content = {"images": images, "annotations": annotations, "dropped": self.dropped}
        write_json(content, path, indent=None)


def read_captions(path: str | Path, split: str | None = None) -> CaptionSet:
    """Read captions in COCO's or Karpathy's layout, whichever the file has.

    Empty captions, captions of unknown images and images without captions are left out and counted.

    Args:
        path: a JSON file.
        split: the split of images that name none; otherwise it comes from a file name such as
            `captions_val2017.json` or `COCO_val2014_000000000042.jpg`, or is train.

    Raises:
        UserError: the file cannot be read, or is of another layout, or holds no captions.
    """
    path = Path(path)
    content = content_of(path)
    dropped: Counter[str] = Counter()
    try:
        if is_karpathy(content):
            found = karpathy_images(content)
        elif is_coco(content):
            dropped.update(content.get("dropped", {}))
            found = coco_images(content, dropped)
        else:
            raise UserError(
                f"{path} holds no captions: give a JSON file in COCO's layout (images with id and "
                "file_name, annotations with image_id and caption) or in Karpathy's (images with "
                "sentences)"
            )
        images = list(clean(found, split or split_in(path.name), dropped))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} has an image or a caption with something missing or of a wrong type "
            f"({type(error).__name__}: {error}): mend the file"
        ) from error
    check(images, path)
    return CaptionSet(images, {reason: number for reason, number in dropped.items() if number})


def is_coco(content: Any) -> bool:
    """Images and annotations that are captions (those of an instances file are not)."""
    return "caption" in first(content, "annotations") and "images" in content


def is_karpathy(content: Any) -> bool:
    return "sentences" in first(content, "images")


def first(content: Any, name: str) -> Any:
    """The first entry of a list in the file; empty where there is none."""
    entries = content.get(name) if isinstance(content, dict) else None
    return entries[0] if entries else {}


def wrote(path: Path) -> bool:
    """Whether a file is one that `CaptionSet.save` wrote."""
    try:
        return set(read_json(path)) == {"images", "annotations", "dropped"}
    except (OSError, ValueError, TypeError):
        return False


def coco_images(content: dict[str, Any], dropped: Counter[str]) -> Iterator[CaptionedImage]:
    captions: dict[int | str, list[str]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        if annotation["image_id"] in captions:
            captions[annotation["image_id"]].append(annotation["caption"])
        else:
            dropped[ORPHANS] += 1
    for image in content["images"]:
        yield CaptionedImage(
            id=image["id"],
            file_name=image["file_name"],
            captions=tuple(captions[image["id"]]),
            split=image.get("split") or "",
            boxes=tuple(image.get("boxes", ())),
        )


def karpathy_images(content: dict[str, Any]) -> Iterator[CaptionedImage]:
    """Karpathy's files of COCO give `cocoid` and the folder `filepath`; those of Flickr do not."""
    for image in content["images"]:
        folder = image.get("filepath")
        yield CaptionedImage(
            id=image["cocoid"] if "cocoid" in image else image["imgid"],
            file_name=f"{folder}/{image['filename']}" if folder else image["filename"],
            captions=tuple(sentence["raw"] for sentence in image["sentences"]),
            split=image.get("split") or "",
        )


def clean(
    images: Iterable[CaptionedImage], split: str | None, dropped: Counter[str]
) -> Iterator[CaptionedImage]:
    """Images with captions, each a line, and a split; counts what it leaves out."""
    for image in images:
        if not isinstance(image.file_name, str):
            raise TypeError(f"file name {image.file_name!r} is not text")
        if not isinstance(image.split, str):
            raise TypeError(f"split {image.split!r} of {image.file_name} is not text")
        if not isinstance(image.id, int | str):
            raise TypeError(f"id {image.id!r} of {image.file_name} is neither a whole number nor text")
        for box in image.boxes:
            if not (isinstance(box["word"], str) and len(box["box"]) == 4 and all(map(is_place, box["box"]))):
                raise TypeError(f"box {box!r} of {image.file_name} is not a word and [x1, y1, x2, y2]")
        captions = tuple(text for text in map(one_line, image.captions) if has_words(text))
        dropped[EMPTY] += len(image.captions) - len(captions)
        dropped[BARE] += not captions
        if captions:
            named = image.split or split or split_in(image.file_name) or "train"
            yield replace(image, captions=captions, split=named)


def is_place(number: object) -> bool:
    return isinstance(number, int | float) and abs(number) < 1e9  # pixels


def content_of(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): give a JSON file of captions") from error


def check(images: list[CaptionedImage], path: Path) -> None:
    """Images there are, and their ids tell them apart."""
    if not images:
        raise UserError(f"{path} has no image with a caption: check that image_id and id agree")
    [(image_id, times)] = Counter(image.id for image in images).most_common(1)
    if times > 1:
        raise UserError(f"{path} has {times} images with the id {image_id}: give each its own")


def merged(split: str) -> str:
    return "train" if split == "restval" else split


def split_in(name: str) -> str | None:
    """The split in a name such as `captions_val2017.json`; None where there is none."""
    match = re.search(r"(train|val|test)\d{4}", name)
    return match.group(1) if match else None


def one_line(caption: str) -> str:
    """No line breaks: tools that read a caption a line would take one caption for two."""
    if not isinstance(caption, str):
        raise TypeError(f"caption {caption!r} is not text")
    return " ".join(caption.split())


def has_words(caption: str) -> bool:
    return any(map(str.isalnum, caption))
