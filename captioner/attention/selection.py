"""Selection rules: how the decoder's context comes from the attention scores.

A rule is a callable `rule(scores, values, u=None) -> Selection` over n queries an image; it is known by its
name in configurations, on the command line and in results. A score of -inf masks a region: its weight is zero
and no rule selects it. At least one region of each query must be left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from captioner.bounds import Bounds
from captioner.errors import UserError

NONE = -1  # in the place of a region where fewer were selected


@dataclass(frozen=True)
class Selection:
    """What a rule made of the scores.

    Attributes:
        context: z-hat (B, n, D), what the decoder receives.
        weights: alpha (B, n, L), the softmax of the scores.
        selected: (B, n, k) the indices of the chosen regions, NONE where they are fewer; None for soft.
        log_prob: (B, n) log-probability of a random choice, differentiable; None where nothing is random.
    """

    context: Tensor
    weights: Tensor
    selected: Tensor | None = None
    log_prob: Tensor | None = None


class SelectionRule(Protocol):
    """scores (B, n, L), values (B, L, D) and, for random rules, uniform draws u -> Selection.

    Attributes:
        name: as in configurations, on the command line and in results.
        draws: numbers drawn for each query, 0 where nothing is random; u is (B, n, draws), in [0, 1).
        particles: how many selections of a word run on separately, their word distributions averaged.
    """

    @property
    def name(self) -> str: ...

    @property
    def draws(self) -> int: ...

    @property
    def particles(self) -> int: ...

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection: ...


class Rule:
    """What most rules have in common: nothing is random, and a word has one selection."""

    @property
    def draws(self) -> int:
        return 0

    @property
    def particles(self) -> int:
        return 1

    def uniform(self, scores: Tensor, u: Tensor | None) -> Tensor:
        """The caller's draws, or new ones, (B, n, draws) for scores (B, n, L)."""
        return torch.rand(*scores.shape[:-1], self.draws, device=scores.device) if u is None else u


@dataclass(frozen=True)
class Soft(Rule):
    """Deterministic soft attention: the expected region, sum_i alpha_i a_i (eq. 8 of the paper)."""

    name: ClassVar[str] = "soft"

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        weights = scores.softmax(-1)
        return Selection(weights @ values, weights)


@dataclass(frozen=True)
class Sample(Rule):
    """Stochastic hard attention: one region drawn from the weights (eqs. 5 and 6 of the paper).

    By inverse transform: a uniform u picks the first region whose cumulative weight exceeds it.
    """

    name: ClassVar[str] = "sample"

    @property
    def draws(self) -> int:
        return 1

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        log_weights = scores.log_softmax(-1)
        weights = log_weights.exp()
        drawn = inverse_transform(weights.detach(), self.uniform(scores, u)[..., 0])
        return chosen(log_weights, weights, values, drawn)


@dataclass(frozen=True)
class Argmax(Rule):
    """The region of largest weight; of equals the `left` (first), the `right` (last) or a `random` one.

    Leftmost and rightmost unique hard attention differ in what they can compute (Jerad et al. 2025, arXiv
    2503.14615), so the tie rule is part of the name.
    """

    ties: Literal["left", "right", "random"] = "left"

    @property
    def name(self) -> str:
        return "argmax" if self.ties == "left" else f"argmax:{self.ties}"

    @property
    def draws(self) -> int:
        return 1 if self.ties == "random" else 0

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        if self.ties == "left":
            selected = scores.argmax(-1)
        elif self.ties == "right":
            selected = scores.shape[-1] - 1 - scores.flip(-1).argmax(-1)
        else:
            largest = (scores == scores.amax(-1, keepdim=True)).to(values.dtype)
            selected = inverse_transform(largest, self.uniform(scores, u)[..., 0])
        return Selection(gather(values, selected), scores.softmax(-1), selected[..., None])


@dataclass(frozen=True)
class Counted(Rule):
    """A rule with a number k, of regions or of particles, named `kind:k`."""

    kind: ClassVar[str]
    k: int

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.k}"


