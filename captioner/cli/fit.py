"""`captioner fit`: train a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.bounds import Bounds, check_all
from captioner.cli.arguments import check_folder
from captioner.errors import UserError

SUMMARY = "train soft or hard attention on a prepared data set"

# What Lightning takes and fails at later, or trains to no end or to no model.
SEED = Bounds(0, 2**32 - 1, whole=True)
ONE_OR_MORE, SOME = Bounds(1, whole=True), Bounds(0, above=True)
TRAINER = {
    "max_epochs": ONE_OR_MORE,
    "max_steps": ONE_OR_MORE,
    "accumulate_grad_batches": ONE_OR_MORE,
    "log_every_n_steps": ONE_OR_MORE,
    "limit_train_batches": SOME,
    "limit_val_batches": SOME,
    "val_check_interval": SOME,
}
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
INSTEAD = {"gradient_clip_val": "model.gradient_norm", "overfit_batches": "trainer.limit_train_batches"}


def run(arguments: Sequence[str]) -> int:
    """Train as the configuration says (LightningCLI: --config, any --setting, --ckpt_path to resume).

    Everything is written under `trainer.default_root_dir`: the best epoch's model in `model`, the last
    checkpoint, and the logs.
    """
    from jsonargparse import ArgumentError
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import EarlyStopping
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    from captioner.cli.remarks import without_remarks
    from captioner.cli.settings import check_recipes, explain
    from captioner.data.datamodule import CaptionDataModule
    from captioner.training.callbacks import (
        GradientVariance,
        RandomState,
        SaveBest,
        ValidationLines,
        WholeEpochs,
    )
    from captioner.training.module import CaptioningModule

    check_recipes(arguments)

    class FitCLI(LightningCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {"fit": LightningCLI.subcommands()["fit"]}

        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            self.settings = parser
            parser.link_arguments("data.prepared", "model.prepared")
            parser.add_lightning_class_args(SaveBest, "save_best")
            parser.add_lightning_class_args(RandomState, "random_state")
            parser.add_lightning_class_args(GradientVariance, "gradient_variance")
            parser.add_lightning_class_args(EarlyStopping, "early_stopping")
            parser.add_lightning_class_args(WholeEpochs, "checkpoint")
            parser.add_lightning_class_args(ValidationLines, "lines")
            parser.set_defaults(
                {
                    "early_stopping.monitor": "val/CIDEr",
                    "early_stopping.mode": "max",
                    "early_stopping.patience": 5,
                    # A run may end before its first validation; `SaveBest` says so.
                    "early_stopping.strict": False,
                    "checkpoint.filename": "last",
                    # A run goes on from the end of an epoch, wherever in it validation ran.
                    "checkpoint.save_on_train_epoch_end": True,
                    "checkpoint.enable_version_counter": False,
                    # The data module shares out the batches itself.
                    "trainer.use_distributed_sampler": False,
                }
            )
            parser.link_arguments("trainer.default_root_dir", "checkpoint.dirpath")

        def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
            try:
                super().parse_arguments(parser, args)
            except UnicodeDecodeError as error:
                raise UserError(f"a file of settings is not YAML ({error}): give another") from None
            except ArgumentError as error:
                raise UserError(explain(str(error), self.settings.get_defaults().keys())) from None
            check_settings(self.config["fit"].as_dict())

        def _parse_ckpt_path(self) -> None:
            """A resumed run has the settings it is given; the checkpoint's are the same."""

        def before_instantiate_classes(self) -> None:
            trainer = self.config["fit"]["trainer"]
            if trainer["logger"] is None:
                place = trainer["default_root_dir"] or "."
                trainer["logger"] = [
                    {
                        "class_path": f"lightning.pytorch.loggers.{kind}",
                        "init_args": {"save_dir": place, "name": name},
                    }
                    for kind, name in (("CSVLogger", "csv"), ("TensorBoardLogger", "tensorboard"))
                ]

        def instantiate_trainer(self, **kwargs: Any) -> Trainer:
            try:
                return super().instantiate_trainer(**kwargs)
            except (ValueError, TypeError) as error:  # of settings alone: nothing has run yet
                raise UserError(f"the trainer cannot be set up: {error}") from None

    with without_remarks():
        try:
            FitCLI(
                CaptioningModule,
                CaptionDataModule,
                seed_everything_default=0,
                save_config_kwargs={"overwrite": True},
                parser_kwargs={"exit_on_error": False, "fit": {"exit_on_error": False}},
                args=["fit", *arguments],
            )
        except MisconfigurationException as error:
            raise UserError(f"the trainer cannot do this: {error}") from None
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns it into exit code 1
                raise KeyboardInterrupt from None
            raise
    return 0


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse before anything is set up what would fail, or leave no model, after hours.

    Raises:
        UserError: a number is out of its bounds, a figure is not logged, or a checkpoint is of another run.
    """
    from captioner.data import datamodule
    from captioner.training import module
    from captioner.training.resuming import check_same_settings, read_checkpoint
    from captioner.training.settings import check_settings as check_model

    if not isinstance(settings["seed_everything"], bool):
        SEED.check("seed_everything", settings["seed_everything"])
    check_trainer(settings["trainer"])
    check_all(datamodule.BOUNDS, settings["data"], "data.")
    check_model(settings["model"])
    logged = [f"val/{name}" for name in module.SCORES]
    for callback in ("save_best", "early_stopping"):
        if (monitor := settings[callback]["monitor"]) not in logged:
            known = ", ".join(logged)
            raise UserError(f"{callback}.monitor {monitor!r} is not logged: choose one of {known}")
    if settings["ckpt_path"] is not None:
        check_same_settings(read_checkpoint(settings["ckpt_path"]), settings["model"], module.DEFAULTS)


def check_trainer(settings: Mapping[str, Any]) -> None:
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    if numbers["max_steps"] == -1:  # as many as there are
        del numbers["max_steps"]
    epochs = Bounds(1, settings["max_epochs"] or 1000, whole=True)
    check_all(TRAINER | {"check_val_every_n_epoch": epochs}, numbers, "trainer.")
    if isinstance(settings["val_check_interval"], str):
        raise UserError(
            "trainer.val_check_interval is a share of an epoch or a number of batches, not a time"
        )
    if (precision := settings["precision"]) not in (None, 32, "32", *PRECISIONS):
        raise UserError(f"trainer.precision can be {', '.join(PRECISIONS)}, not {precision}")
    if settings["max_epochs"] is None and settings["max_steps"] == -1:
        raise UserError("the learning rate follows the whole run: set trainer.max_epochs")
    if "://" in str(settings["default_root_dir"]):
        raise UserError(
            f"trainer.default_root_dir {settings['default_root_dir']} is an address: "
            "give a folder on this machine"
        )
    check_folder("trainer.default_root_dir:", Path(settings["default_root_dir"] or ".", "model"))
    for name, instead in INSTEAD.items():
        if settings[name]:
            raise UserError(f"trainer.{name} has no effect here: set {instead}")
    if settings["enable_checkpointing"] is False:
        raise UserError("trainer.enable_checkpointing cannot be false: a run keeps its last checkpoint")
