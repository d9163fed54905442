"""`captioner fit`: train a model."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "train soft or hard attention on a prepared data set"


def run(arguments: Sequence[str]) -> int:
    """Train as the configuration says (LightningCLI: --config, any --setting, --ckpt_path to resume)."""
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

    from captioner.data.datamodule import CaptionDataModule
    from captioner.training.module import CaptioningModule

    class FitCLI(LightningCLI):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            parser.link_arguments("data.prepared", "model.prepared")

    FitCLI(
        CaptioningModule,
        CaptionDataModule,
        seed_everything_default=0,
        save_config_kwargs={"overwrite": True},
        args=["fit", *arguments],
    )
    return 0