@dataclass(frozen=True)
class Top(Counted):
    """Soft attention over the k likeliest regions, of equals the first, with their weights renormalised."""

    kind: ClassVar[str] = "top"

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        check_enough(self.k, scores)
        return within(scores, values, ranked(scores)[..., : self.k])


@dataclass(frozen=True)
class SampleSet(Counted):
    """Soft attention over k regions drawn one after the other without replacement (Indurthi et al. 2019,
    "Look Harder", ACL): each from the weights of those that are left."""

    kind: ClassVar[str] = "sample"

    @property
    def draws(self) -> int:
        return self.k

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        check_enough(self.k, scores)
        left, log_prob, drawn = scores, torch.zeros_like(scores[..., 0]), []
        for one in self.uniform(scores, u).unbind(-1):
            none_left = left.isneginf().all(-1, keepdim=True)
            log_weights = left.masked_fill(none_left, 0.0).log_softmax(-1)
            region = inverse_transform(log_weights.detach().exp(), one)[..., None]
            gained = log_weights.gather(-1, region).masked_fill(none_left, 0.0)
            log_prob = log_prob + gained.squeeze(-1)
            left = left.scatter(-1, region, -torch.inf)
            drawn.append(region.masked_fill(none_left, NONE))
        return replace(within(scores, values, torch.cat(drawn, -1)), log_prob=log_prob)


@dataclass(frozen=True)
class HardSoft(Counted):
    """Coarse to fine: k hard draws from the weights, each as the paper's, then soft attention over the drawn.

    A region that is drawn twice counts once.
    """

    kind: ClassVar[str] = "hard-soft"

    @property
    def draws(self) -> int:
        return self.k

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        check_enough(self.k, scores)
        log_weights = scores.log_softmax(-1)
        weights = log_weights.detach().exp()
        drawn = inverse_transform(weights[..., None, :], self.uniform(scores, u))
        log_prob = log_weights.gather(-1, drawn).sum(-1)
        return replace(within(scores, values, once(drawn)), log_prob=log_prob)


@dataclass(frozen=True)
class Threshold(Rule):
    """Soft attention over the smallest set of regions whose weights together reach p."""

    p: float

    @property
    def name(self) -> str:
        return f"threshold:{self.p}"

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        order = ranked(scores)
        weights = scores.detach().softmax(-1).gather(-1, order)
        before = weights.cumsum(-1) - weights
        unneeded = ((before >= self.p) | (weights == 0)).index_fill(-1, order.new_zeros(1), False)
        return within(scores, values, order.masked_fill(unneeded, NONE))


@dataclass(frozen=True)
class Mean(Counted):
    """k particles, each with its own draws and so its own state; their word distributions are averaged.

    That is not what soft attention does, as the decoder is not linear in the context.
    """

    kind: ClassVar[str] = "mean"

    @property
    def draws(self) -> int:
        return 1

    @property
    def particles(self) -> int:
        return self.k

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        """One particle a query."""
        return Sample()(scores, values, u)


COUNT, SHARE = Bounds(1, 100, whole=True), Bounds(0, 1, above=True)
COUNTED: dict[str, Callable[[int], SelectionRule]] = {
    rule.kind: rule for rule in (Top, SampleSet, HardSoft, Mean)
}
FIXED: dict[str, SelectionRule] = {
    rule.name: rule for rule in (Soft(), Sample(), Argmax(), Argmax("right"), Argmax("random"))
}
NAMES = (*FIXED, *(f"{kind}:K" for kind in COUNTED), "threshold:P")


