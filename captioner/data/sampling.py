"""Batches of photographs whose captions are of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

POOL = 20  # batches that are sorted by length together: enough to lose little padding, and to mix


class LengthBuckets(Sampler[list[int]]):
    """Batches (lists of indices) for training, in an order that the seed and the epoch alone decide.

    Items are shuffled, sorted by length within pools of batches, and the batches shuffled. With several
    processes each takes its share of the batches; those that do not divide evenly are left out, as
    all processes must take the same number of steps.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = -(-len(self.lengths) // self.batch_size)
        return batches // self.world_size if self.world_size > 1 else batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        pool = POOL * self.batch_size
        batches: list[list[int]] = []
        for first in range(0, len(order), pool):
            alike = sorted(order[first : first + pool], key=lambda i: self.lengths[i])
            batches += [alike[i : i + self.batch_size] for i in range(0, len(alike), self.batch_size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        for position in shuffled[self.rank : len(self) * self.world_size : self.world_size]:
            yield batches[position]
