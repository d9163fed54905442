"""Settings of training: their bounds, what goes together, and the selection rules that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from captioner.attention.estimators import DISCOUNT, TEMPERATURE
from captioner.attention.selection import Argmax, Counted, Sample, SelectionRule, Top, selection_rule
from captioner.bounds import Bounds, check_all
from captioner.captioner import DECODING
from captioner.errors import UserError

SIZE = Bounds(1, 10_000, whole=True)
SHARE = Bounds(0, 1, below=True)
FACTOR = Bounds(0)
BOUNDS = {
    "feature_size": SIZE,
    "embedding_size": SIZE,
    "hidden_size": SIZE,
    "attention_size": SIZE,
    "gist": SHARE,
    "dropout": SHARE,
    "region_dropout": SHARE,
    "label_smoothing": SHARE,
    "learning_rate": Bounds(0, above=True),
    "doubly_stochastic": FACTOR,
    "lambda_r": FACTOR,
    "lambda_e": FACTOR,
    "expectation": Bounds(0, 1),
    "draws": Bounds(1, 1000, whole=True),
    "discount": DISCOUNT,
    "temperature": TEMPERATURE,
    "final_temperature": TEMPERATURE,
    "gradient_norm": Bounds(0, above=True),
    "self_critical": Bounds(0, 1000, whole=True),
    "bleu_reward": FACTOR,
    "finetune_from": Bounds(0, whole=True),
    "encoder_learning_rate": Bounds(0, above=True),
    "validate_beam": DECODING["beam_size"],
}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no training can follow.

    Raises:
        UserError: a number is out of its bounds, or an unknown selection rule.
    """
    check_all(BOUNDS, settings, "model.")
    if settings["validate_with"] is not None:
        selection_rule(settings["validate_with"])
    training_rule(settings["attention"])
    check_estimator(settings)
    if settings["self_critical"] == 1:
        raise UserError("model.self_critical must be 0, or at least 2 draws to compare, not 1")
    if settings["bleu_reward"] and not settings["self_critical"]:
        raise UserError("model.bleu_reward is of captions that are drawn: set model.self_critical, too")


def check_estimator(settings: Mapping[str, Any]) -> None:
    """Refuse estimators of hard attention whose parts do not go together.

    Raises:
        UserError: they do not.
    """
    if settings["estimator"] != "reinforce" and (
        settings["attention"] != "hard" or settings["self_critical"]
    ):
        raise UserError(
            f"model.estimator {settings['estimator']} is for hard attention, and people's captions: "
            "set model.attention to hard and model.self_critical to 0"
        )
    if settings["baseline"] in ("leave-one-out", "mean") and settings["draws"] < 2:
        raise UserError(f"model.baseline {settings['baseline']} compares draws: set model.draws to 2 or more")
    if settings["discount"] != 1 and settings["reward"] != "to-go":
        raise UserError("model.discount is of rewards to go: set model.reward to to-go")


def check_rule(setting: str, name: str, regions: int) -> None:
    """Refuse a rule that selects more regions than there are, before the first step or validation does.

    Raises:
        UserError: it does.
    """
    rule = selection_rule(name)
    scores, draws = torch.zeros(1, 1, regions), torch.zeros(1, 1, rule.draws)
    try:
        rule(scores, scores.mT, draws)
    except UserError as error:
        raise UserError(f"{setting} {name}: {error}") from None


def training_rule(attention: str) -> SelectionRule:
    """The selection rule of `model.attention`.

    Raises:
        UserError: no such rule, or none that can be trained.
    """
    if attention == "hard":
        return Sample()
    try:
        rule = selection_rule(attention)
    except UserError as error:
        raise UserError(f"model.attention: {error}, or hard") from None
    if isinstance(rule, Argmax) or rule.particles > 1:
        raise UserError(
            f"model.attention {attention} is for validation (model.validate_with), as the attention gets no "
            "gradient: train hard"
        )
    return rule


def without_chance(rule: SelectionRule) -> SelectionRule:
    """What a model that was trained with a rule selects where nothing else is asked for."""
    if not rule.draws:
        return rule
    return Top(rule.k) if isinstance(rule, Counted) else Argmax()
