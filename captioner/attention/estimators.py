"""Gradient estimators: how learning passes a selection that cannot be differentiated.

Soft selection needs none: its gradient is pathwise, by backpropagation. For hard selection there are the
score function (`Reinforce`), unbiased with most baselines, and relaxations (`GumbelSoftmax`), which are
biased. All work on log-probabilities, so that a weight that underflows is never NaN.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from captioner.attention.selection import Rule, Sample, Selection, SelectionRule, Soft
from captioner.bounds import Bounds
from captioner.errors import UserError

REWARDS = ("whole", "to-go")
BASELINES = ("none", "average", "learned", "leave-one-out", "mean", "argmax", "soft")
POSITIONS = 100  # words that have a moving average of their own; those beyond have the last's
DISCOUNT, TEMPERATURE = Bounds(0, 1), Bounds(0, above=True)


class MovingAverage(nn.Module):
    """REINFORCE's baseline b <- 0.9 b + 0.1 reward (section 4.1 of the paper), one for each column.

    It starts at the mean of the first rewards rather than at zero, which is far from any of them. The state
    is a buffer and travels with the checkpoint.
    """

    value: Tensor
    started: Tensor

    def __init__(self, size: int = 1, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.zeros(size))
        self.register_buffer("started", torch.zeros(size, dtype=torch.bool))

    @torch.no_grad()
    def forward(self, reward: Tensor, counted: Tensor) -> Tensor:
        """The baselines (size,) for rewards (N, size); then the rewards that are counted move them on."""
        number = counted.sum(0)
        mean = (reward * counted).sum(0) / number.clamp(min=1)
        baseline = torch.where(self.started, self.value, mean)
        moved = self.decay * baseline + (1 - self.decay) * mean
        self.value.copy_(torch.where(number > 0, moved, self.value))
        self.started |= number > 0
        return baseline


class Reinforce(nn.Module):
    """The score-function estimator (Williams 1992; eq. 12 of the paper), each selection with its own factor.

    Its surrogate for a draw is sum_t (R_t - b_t) log p(s_t | a), of which only the last is differentiated.

    Rewards R_t, of log p(y_t | s, a) of the words y and selections s:

    - `whole`: sum over the caption's words, as in the paper;
    - `to-go`: sum over the words from t on, the only ones that s_t can change, each step further on counting
      `discount` times the last. Below 1 that is the reward shaping of Indurthi et al. 2019 ("Look Harder",
      ACL), and biased.

    Baselines b_t:

    - `none`: 0;
    - `average`: `MovingAverage` of whole captions' rewards, as in the paper; to go, the sum of one for each
      word to go, the first, the second and so on;
    - `learned`: that plus what a linear layer makes of the state h_{t-1}, fitted to the rewards;
    - `leave-one-out`: the mean of the other draws' R_t;
    - `mean`: the mean of all draws' R_t. It mixes a draw with itself, which shrinks the gradient to
      (draws - 1) / draws of what it should be;
    - `argmax`, the self-critical one (Rennie et al. 2017, arXiv 1612.00563), and `soft`: R_t of the same
      words read with that selection.

    All but `mean` leave the gradient unbiased, as b_t does not depend on s_t (of `average` the very first is
    the mean of its own rewards).

    Args:
        reward, discount, baseline: see above.
        state_size: H, for the learned baseline.
    """

    def __init__(
        self,
        reward: str = "whole",
        baseline: str = "average",
        discount: float = 1.0,
        state_size: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("reward", reward, REWARDS)
        check_choice("baseline", baseline, BASELINES)
        DISCOUNT.check("discount", discount)
        self.reward, self.baseline, self.discount = reward, baseline, discount
        self.average = MovingAverage(POSITIONS if reward == "to-go" else 1)
        self.learned = None
        if baseline == "learned":
            if state_size is None:
                raise UserError("the learned baseline needs the state's size: give state_size")
            self.learned = nn.Linear(state_size, 1)
            nn.init.zeros_(self.learned.weight)
            nn.init.zeros_(self.learned.bias)

    def forward(
        self,
        log_prob: Tensor,
        rewards: Tensor,
        present: Tensor,
        drawn: Tensor,
        states: Tensor | None = None,
        reading: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The surrogate of each draw, and how the baseline did.

        Args:
            log_prob: log p(s_t | a) (B, n, draws, T), zero where nothing was drawn.
            rewards: log p(y_t | s, a) (B, n, draws, T), zero where there is no step.
            present: (B, n, draws, T) True where there is a step.
            drawn: (B, n, draws, T) True where its selection was drawn; the others move no average.
            states: h_{t-1} (B, n, draws, T, H), for the learned baseline.
            reading: rewards (B, n, draws or 1, T) of the words, read with the baseline's selection.

        Returns:
            surrogate (B, n, draws); b_t (B, n, draws, T); the squared error of a learned baseline
            (B, n, draws), half of it to be minimised, zero of others.
        """
        returns = self.returns(rewards)
        b = self.baselines(rewards, returns, present, drawn, states, reading)
        advantage = torch.where(drawn, returns - b, 0.0)
        surrogate = (advantage.detach() * log_prob).sum(-1)
        error = advantage.square().sum(-1) if self.learned is not None else torch.zeros_like(surrogate)
        return surrogate, b.detach(), error

    def returns(self, rewards: Tensor) -> Tensor:
        """R_t (..., T) of rewards (..., T)."""
        if self.reward == "whole":
            return rewards.sum(-1, keepdim=True).expand_as(rewards)
        return to_go(rewards, self.discount)

    def baselines(
        self,
        rewards: Tensor,
        returns: Tensor,
        present: Tensor,
        drawn: Tensor,
        states: Tensor | None,
        reading: Tensor | None,
    ) -> Tensor:
        """b_t (B, n, draws, T)."""
        draws = returns.shape[2]
        if self.baseline in ("leave-one-out", "mean") and draws < 2:
            raise UserError(f"the baseline {self.baseline} compares draws: take at least 2, not {draws}")
        if self.baseline == "leave-one-out":
            return (returns.sum(2, keepdim=True) - returns) / (draws - 1)
        if self.baseline == "mean":
            return returns.mean(2, keepdim=True).expand_as(returns)
        if self.baseline in ("argmax", "soft"):
            assert reading is not None
            return self.returns(reading).expand_as(returns)
        if self.baseline == "none":
            return torch.zeros_like(returns)
        b = self.averages(rewards, present, drawn)
        if self.learned is not None:
            assert states is not None
            b = b + self.learned(states.detach()).squeeze(-1)
        return b

    def averages(self, rewards: Tensor, present: Tensor, drawn: Tensor) -> Tensor:
        """The moving averages of captions, or to go of their words, (B, n, draws, T)."""
        if self.reward == "whole":
            whole = rewards.sum(-1).view(-1, 1)
            return self.average(whole, drawn[..., :1].flatten(0, 2)).to(rewards).expand_as(rewards)
        kept = min(rewards.shape[-1], POSITIONS)

        def by_position(steps: Tensor) -> Tensor:
            """(B, n, draws, T) to (N, POSITIONS); words beyond count nowhere."""
            return nn.functional.pad(steps[..., :kept].flatten(0, 2), (0, POSITIONS - kept))

        each = self.average(by_position(rewards), by_position(drawn)).to(rewards)
        position = torch.arange(rewards.shape[-1], device=rewards.device).clamp(max=POSITIONS - 1)
        return self.returns(each[position] * present)


