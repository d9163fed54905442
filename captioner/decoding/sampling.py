"""Captions drawn word by word from the model's own distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.attention.selection import SelectionRule
from captioner.model.decoder import Decoder
from captioner.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Draws:
    """n captions of each of B photographs, as the decoder reads them: the longest of a photograph first.

    Attributes:
        words: (B, n, T + 1) start token, words, end token, padding.
        lengths: (B, n), the end tokens included.
        selected: (B, n, T) the region that was selected before each word; None for soft.
    """

    words: Tensor
    lengths: Tensor
    selected: Tensor | None


@torch.no_grad()
def sample_captions(
    decoder: Decoder, features: Tensor, rule: SelectionRule, n: int, max_length: int = 20
) -> Draws:
    """Draw n captions of each photograph.

    Args:
        features: (B, L, D) region features.
        rule: how contexts are selected.
        max_length: the most words; a caption that reaches it has no end token.
    """
    memory = decoder.read(features)
    state = decoder.start(memory, n)
    word = torch.full((len(features), n), Vocabulary.start, device=features.device)
    words, going = [word], torch.ones_like(word, dtype=torch.bool)
    selected: list[Tensor] = []
    lengths = torch.zeros_like(word)
    for _ in range(max_length):
        log_probs, state, step = decoder.step(word, state, memory, rule)
        log_probs[..., Vocabulary.never] = -torch.inf
        drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1).view_as(word)
        word = torch.where(going, drawn, Vocabulary.pad)
        words.append(word)
        if step.selection.selected is not None:
            selected.append(step.selection.selected[..., 0])
        lengths += going
        going = going & (word != Vocabulary.end)
        if not going.any():
            break
    lengths, order = lengths.sort(dim=1, descending=True)

    def sorted_steps(steps: list[Tensor]) -> Tensor:
        return torch.stack(steps, -1).gather(1, order[..., None].expand(-1, -1, len(steps)))

    return Draws(sorted_steps(words), lengths, sorted_steps(selected) if selected else None)
