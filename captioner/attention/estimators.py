"""Gradient estimators: how learning passes a selection that cannot be differentiated."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captioner.attention.selection import Rule, Sample, Selection, Soft, chosen


class MovingAverage(nn.Module):
    """REINFORCE's baseline b <- 0.9 b + 0.1 reward (section 4.1 of the paper).

    It starts at the mean of the first rewards rather than at zero, which is far from any of them. The state
    is a buffer and travels with the checkpoint.
    """

    value: Tensor
    started: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("value", torch.zeros(()))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def forward(self, reward: Tensor) -> Tensor:
        """The baseline for these rewards (...), a scalar; then the rewards move it on."""
        mean = reward.mean()
        baseline = torch.where(self.started, self.value, mean)
        self.value.copy_(self.decay * baseline + (1 - self.decay) * mean)
        self.started.fill_(True)
        return baseline


class ExpectationMixing(Rule):
    """The training rule of hard attention: draw, but for some images take the expectation.

    "With probability 0.5 for a given image, we set the sampled attention location to its expected value"
    (section 4.1 of the paper): a coin an image, the same for all words of its captions. Where the
    expectation stands the gradient passes through the weights, and log_prob is zero.
    """

    name = "sample"

    def __init__(self, expected: Tensor) -> None:
        """expected: (B,) True where the expectation replaces the draw."""
        self.expected = expected[:, None]

    @property
    def draws(self) -> int:
        return 1

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        return mix(self.expected, scores, values, Sample()(scores, values, u))


class Replay(Rule):
    """ExpectationMixing with selections that were made before, one step a call, the first captions of each.

    What is learnt from captions that the model drew must look where it looked when it drew them.
    """

    name = "sample"

    def __init__(self, selected: Tensor, expected: Tensor) -> None:
        """selected: (B, n, T) the regions of each step; expected: (B,) as in `ExpectationMixing`."""
        self.steps = iter(selected.unbind(-1))
        self.expected = expected[:, None]

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        selected = next(self.steps)[:, : scores.shape[1]]
        log_weights = scores.log_softmax(-1)
        drawn = chosen(log_weights, log_weights.exp(), values, selected)
        return mix(self.expected, scores, values, drawn)


def mix(expected: Tensor, scores: Tensor, values: Tensor, drawn: Selection) -> Selection:
    """The draw, or where `expected` (B, 1) its expectation, whose gradient passes through the weights."""
    assert drawn.log_prob is not None
    context = torch.where(expected[..., None], Soft()(scores, values).context, drawn.context)
    log_prob = torch.where(expected, torch.zeros_like(drawn.log_prob), drawn.log_prob)
    return Selection(context, drawn.weights, drawn.selected, log_prob)


def score_function(log_prob: Tensor, reward: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """REINFORCE's surrogate (...): its gradient is (reward - baseline) grad log p(s | a).

    log_prob (...) is the log-probability of selections, reward (...) the log p(y | s, a) of the words that
    they answer for (Williams 1992; eq. 12 of the paper).
    """
    return (reward - baseline).detach() * log_prob