def by_head(rule: SelectionRule, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
    """Each head's own selection: scores (B, n, heads, L), values (B, heads, L, D), u (B, n, heads x draws).

    The contexts are joined to (B, n, heads x D), the weights are the heads' mean, `selected` has all that the
    heads selected, and a choice of all heads is as likely as the product of theirs.
    """
    batch, _, heads, _ = scores.shape
    if u is not None:
        u = u.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
    found = rule(scores.transpose(1, 2).flatten(0, 1), values.flatten(0, 1), u)
    if heads == 1:
        return found

    def apart(tensor: Tensor) -> Tensor:
        """(B x heads, n, ...) to (B, n, heads, ...)."""
        return tensor.unflatten(0, (batch, heads)).transpose(1, 2)

    return Selection(
        apart(found.context).flatten(2),
        apart(found.weights).mean(2),
        None if found.selected is None else apart(found.selected).flatten(2),
        None if found.log_prob is None else apart(found.log_prob).sum(2),
    )


def selection_rule(name: str) -> SelectionRule:
    """The rule of that name, such as `soft`, `argmax:right`, `top:4` or `threshold:0.9`.

    Raises:
        UserError: no such rule, or a number out of its bounds.
    """
    kind, _, number = name.partition(":")
    if name in FIXED:
        return FIXED[name]
    if kind in COUNTED and re.fullmatch(r"-?\d{1,9}", number):
        COUNT.check(f"K in the selection rule {name!r}", int(number))
        return COUNTED[kind](int(number))
    if kind == "threshold" and re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", number):
        SHARE.check(f"P in the selection rule {name!r}", float(number))
        return Threshold(float(number))
    raise UserError(f"unknown selection rule {name!r}: choose one of {', '.join(NAMES)}")


def check_enough(k: int, scores: Tensor) -> None:
    if k > scores.shape[-1]:
        raise UserError(
            f"{k} regions cannot be selected of {scores.shape[-1]}: choose 1 to {scores.shape[-1]}"
        )


def ranked(scores: Tensor) -> Tensor:
    """Indices (..., L) of the regions, the largest score (..., L) first, the first of equals first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def within(scores: Tensor, values: Tensor, selected: Tensor) -> Selection:
    """Soft attention over the regions `selected` (B, n, k) alone, of which some may be NONE or masked."""
    masked = scores.gather(-1, selected.clamp(min=0)).isneginf()
    selected = selected.masked_fill(masked, NONE)
    # A place more takes the NONEs.
    kept = scores.new_zeros(*scores.shape[:-1], scores.shape[-1] + 1, dtype=torch.bool)
    kept = kept.scatter(-1, selected.masked_fill(selected == NONE, scores.shape[-1]), True)[..., :-1]
    renormalised = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    return Selection(renormalised @ values, scores.softmax(-1), selected)


def once(selected: Tensor) -> Tensor:
    """Indices (..., k) with NONE in the place of each that came before."""
    same = selected[..., :, None] == selected[..., None, :]
    return selected.masked_fill(same.tril(-1).any(-1), NONE)


def chosen(log_weights: Tensor, weights: Tensor, values: Tensor, selected: Tensor) -> Selection:
    """The selection of the regions `selected` (B, n), as if drawn from the weights (B, n, L)."""
    log_prob = log_weights.gather(-1, selected[..., None]).squeeze(-1)
    return Selection(gather(values, selected), weights, selected[..., None], log_prob)


def inverse_transform(weights: Tensor, u: Tensor) -> Tensor:
    """Indices (...) of the first of the weights (..., L) whose cumulative sum exceeds u (...) in [0, 1)."""
    cumulative = weights.cumsum(-1)
    total = cumulative[..., -1:]  # rounding may leave it a little off one, and u times it at it
    first = (cumulative <= u[..., None] * total).sum(-1)
    return torch.minimum(first, (cumulative < total).sum(-1))


def gather(values: Tensor, selected: Tensor) -> Tensor:
    """Rows (B, n, D) of values (B, L, D) at the indices selected (B, n)."""
    return values.gather(1, selected[..., None].expand(-1, -1, values.shape[-1]))


def entropy(scores: Tensor) -> Tensor:
    """Entropy (...) in nats of the softmax of scores (..., L), exact where weights underflow."""
    log_weights = scores.log_softmax(-1)
    return -(log_weights.exp() * log_weights.clamp(min=torch.finfo(scores.dtype).min)).sum(-1)
