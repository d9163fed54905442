"""A prepared data set: checked captions, vocabulary and region features in one folder.

captions.json     COCO layout with a split for each image
vocabulary.json   the words of the training split
prepared.json     where the photographs are, which encoder and preprocessing the features are of, and a
                  hash of the other parts, so that parts of two sets are never taken for one
features/         the feature store
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.data.captions import CaptionSet, read_captions, wrote
from captioner.data.features import INDEX, ROWS, FeatureStore, OnBadImage, write_features
from captioner.data.images import Preprocess
from captioner.errors import UserError
from captioner.files import path_of, read_json, write_json
from captioner.model.encoder import Encoder
from captioner.text.tokenizer import tokenize
from captioner.text.vocabulary import Vocabulary

SETTINGS, CAPTIONS, VOCABULARY, FEATURES = "prepared.json", "captions.json", "vocabulary.json", "features"


@dataclass(frozen=True)
class Prepared:
    """What `captioner prepare` left in a folder.

    Attributes:
        root: the folder.
        captions: all captioned images, with splits.
        vocabulary: the words of the training split.
        encoder: the encoder's arguments, see `Encoder.to_dict`.
        preprocess: how photographs become the encoder's input.
        images: the folder that the photographs' file names are relative to.
        key: what the features depend on, see `store_key`.
    """

    root: Path
    captions: CaptionSet
    vocabulary: Vocabulary
    encoder: dict[str, Any]
    preprocess: Preprocess
    images: Path
    key: dict[str, Any]

    @classmethod
    def open(cls, root: str | Path) -> Prepared:
        """Read a prepared folder.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        root = path_of(root, "a prepared data set is a folder")
        try:
            settings = read_json(root / SETTINGS)
            encoder = dict(settings["encoder"])
            preprocess = Preprocess.from_dict(settings["preprocess"])
            images = (root / settings["images"]).resolve()
            key = dict(settings["features"])
            contents = settings.get("contents")  # an older set has none
        except FileNotFoundError:
            raise UserError(
                f"no prepared data set at {root}: make one with `captioner prepare CAPTIONS "
                f"--images FOLDER --out {root}`"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{root / SETTINGS} cannot be read ({type(error).__name__}: {error}): "
                "run `captioner prepare` again"
            ) from None
        captions = read_captions(root / CAPTIONS)
        vocabulary = Vocabulary.load(root / VOCABULARY)
        if contents is not None and contents != fingerprint(root):
            raise UserError(
                f"captions, vocabulary and features in {root} are not of one run: "
                "run `captioner prepare` again"
            )
        return cls(
            root=root,
            captions=captions,
            vocabulary=vocabulary,
            encoder=encoder,
            preprocess=preprocess,
            images=images,
            key=key,
        )

    def features(self, key: dict[str, Any] | None = None) -> FeatureStore:
        """The feature store, refused unless this key made it, or the one that was prepared."""
        return FeatureStore(self.root / FEATURES, key or self.key)

    def files(self) -> list[Path]:
        """All files of the set, photographs too."""
        store = [self.root / FEATURES / name for name in (INDEX, ROWS)]
        photographs = [self.images / image.file_name for image in self.captions.images]
        return [*parts(self.root), *store, *photographs]


def parts(root: Path) -> list[Path]:
    """The files of a prepared folder beside its features."""
    return [root / name for name in (SETTINGS, CAPTIONS, VOCABULARY)]


def fingerprint(root: Path) -> str:
    """A hash of captions, vocabulary and what the features are of."""
    digest = hashlib.sha256()
    for name in (CAPTIONS, VOCABULARY, f"{FEATURES}/{INDEX}"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


def unprepare(root: Path) -> None:
    """A folder whose parts are about to change cannot be opened: a run that is killed leaves no mixture."""
    (root / SETTINGS).unlink(missing_ok=True)


def refuse_others(root: Path) -> None:
    """Files of a prepared folder's names that no run of this program has left are somebody's own.

    A whole set has its settings. A run that was killed has left captions before a vocabulary, and they can
    be told.

    Raises:
        UserError: there are some.
    """
    if (root / SETTINGS).exists() or wrote(root / CAPTIONS):
        return
    for part in parts(root):
        if part.exists():
            raise UserError(
                f"{part} is not of a prepared data set and would be replaced: choose another --out"
            )


def prepare(
    captions: CaptionSet,
    images: str | Path,
    out: str | Path,
    encoder: Encoder,
    preprocess: Preprocess,
    min_count: int = 5,
    batch_size: int = 32,
    workers: int = 1,
    on_bad_image: OnBadImage = "raise",
) -> Prepared:
    """Build the vocabulary, encode the photographs and write everything to the folder `out`.

    The vocabulary is the training split's; a set without one, for evaluation alone, gives its own.

    Photographs that could not be read are left out of the captions when `on_bad_image` lets them pass.

    Raises:
        UserError: photographs are missing, or one cannot be read, or none.
    """
    images, out = Path(images).resolve(), Path(out)
    check_files(captions, images)
    names = [image.file_name for image in captions.images]
    store = write_features(
        out / FEATURES, encoder, preprocess, images, names, batch_size, workers, on_bad_image
    )
    unprepare(out)
    dropped = dict(captions.dropped)
    if store.bad:
        dropped["images that cannot be read"] = len(store.bad)
    readable = CaptionSet([image for image in captions.images if image.file_name in store], dropped)
    training = readable.split("train") if "train" in readable.splits() else readable.images
    vocabulary = Vocabulary.build(
        (tokenize(text) for image in training for text in image.captions), min_count
    )
    readable.save(out / CAPTIONS)
    vocabulary.save(out / VOCABULARY)
    settings = {
        "images": os.path.relpath(images, out.resolve()),
        "encoder": encoder.to_dict(),
        "preprocess": preprocess.to_dict(),
        "features": store.key,
        "min_count": min_count,
        "contents": fingerprint(out),
    }
    write_json(settings, out / SETTINGS)
    return Prepared.open(out)


def check_files(captions: CaptionSet, images: Path) -> None:
    """Say which photographs are missing before hours of work."""
    if not images.is_dir():
        raise UserError(f"no folder of photographs at {images}: give it with --images")
    missing = [i.file_name for i in captions.images if not (images / i.file_name).is_file()]
    if missing:
        first = ", ".join(missing[:3])
        raise UserError(
            f"{len(missing)} of {len(captions.images)} photographs are missing under {images} "
            f"(first: {first}): check --images and the captions' file names"
        )
