"""How a cell of the encoder's grid maps back to a box of the original photograph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Geometry:
    width: int
    height: int
    view: Box

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
