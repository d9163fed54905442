"""`captioner fit`: train a model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from captioner.errors import UserError

SUMMARY = "train soft or hard attention on a prepared data set"


def run(arguments: Sequence[str]) -> int:
    """Train as the configuration says (LightningCLI: --config, any --setting, --ckpt_path to resume).

    Everything is written under `trainer.default_root_dir`: the best epoch's model in `model`, the last
    checkpoint, and the logs.
    """
    from jsonargparse import ArgumentError
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

    from captioner.data.datamodule import CaptionDataModule
    from captioner.training.callbacks import RandomState, SaveBest
    from captioner.training.module import CaptioningModule

    class FitCLI(LightningCLI):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.prepared", "model.prepared")
            parser.add_lightning_class_args(SaveBest, "save_best")
            parser.add_lightning_class_args(RandomState, "random_state")
            parser.add_lightning_class_args(EarlyStopping, "early_stopping")
            parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
            parser.set_defaults(
                {
                    "early_stopping.monitor": "val/CIDEr",
                    "early_stopping.mode": "max",
                    "early_stopping.patience": 5,
                    "checkpoint.filename": "last",
                    "checkpoint.enable_version_counter": False,
                    # The data module shares out the batches itself.
                    "trainer.use_distributed_sampler": False,
                }
            )
            parser.link_arguments("trainer.default_root_dir", "checkpoint.dirpath")

        def _parse_ckpt_path(self) -> None:
            """A resumed run has the settings it is given, not the checkpoint's."""

        def before_instantiate_classes(self) -> None:
            checkpoint = self.config["fit"]["ckpt_path"]
            if checkpoint is not None and not Path(checkpoint).is_file():
                raise UserError(f"no checkpoint at {checkpoint}: give --ckpt_path a run's last.ckpt")
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

    with warnings.catch_warnings():
        # A frozen encoder stays in evaluation mode, and batches come ready from the feature store.
        warnings.filterwarnings("ignore", "Found .* in eval mode")
        warnings.filterwarnings("ignore", ".*does not have many workers")
        warnings.filterwarnings("ignore", "LightningCLI's args parameter")
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists")
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
        try:
            FitCLI(
                CaptioningModule,
                CaptionDataModule,
                seed_everything_default=0,
                save_config_kwargs={"overwrite": True},
                parser_kwargs={"exit_on_error": False, "fit": {"exit_on_error": False}},
                args=["fit", *arguments],
            )
        except ArgumentError as error:
            raise UserError(f"{error}: see `captioner fit --help`") from None
    return 0
