"""A prepared data set: checked captions, vocabulary and region features in one folder.

captions.json     COCO layout with a split for each image
vocabulary.json   the words of the training split
prepared.json     where the photographs are, and which encoder and preprocessing the features are of
features/         the feature store
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.data.captions import CaptionSet, read_captions
from captioner.data.features import FeatureStore, OnBadImage, write_features
from captioner.data.images import Preprocess
from captioner.errors import UserError
from captioner.files import write_json
from captioner.model.encoder import Encoder
from captioner.text.tokenizer import tokenize
from captioner.text.vocabulary import Vocabulary


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
        root = Path(root)
        try:
            settings = json.loads((root / "prepared.json").read_text())
            encoder = dict(settings["encoder"])
            preprocess = Preprocess.from_dict(settings["preprocess"])
            images = (root / settings["images"]).resolve()
            key = dict(settings["features"])
        except FileNotFoundError:
            raise UserError(
                f"no prepared data set at {root}: make one with `captioner prepare CAPTIONS "
                f"--images FOLDER --out {root}`"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{root / 'prepared.json'} cannot be read ({type(error).__name__}: {error}): "
                "run `captioner prepare` again"
            ) from None
        return cls(
            root=root,
            captions=read_captions(root / "captions.json"),
            vocabulary=Vocabulary.load(root / "vocabulary.json"),
            encoder=encoder,
            preprocess=preprocess,
            images=images,
            key=key,
        )

    def features(self, key: dict[str, Any] | None = None) -> FeatureStore:
        """The feature store, refused unless this key made it, or the one that was prepared."""
        return FeatureStore(self.root / "features", key or self.key)


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
        UserError: photographs are missing, or one cannot be read.
    """
    images, out = Path(images).resolve(), Path(out)
    check_files(captions, images)
    training = captions.split("train") if "train" in captions.splits() else captions.images
    vocabulary = Vocabulary.build(
        (tokenize(text) for image in training for text in image.captions), min_count
    )
    out.mkdir(parents=True, exist_ok=True)
    names = [image.file_name for image in captions.images]
    store = write_features(
        out / "features", encoder, preprocess, images, names, batch_size, workers, on_bad_image
    )
    readable = [image for image in captions.images if image.file_name in store]
    dropped = dict(captions.dropped)
    if store.bad:
        dropped["images that cannot be read"] = len(store.bad)
    CaptionSet(readable, dropped).save(out / "captions.json")
    vocabulary.save(out / "vocabulary.json")
    settings = {
        "images": os.path.relpath(images, out.resolve()),
        "encoder": encoder.to_dict(),
        "preprocess": preprocess.to_dict(),
        "features": store.key,
        "min_count": min_count,
    }
    write_json(settings, out / "prepared.json")
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
