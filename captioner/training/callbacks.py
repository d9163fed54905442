"""What training keeps: the best model, and the random states that make a resumed run the same run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from captioner.errors import UserError
from captioner.training.module import CaptioningModule


class SaveBest(Callback):
    """Write the model to `default_root_dir/model` whenever validation is better than ever before.

    Args:
        monitor: the logged figure to compare, larger is better.
    """

    def __init__(self, monitor: str = "val/CIDEr") -> None:
        self.monitor = monitor
        self.best = -math.inf

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, CaptioningModule)
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.monitor not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics))
            raise UserError(f"save_best.monitor {self.monitor!r} is not logged: choose one of {logged}")
        value = float(trainer.callback_metrics[self.monitor])
        if value <= self.best:
            return
        self.best = value
        validation = {
            name: round(float(figure), 4)
            for name, figure in trainer.callback_metrics.items()
            if name.startswith("val/")
        }
        pl_module.captioner.save(
            Path(trainer.default_root_dir) / "model",
            half=True,
            training={
                name: setting for name, setting in pl_module.hparams.items() if not name.startswith("_")
            }
            | {"epoch": trainer.current_epoch + 1, **validation},
        )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


class RandomState(Callback):
    """Keep every process's random state in checkpoints, so that a resumed run draws what the whole would."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        mine = {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        }
        states: list[Any] = [mine] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(states, mine)
        checkpoint["random_states"] = states

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states = checkpoint.get("random_states", [])
        if len(states) != trainer.world_size:
            raise UserError(
                f"the checkpoint has the random states of {len(states)} processes, this run has "
                f"{trainer.world_size}: resume with the same trainer.devices and version"
            )
        self.saved = states[trainer.global_rank]

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.saved is None:
            return
        torch.set_rng_state(self.saved["cpu"])
        if self.saved["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.saved["cuda"])
        self.saved = None