def to_go(rewards: Tensor, discount: float = 1.0) -> Tensor:
    """R_t = r_t + discount R_{t+1} (..., T) of rewards r (..., T)."""
    total, returns = torch.zeros_like(rewards[..., 0]), []
    for reward in rewards.unbind(-1)[::-1]:
        total = reward + discount * total
        returns.append(total)
    return torch.stack(returns[::-1], -1)


class ExpectationMixing(Rule):
    """The training rule of hard attention: draw, but for some images take the expectation.

    "With probability 0.5 for a given image, we set the sampled attention location to its expected value"
    (section 4.1 of the paper): a coin an image, the same for all words of its captions. Where the
    expectation stands the gradient passes through the weights, and log_prob is zero.

    Args:
        expected: (B,) True where the expectation replaces the draw.
        rule: how the others are drawn.
    """

    def __init__(self, expected: Tensor, rule: SelectionRule | None = None) -> None:
        self.expected, self.rule = expected, rule or Sample()

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def draws(self) -> int:
        return self.rule.draws

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        drawn = self.rule(scores, values, u)
        heads = len(scores) // len(self.expected)
        expected = self.expected.repeat_interleave(heads)[:, None]
        context = torch.where(expected[..., None], Soft()(scores, values).context, drawn.context)
        log_prob = None if drawn.log_prob is None else drawn.log_prob.masked_fill(expected, 0.0)
        return Selection(context, drawn.weights, drawn.selected, log_prob)


class GumbelSoftmax(Rule):
    """A draw that is relaxed to a mixture, so that gradient passes through it: softmax((log alpha + g) / T)
    with Gumbel noise g (Jang et al. 2017, arXiv 1611.01144; Maddison et al. 2017, arXiv 1611.00712).

    Biased as an estimator for hard selection: less, and of more variance, the lower the temperature T.

    Args:
        temperature: T, above 0.
        straight_through: select the mixture's largest region, of which the gradient is the mixture's.
    """

    name: ClassVar[str] = "sample"

    def __init__(self, temperature: float = 1.0, straight_through: bool = False) -> None:
        TEMPERATURE.check("temperature", temperature)
        self.temperature, self.straight_through = temperature, straight_through

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        """u (B, n, L) has a draw for each region here."""
        if u is None:
            u = torch.rand_like(scores)
        tiny = torch.finfo(scores.dtype).tiny
        noise = -(-u.clamp(min=tiny).log()).clamp(min=tiny).log()
        mixture = ((scores.log_softmax(-1) + noise) / self.temperature).softmax(-1)
        selected = None
        if self.straight_through:
            selected = mixture.argmax(-1, keepdim=True)
            one = torch.zeros_like(mixture).scatter(-1, selected, 1.0)
            mixture = one + (mixture - mixture.detach())
        return Selection(mixture @ values, scores.softmax(-1), selected)


def annealed(start: float, end: float, progress: float) -> float:
    """A temperature that falls geometrically from start to end as progress goes from 0 to 1."""
    return start * (end / start) ** min(max(progress, 0.0), 1.0)


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"unknown {what} {value!r}: choose one of {', '.join(choices)}")
