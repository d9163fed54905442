"""Selection rules: how the decoder's context comes from the attention scores.

A rule is a callable `rule(scores, values, u=None) -> Selection` over n queries an image; it is known by its
name in configurations, on the command line and in results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from captioner.errors import UserError


@dataclass(frozen=True)
class Selection:
    """What a rule made of the scores.

    Attributes:
        context: z-hat (B, n, D), what the decoder receives.
        weights: alpha (B, n, L), the softmax of the scores.
        selected: (B, n, k) the indices of the chosen regions; None for soft.
        log_prob: (B, n) log-probability of a random choice, differentiable; None where nothing is random.
    """

    context: Tensor
    weights: Tensor
    selected: Tensor | None = None
    log_prob: Tensor | None = None


class SelectionRule(Protocol):
    """scores (B, n, L), values (B, L, D) and, for random rules, uniform draws u (B, n) -> Selection."""

    @property
    def name(self) -> str: ...

    @property
    def stochastic(self) -> bool: ...

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection: ...


@dataclass(frozen=True)
class Soft:
    """Deterministic soft attention: the expected region, sum_i alpha_i a_i (eq. 8 of the paper)."""

    name: ClassVar[str] = "soft"
    stochastic: ClassVar[bool] = False

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        weights = scores.softmax(-1)
        return Selection(weights @ values, weights)


@dataclass(frozen=True)
class Sample:
    """Stochastic hard attention: one region drawn from the weights (eqs. 5 and 6 of the paper).

    By inverse transform: a uniform u picks the first region whose cumulative weight exceeds it.
    """

    name: ClassVar[str] = "sample"
    stochastic: ClassVar[bool] = True

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        log_weights = scores.log_softmax(-1)
        weights = log_weights.exp()
        if u is None:
            u = torch.rand(scores.shape[:-1], device=scores.device)
        return chosen(log_weights, weights, values, inverse_transform(weights.detach(), u))


@dataclass(frozen=True)
class Argmax:
    """The region of largest weight; the first of equals."""

    name: ClassVar[str] = "argmax"
    stochastic: ClassVar[bool] = False

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        selected = scores.argmax(-1)
        return Selection(gather(values, selected), scores.softmax(-1), selected[..., None])


RULES: dict[str, Callable[[], SelectionRule]] = {"soft": Soft, "sample": Sample, "argmax": Argmax}


def selection_rule(name: str) -> SelectionRule:
    """The rule of that name.

    Raises:
        UserError: no such rule.
    """
    if name not in RULES:
        raise UserError(f"unknown selection rule {name!r}: choose one of {', '.join(RULES)}")
    return RULES[name]()


def chosen(log_weights: Tensor, weights: Tensor, values: Tensor, selected: Tensor) -> Selection:
    """The selection of the regions `selected` (B, n), as if drawn from the weights (B, n, L)."""
    log_prob = log_weights.gather(-1, selected[..., None]).squeeze(-1)
    return Selection(gather(values, selected), weights, selected[..., None], log_prob)


def inverse_transform(weights: Tensor, u: Tensor) -> Tensor:
    """Indices (...) of the first of the weights (..., L) whose cumulative sum exceeds u (...) in [0, 1)."""
    cumulative = weights.cumsum(-1)
    threshold = u[..., None] * cumulative[..., -1:]  # rounding may leave the sum a little off one
    return (cumulative <= threshold).sum(-1).clamp(max=weights.shape[-1] - 1)


def gather(values: Tensor, selected: Tensor) -> Tensor:
    """Rows (B, n, D) of values (B, L, D) at the indices selected (B, n)."""
    return values.gather(1, selected[..., None].expand(-1, -1, values.shape[-1]))


def entropy(scores: Tensor) -> Tensor:
    """Entropy (...) in nats of the softmax of scores (..., L), exact where weights underflow."""
    log_weights = scores.log_softmax(-1)
    return -(log_weights.exp() * log_weights.clamp(min=torch.finfo(scores.dtype).min)).sum(-1)
