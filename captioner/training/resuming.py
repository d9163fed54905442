"""A run that goes on from a checkpoint is the run that the checkpoint is of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from captioner.errors import UserError

# Lightning's, and "steps" and "data", which are this program's alone.
OURS = {"state_dict", "hyper_parameters", "optimizer_states", "steps", "data"}
PLACES = {"prepared", "start"}  # folders may have moved


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What `captioner fit` left in a checkpoint; its tensors stay on disk.

    Raises:
        UserError: there is none, or it is something else.
    """
    if not Path(path).is_file():
        raise UserError(f"no checkpoint at {path}: give --ckpt_path a run's last.ckpt")
    if not os.access(path, os.R_OK):
        raise UserError(f"the checkpoint {path} cannot be read: is it yours to read?")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # torch raises a dozen kinds for a file of another kind
        checkpoint = None
    if not isinstance(checkpoint, dict) or not set(checkpoint) >= OURS:
        raise UserError(
            f"{path} is not a checkpoint of `captioner fit`, or is damaged: "
            "give --ckpt_path a run's last.ckpt"
        )
    return checkpoint


def check_same_settings(
    checkpoint: Mapping[str, Any], settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Refuse to resume with another model, objective or schedule.

    Args:
        defaults: what a setting was before it could be set.

    Raises:
        UserError: a setting differs.
    """
    saved = {**defaults, **checkpoint["hyper_parameters"]}
    for name, value in settings.items():
        if name in defaults and name not in PLACES and saved[name] != value:
            raise UserError(
                f"the checkpoint is of a run with model.{name} {saved[name]}, this one has {value}: "
                "resume with the same settings, or begin from its model with --model.start"
            )


def check_whole_epoch(checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint from within an epoch, of which the rest would be left out.

    Raises:
        UserError: it is one.
    """
    if not checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["is_last_batch"]:
        raise UserError(
            "the checkpoint was written within an epoch, and a run goes on from the end of one: "
            "give --ckpt_path the last.ckpt of a whole epoch"
        )


def check_same_data(checkpoint: Mapping[str, Any], steps: int, data: Mapping[str, Any]) -> None:
    """Refuse to resume with another schedule, other batches, words or features.

    Raises:
        UserError: the number of steps, or what is said of the data, differs.
    """
    if checkpoint["steps"] != steps:
        raise UserError(
            f"the checkpoint is of a run of {checkpoint['steps']} steps, this one has {steps}, and the "
            "learning rate follows the whole run: resume with the same trainer.max_epochs, max_steps, "
            "accumulate_grad_batches and data, or begin from its model with --model.start"
        )
    for name, value in data.items():
        saved = checkpoint["data"].get(name)
        if saved != value:
            raise UserError(
                f"the checkpoint is of a run with {name} {saved}, this one has {value}: "
                "resume with the same data and its settings"
            )
