"""What training minimises: the paper's soft objective (eq. 14) and hard objective (eqs. 11 to 13)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.attention.estimators import Reinforce
from captioner.attention.selection import entropy
from captioner.model.decoder import Transcript
from captioner.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise, the mean over captions, and the figures to log beside it."""

    total: Tensor
    figures: dict[str, Tensor]


def soft_objective(
    transcript: Transcript, doubly_stochastic: float = 1.0, label_smoothing: float = 0.0
) -> Loss:
    """-log p(y | a) + lambda sum_i (1 - sum_t alpha_ti)^2 for each caption (eq. 14), their mean."""
    words = word_loss(transcript, label_smoothing)
    penalty = doubly_stochastic_penalty(transcript)
    captions = present(transcript)
    total = (transcript.per_caption(words) + doubly_stochastic * penalty)[captions].mean()
    return Loss(total, figures(transcript) | {"coverage": penalty[captions].mean()})


def hard_objective(
    transcript: Transcript,
    reinforce: Reinforce,
    sampled: Tensor,
    lambda_r: float,
    lambda_e: float,
    label_smoothing: float = 0.0,
    draws: int = 1,
    reading: Tensor | None = None,
) -> Loss:
    """The negative of the objective whose gradient is, for each caption, the mean over draws s of (eq. 13)

        grad log p(y|s,a) + lambda_r sum_t (R_t - b_t) grad log p(s_t|a) + lambda_e grad H[s],

    with the rewards R and baselines b of `reinforce`, in the paper log p(y|s,a) and its moving average. Where
    the rule's draws have no probability, as those of `GumbelSoftmax`, the middle term is not there. The last
    leaves out, as in the paper, how a selection changes the entropy of later ones.

    Args:
        transcript: each caption `draws` times, one after the other, under the rule `ExpectationMixing`.
        sampled: (B,) the photographs whose selections were drawn, not replaced by their expectation.
        lambda_r: weight of the score-function term.
        lambda_e: weight of the entropy.
        label_smoothing: of log p(y|s,a) in the first term; the reward is never smoothed.
        reading: (B, n x draws, T) log p of the words as read with the selection that the baseline names.
    """
    captions = present(transcript)
    log_probs = word_log_probs(transcript).detach()
    words = transcript.per_caption(word_loss(transcript, label_smoothing))
    uncertainty = transcript.per_caption(entropy(transcript.scores).sum(-1))
    total = (words - lambda_e * uncertainty)[captions].mean()
    logged = figures(transcript) | {"reward": transcript.per_caption(log_probs)[captions].mean()}
    if transcript.log_prob is None:
        return Loss(total, logged)

    def by_draw(steps: Tensor) -> Tensor:
        """(M, ...) to (B, n, draws, T, ...)."""
        return transcript.padded(steps).unflatten(1, (-1, draws))

    steps = by_draw(torch.ones_like(log_probs)) > 0
    surrogate, b, error = reinforce(
        by_draw(transcript.log_prob),
        by_draw(log_probs),
        steps,
        steps & sampled[:, None, None, None],
        by_draw(transcript.states),
        None if reading is None else reading.unflatten(1, (-1, draws)),
    )
    total = total - lambda_r * surrogate.flatten(1)[captions].mean()
    logged["baseline"] = b[..., 0].flatten(1)[captions].mean()
    if reinforce.learned is not None:
        fit = error.flatten(1)[captions].mean() / 2
        total = total + fit - fit.detach()  # the baseline learns by it, but it is nothing of the objective
    return Loss(total, logged)


def self_critical_objective(transcript: Transcript, rewards: Tensor) -> Loss:
    """The negative of the expected reward of captions that the model draws, by REINFORCE.

    Its gradient is, for each caption y and the selections s that it was drawn with,
    advantage grad (log p(y|s,a) + log p(s|a)), see `advantages`.

    Args:
        transcript: of the captions drawn, with the same selections.
        rewards: (B, n), at least two captions a photograph.
    """
    log_prob = word_log_probs(transcript)
    if transcript.log_prob is not None:
        log_prob = log_prob + transcript.log_prob
    total = -(advantages(rewards) * transcript.per_caption(log_prob)).mean()
    return Loss(total, figures(transcript))


def advantages(rewards: Tensor) -> Tensor:
    """How much better each of a photograph's n captions did than the mean of its others, (B, n) to (B, n).

    Self-critical training: Rennie et al. 2017, arXiv 1612.00563; with the mean of the other draws as the
    baseline: Luo 2020, arXiv 2003.09971.
    """
    n = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * n / (n - 1)


def word_log_probs(transcript: Transcript) -> Tensor:
    """log p (M,) of the words that came."""
    log_probs = transcript.logits.log_softmax(-1)
    return log_probs.gather(-1, transcript.targets[:, None]).squeeze(-1)


def word_loss(transcript: Transcript, label_smoothing: float) -> Tensor:
    """Cross-entropy (M,) with label smoothing (Szegedy et al. 2016, arXiv 1512.00567)."""
    return torch.nn.functional.cross_entropy(
        transcript.logits, transcript.targets, reduction="none", label_smoothing=label_smoothing
    )


def doubly_stochastic_penalty(transcript: Transcript) -> Tensor:
    """sum_i (1 - sum_t alpha_ti)^2 (B, n); the sum over t leaves the end token's step out, that over i what
    is masked."""
    words = (transcript.targets != Vocabulary.end)[:, None]
    missing = 1 - transcript.per_caption(transcript.weights * words)
    if transcript.mask is not None:
        missing = missing * transcript.mask[:, None]
    return missing.square().sum(-1)


def present(transcript: Transcript) -> Tensor:
    """(B, n) True for captions, False where a photograph has fewer than n."""
    return transcript.per_caption(torch.ones_like(transcript.gate)) > 0


def figures(transcript: Transcript) -> dict[str, Tensor]:
    """What to log of every objective: nats a word, entropy of the weights in nats, mean gate."""
    with torch.no_grad():
        return {
            "word_loss": -word_log_probs(transcript).mean(),
            "entropy": entropy(transcript.scores).sum(-1).mean(),
            "gate": transcript.gate.mean(),
        }
