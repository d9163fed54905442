"""Batches for training and validation from a prepared data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from captioner.bounds import Bounds, check_all
from captioner.data import images
from captioner.data.captions import CaptionedImage
from captioner.data.prepared import Prepared
from captioner.data.sampling import LengthBuckets
from captioner.errors import UserError
from captioner.text.tokenizer import tokenize
from captioner.text.vocabulary import Vocabulary

BOUNDS = {
    "batch_size": Bounds(1, whole=True),
    "longest": Bounds(1, whole=True),
    "workers": Bounds(0, 1000, whole=True),
}


@dataclass
class Batch:
    """B photographs with up to n captions each, the longest first.

    Attributes:
        ids: the photographs' ids.
        features: (B, L, D) from the feature store, or
        pixels: (B, 3, S, S') where the encoder runs in training.
        words: (B, n, T + 1) start token, words, end token, padding.
        lengths: (B, n) words and end token; 0 where a photograph has fewer captions.
    """

    ids: list[int | str]
    features: Tensor | None
    pixels: Tensor | None
    words: Tensor
    lengths: Tensor


class CaptionDataset(Dataset):
    """Whole batches by lists of indices; a batch with a photograph that cannot be read is its error.

    Raised in a worker process, the error would come here in a traceback's text.
    """

    def __init__(self, prepared: Prepared, split: str, photographs: bool = False, longest: int = 30) -> None:
        self.prepared, self.photographs = prepared, photographs
        self.images: list[CaptionedImage] = prepared.captions.split(split)
        self.encoded = [
            encode_captions(image.captions, prepared.vocabulary, longest) for image in self.images
        ]
        self.store = None if photographs else prepared.features()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, batch: Sequence[int]) -> Batch | UserError:
        try:
            return self.collect(batch)
        except UserError as error:
            return error

    def collect(self, batch: Sequence[int]) -> Batch:
        chosen = [self.images[i] for i in batch]
        names = [image.file_name for image in chosen]
        words, lengths = pad([self.encoded[i] for i in batch])
        return Batch(
            ids=[image.id for image in chosen],
            features=self.store.batch(names) if self.store else None,
            pixels=None if self.store else self.read(names),
            words=words,
            lengths=lengths,
        )

    def read(self, names: Sequence[str]) -> Tensor:
        pixels = [self.prepared.preprocess(images.read(self.prepared.images / name))[0] for name in names]
        return default_collate(pixels)  # in a worker right in shared memory


class CaptionDataModule(L.LightningDataModule):
    """Training and validation batches.

    Args:
        prepared: a folder that `captioner prepare` wrote.
        batch_size: photographs a batch, each with all its captions, so that they share its keys.
        photographs: decode photographs in every epoch instead of reading the feature store, which
            fine-tuning the encoder needs.
        longest: words after which a training caption is cut.
        workers: processes that load batches.
        seed: of the batches' order.
    """

    def __init__(
        self,
        prepared: str,
        batch_size: int = 32,
        photographs: bool = False,
        longest: int = 30,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_all(BOUNDS, {"batch_size": batch_size, "longest": longest, "workers": workers}, "data.")
        self.prepared = Prepared.open(prepared)
        self.batch_size, self.photographs, self.longest = batch_size, photographs, longest
        self.workers, self.seed = workers, seed

    def train_dataloader(self) -> DataLoader:
        dataset = CaptionDataset(self.prepared, "train", self.photographs, self.longest)
        lengths = [max(len(words) for words in captions) for captions in dataset.encoded]
        trainer = self.trainer
        sampler = LengthBuckets(
            lengths,
            self.batch_size,
            self.seed,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )
        return self.loader(dataset, sampler)

    def val_dataloader(self) -> DataLoader:
        dataset = CaptionDataset(self.prepared, "val", self.photographs, self.longest)
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        order = list(range(rank, len(dataset), world_size))
        size = self.batch_size
        return self.loader(dataset, [order[i : i + size] for i in range(0, len(order), size)])

    def loader(self, dataset: CaptionDataset, batches: LengthBuckets | list[list[int]]) -> DataLoader:
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=batches,
            generator=torch.Generator(),  # its draws must not shift the model's, which a resumed run repeats
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.workers > 0,
        )

    def on_before_batch_transfer(self, batch: Batch | UserError, dataloader_idx: int) -> Batch:
        if isinstance(batch, UserError):
            raise batch
        return batch

    def references(self) -> dict[int | str, list[str]]:
        """The validation captions by photograph."""
        return {image.id: list(image.captions) for image in self.prepared.captions.split("val")}


def encode_captions(captions: Sequence[str], vocabulary: Vocabulary, longest: int) -> list[list[int]]:
    """Words and end token of each caption, the longest caption first; one that is cut has no end token."""
    encoded = [[*vocabulary.encode(tokenize(text)), Vocabulary.end][:longest] for text in captions]
    return sorted(encoded, key=len, reverse=True)


def pad(captions: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
    """words (B, n, T + 1) with the start token, and lengths (B, n)."""
    n = max(len(image) for image in captions)
    longest = max(len(words) for image in captions for words in image)
    words = torch.full((len(captions), n, longest + 1), Vocabulary.pad)
    words[..., 0] = Vocabulary.start
    lengths = torch.zeros(len(captions), n, dtype=torch.long)
    for i, image in enumerate(captions):
        for j, indices in enumerate(image):
            words[i, j, 1 : len(indices) + 1] = torch.tensor(indices)
            lengths[i, j] = len(indices)
    return words, lengths


def unpad(words: Tensor, lengths: Tensor) -> list[list[list[int]]]:
    """Each photograph's captions (B, n, T + 1) without start token and padding, those not there left out."""
    return [
        [caption[1 : length + 1] for caption, length in zip(captions, row, strict=True) if length]
        for captions, row in zip(words.tolist(), lengths.tolist(), strict=True)
    ]
