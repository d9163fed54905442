"""What training keeps and tells: the best model, checkpoints to go on from exactly, a line a validation."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from captioner.bounds import Bounds
from captioner.errors import UserError
from captioner.files import replacing
from captioner.training.module import CaptioningModule

EVERY = Bounds(0, whole=True)


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

    @rank_zero_only
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.best == -math.inf:
            raise UserError(
                "the run ended before its first validation, so it has left no model: let it run longer, or "
                "validate sooner with trainer.val_check_interval"
            )
        for callback in trainer.early_stopping_callbacks:
            assert isinstance(callback, EarlyStopping)
            if callback.stopped_epoch:
                print(
                    f"stopped after epoch {callback.stopped_epoch + 1}: {callback.monitor} has not improved "
                    f"in {callback.patience} validations (early_stopping.patience)",
                    file=sys.stderr,
                )
        model = Path(trainer.default_root_dir) / "model"
        print(f"the best model, {self.monitor} {self.best:.3f}, is in {model}", file=sys.stderr)
        if self.best == 0:
            print("no caption of it is right in anything: train longer, or on more data", file=sys.stderr)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


class WholeFiles(TorchCheckpointIO):
    """Lightning's own brings a checkpoint from the temporary folder, which may be another disk.

    A run that is killed while it is copied from there would have neither the old one nor the new.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            torch.save(checkpoint, partial)


class WholeEpochs(ModelCheckpoint):
    """Lightning's checkpoints, but none of an epoch that `trainer.max_time` or `max_steps` cut off.

    A run that went on from one would leave out the rest of that epoch.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # not one that was asked for
            trainer.strategy.checkpoint_io = WholeFiles()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            super().on_train_epoch_end(trainer, pl_module)
        else:
            rank_zero_info(
                f"the run ended within epoch {trainer.current_epoch + 1}: no checkpoint is kept of a part"
            )


class ValidationLines(Callback):
    """A line a validation on standard error, where there is no terminal for the progress bar to move on."""

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or (sys.stdout.isatty() and trainer.progress_bar_callback is not None):
            return
        figures = ", ".join(
            f"{name} {float(value):.3f}" for name, value in sorted(trainer.progress_bar_metrics.items())
        )
        print(f"epoch {trainer.current_epoch + 1}: {figures}", file=sys.stderr)


class GradientVariance(Callback):
    """Log how far the gradients of the attention's parameters scatter for one batch, to compare estimators.

    Every so many steps the batch's gradient is made twice more, with other selections and dropout each time:
    half the squared distance of the two is `train/gradient_variance`, their product `train/gradient_square`,
    without bias the trace of the covariance and the squared norm of the mean. The run itself goes on as if
    nothing had happened.

    Args:
        every: steps from one measurement to the next; 0 measures nothing.
    """

    def __init__(self, every: int = 50) -> None:
        EVERY.check("gradient_variance.every", every)
        self.every = every

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, CaptioningModule)
        if self.every and batch_idx % self.every == 0:
            seed = 2 * trainer.global_step
            with trainer.precision_plugin.forward_context():
                first, second = (pl_module.attention_gradient(batch, seed + i) for i in range(2))
            pl_module.log("train/gradient_variance", (first - second).square().sum() / 2, on_step=True)
            pl_module.log("train/gradient_square", first @ second, on_step=True)


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
