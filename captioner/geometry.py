"""How a cell of the encoder's grid maps back to a box of the original photograph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels of the upright original
Grid = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Geometry:
    """Where the encoder's input lies on a photograph. Nothing else computes a cell's box.

    Attributes:
        width, height: of the upright original photograph, in pixels.
        view: the part of it that the input shows; with letterbox padding it reaches outside.
    """

    width: int
    height: int
    view: Box

    def cell_box(self, index: int, grid: Grid) -> Box:
        """The box of a region, row-major, clipped to the photograph; empty where it shows padding.

        Raises:
            IndexError: the grid has no such region.
        """
        rows, columns = grid
        if not 0 <= index < rows * columns:
            raise IndexError(f"region {index} of a grid of {rows} x {columns}")
        row, column = divmod(index, columns)
        x1, y1, x2, y2 = self.view
        xs = (x1 + (x2 - x1) * c / columns for c in (column, column + 1))
        ys = (y1 + (y2 - y1) * r / rows for r in (row, row + 1))
        left, right = (min(max(x, 0.0), float(self.width)) for x in xs)
        top, bottom = (min(max(y, 0.0), float(self.height)) for y in ys)
        return left, top, right, bottom

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {**asdict(self), "view": list(self.view)}
