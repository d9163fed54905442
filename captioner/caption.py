"""`Caption`, the one result type: the words and, for each word, where the model looked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import UserError
from captioner.files import path_of
from captioner.geometry import Geometry

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Caption:
    """A caption of one photograph: T words, L = rows x cols regions; the end counts in `log_prob` alone.

    Attributes:
        text: the caption as people write it.
        words: the T words.
        log_prob: log p(words, end | selections), the sum over all steps, in nats.
        word_log_probs: (T,) log-probability of each word, in nats.
        selection: name of the selection rule that made it.
        grid: rows and columns of the encoder's grid.
        weights: (T, L) the attention distribution alpha for each word.
        selected: (T, k) indices of the regions whose features each word received, -1 where they are fewer
            than k; None for soft.
        gate: (T,) beta, how much the context counted for each word.
        heads: (T, heads, L) the weights of each head, whose mean `weights` are; None where there is one.
        finished: False when the longest allowed length was reached before the end token.
        geometry: how a region maps back to a box of the photograph, if a photograph was given.
        photo: the upright RGB photograph, or its absolute path, if one was given: see `image`.
        source: the photograph's path as it was given, or None.
    """

    text: str
    words: list[str]
    log_prob: float
    word_log_probs: Tensor
    selection: str
    grid: tuple[int, int]
    weights: Tensor
    selected: Tensor | None
    gate: Tensor
    heads: Tensor | None = None
    finished: bool = True
    geometry: Geometry | None = None
    photo: Image.Image | Path | None = field(default=None, repr=False)
    source: str | None = None

    @property
    def image(self) -> Image.Image | None:
        """The upright RGB photograph, read again where it came as a path: captions of thousands stay small.

        Raises:
            UserError: it is no longer there, or cannot be read any more.
        """
        if not isinstance(self.photo, Path):
            return self.photo
        from captioner.data import images

        try:
            return images.read(self.photo)
        except UserError as error:
            raise UserError(f"the photograph of {self.text!r} cannot be opened again: {error}") from None

    def looked_at(self, t: int) -> list[int]:
        """The regions that were selected for word t, each once; none for soft attention."""
        if self.selected is None:
            return []
        return list(dict.fromkeys(region for region in self.selected[t].tolist() if region >= 0))

    def save_overlay(self, path: str | Path) -> Path:
        """Write a PNG strip: the photograph, then one panel a word with what the model looked at.

        Any other file of that name is replaced. A suffix of JPEG or WebP gives that format instead.

        Raises:
            UserError: there is no photograph, or a place that cannot be written, or is the photograph's.
        """
        from captioner.visualization.overlay import draw_strip, save_picture

        path = path_of(path, "an overlay is written to a path such as dog.png")
        original = self.photo if isinstance(self.photo, Path) else self.source
        if original is not None and path.resolve() == Path(original).resolve():
            raise UserError(f"{path} is the photograph, which would be replaced: give another file")
        return save_picture(draw_strip(self), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, as one JSON line of `captioner caption --json` has them."""
        return {
            "image": self.source,
            "caption": self.text,
            "words": list(self.words),
            "log_prob": self.log_prob,
            "word_log_probs": self.word_log_probs.tolist(),
            "selection": self.selection,
            "grid": list(self.grid),
            "weights": self.weights.tolist(),
            "selected": None
            if self.selected is None
            else [self.looked_at(t) for t in range(len(self.words))],
            "gate": self.gate.tolist(),
            "heads": None if self.heads is None else self.heads.tolist(),
            "finished": self.finished,
            "geometry": None if self.geometry is None else self.geometry.to_dict(),
        }

    def __str__(self) -> str:
        return self.text
