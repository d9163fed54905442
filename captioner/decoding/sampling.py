"""Captions drawn word by word from the model's own distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.attention.selection import SelectionRule
from captioner.model.decoder import Decoder, Memory
from captioner.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Draws:
    """n captions of each of B photographs, as the decoder reads them: the longest of a photograph first.

    Attributes:
        words: (B, n, T + 1) start token, words, end token, padding.
        lengths: (B, n), the end tokens included.
        u: (B, n, T, draws) the selection rule's uniform draws, with which the captions are read again; None
            for a rule without.
    """

    words: Tensor
    lengths: Tensor
    u: Tensor | None


@torch.no_grad()
def sample_captions(
    decoder: Decoder, memory: Memory, rule: SelectionRule, n: int, max_length: int = 20
) -> Draws:
    """Draw n captions of each photograph.

    Args:
        memory: of B photographs.
        rule: how contexts are selected.
        max_length: the most words; a caption that reaches it has no end token.
    """
    state = decoder.start(memory, n)
    word = torch.full((len(memory), n), Vocabulary.start, device=state.h.device)
    words, going = [word], torch.ones_like(word, dtype=torch.bool)
    chances: list[Tensor] = []
    lengths = torch.zeros_like(word)
    for _ in range(max_length):
        u = None
        if rule.draws:
            u = torch.rand(*word.shape, decoder.scoring.heads * rule.draws, device=word.device)
            chances.append(u)
        log_probs, state, _ = decoder.step(word, state, memory, rule, u)
        log_probs[..., Vocabulary.never] = -torch.inf
        drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1).view_as(word)
        word = torch.where(going, drawn, Vocabulary.pad)
        words.append(word)
        lengths += going
        going = going & (word != Vocabulary.end)
        if not going.any():
            break
    lengths, order = lengths.sort(dim=1, descending=True)

    def in_order(steps: list[Tensor]) -> Tensor:
        """(B, n, ...) of each step to (B, n, T, ...), the captions in their order."""
        stacked = torch.stack(steps, 2)
        return stacked[torch.arange(len(order), device=order.device)[:, None], order]

    return Draws(in_order(words), lengths, in_order(chances) if chances else None)
