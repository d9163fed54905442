"""`Regions`: what the encoder says of a batch of photographs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from captioner.geometry import Geometry

if TYPE_CHECKING:
    from PIL import Image


@dataclass
class Regions:
    """Region features ("annotation vectors" a in the paper) of B photographs.

    Attributes:
        features: (B, L, D), L = rows x cols, row-major.
        grid: rows and columns of the encoder's grid.
        geometries: how cells map back to each photograph; empty where only features are known.
        photos: each upright photograph, or its absolute path, to be read again; empty where only features are
            known.
        sources: each photograph's path as it was given; empty where only features are known.
        mask: (B, L) True for the regions that may be looked at; None for all.
        seeds: a number of each photograph's own, for random selection; empty to take it from the features.
    """

    features: Tensor
    grid: tuple[int, int]
    geometries: list[Geometry] = field(default_factory=list)
    photos: list[Image.Image | Path] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)
