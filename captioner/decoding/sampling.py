"""Captions drawn word by word from the model's own distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.attention.selection import SelectionRule
from captioner.decoding.beam import NEVER
from captioner.model.decoder import Decoder
from captioner.text.vocabulary import Vocabulary


@torch.no_grad()
def sample_captions(
    decoder: Decoder, features: Tensor, rule: SelectionRule, n: int, max_length: int = 20
) -> tuple[Tensor, Tensor]:
    """Draw n captions of each photograph, as the decoder reads them: the longest of a photograph first.

    Args:
        features: (B, L, D) region features.
        rule: how contexts are selected.
        max_length: the most words; a caption that reaches it has no end token.

    Returns:
        words (B, n, T + 1) start token, words, end token, padding, and lengths (B, n), end tokens included.
    """
    memory = decoder.read(features)
    state = decoder.start(memory, n)
    word = torch.full((len(features), n), Vocabulary.start, device=features.device)
    words, going = [word], torch.ones_like(word, dtype=torch.bool)
    lengths = torch.zeros_like(word)
    for _ in range(max_length):
        log_probs, state, _ = decoder.step(word, state, memory, rule)
        log_probs[..., NEVER] = -torch.inf
        drawn = torch.multinomial(log_probs.exp().flatten(0, 1), 1).view_as(word)
        word = torch.where(going, drawn, Vocabulary.pad)
        words.append(word)
        lengths += going
        going = going & (word != Vocabulary.end)
        if not going.any():
            break
    lengths, order = lengths.sort(dim=1, descending=True)
    drawn = torch.stack(words, -1)
    return drawn.gather(1, order[..., None].expand_as(drawn)), lengths
