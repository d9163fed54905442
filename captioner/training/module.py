"""`CaptioningModule`: trains soft or hard attention, and scores free-running captions after each epoch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from captioner.attention.estimators import ExpectationMixing, MovingAverage, Replay
from captioner.attention.selection import SelectionRule, Soft, selection_rule
from captioner.bounds import Bounds, check_all
from captioner.captioner import DECODING, Captioner
from captioner.data.datamodule import Batch, CaptionDataModule, unpad
from captioner.data.features import differences, store_key
from captioner.data.prepared import Prepared
from captioner.decoding.sampling import Draws, sample_captions
from captioner.errors import UserError
from captioner.evaluation.metrics import score
from captioner.geometry import Grid
from captioner.model.decoder import Decoder
from captioner.model.encoder import Encoder
from captioner.model.regions import Regions
from captioner.text.vocabulary import Vocabulary
from captioner.training.objectives import (
    Loss,
    hard_objective,
    self_critical_objective,
    soft_objective,
    word_log_probs,
)
from captioner.training.resuming import check_same_data, check_same_settings, check_whole_epoch
from captioner.training.reward import CiderD, Reward, bleu

SCORES = ("BLEU-4", "CIDEr")  # of each validation, logged as val/BLEU-4 and val/CIDEr

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
    "gradient_norm": Bounds(0, above=True),
    "self_critical": Bounds(0, 1000, whole=True),
    "bleu_reward": FACTOR,
    "finetune_from": Bounds(0, whole=True),
    "encoder_learning_rate": Bounds(0, above=True),
    "validate_beam": DECODING["beam_size"],
}


class CaptioningModule(L.LightningModule):
    """The captioner in training.

    Args:
        prepared: a folder that `captioner prepare` wrote: its vocabulary, encoder and preprocessing.
        attention: `soft`, trained by backpropagation, or `hard`, by REINFORCE.
        start: a model's folder or name whose decoder to start from; None starts afresh.
        feature_size: what the encoder's features are projected to; None does not project them.
        embedding_size: of the words, and of the deep output.
        hidden_size: of the LSTM.
        attention_size: of the scoring function.
        gist: the share that the mean region has in each region's value; None is that of `start`, or 0,
            the paper's model.
        dropout: on embedded words, regions and the deep output.
        region_dropout: the share of each photograph's regions that a training step leaves out, at random.
        learning_rate: the largest of the one-cycle schedule (Smith and Topin 2019, arXiv 1708.07120).
        label_smoothing: of the words' cross-entropy.
        doubly_stochastic: lambda of the soft objective.
        lambda_r: weight of the hard objective's score-function term (REINFORCE).
        lambda_e: weight of the hard objective's entropy term.
        baseline: what the score-function term compares a draw with: the moving `average` of the rewards of
            whole captions, as in the paper, or, selection by selection, the words to come as read with
            `soft` attention, which varies far less and costs another reading.
        expectation: probability, per photograph, that a draw is replaced by its expectation.
        gradient_norm: gradients are clipped to this norm.
        self_critical: captions that are drawn of each photograph and learnt from by their CIDEr-D (Rennie et
            al. 2017, arXiv 1612.00563), in place of people's captions; `dropout`, `label_smoothing`,
            `doubly_stochastic`, `lambda_r`, `lambda_e` and `baseline` have no effect then. 0 learns from
            people's.
        bleu_reward: weight of their BLEU, the mean of BLEU-1 to BLEU-4, beside their CIDEr-D.
        finetune_from: the epoch from which the encoder learns too; None keeps it frozen.
        encoder_learning_rate: the encoder's, as a share of `learning_rate`.
        validate_with: selection rule of the validation captions, which becomes the saved model's own; None
            is soft for soft attention, argmax for hard.
        validate_beam: beam size of the validation captions.
    """

    def __init__(
        self,
        prepared: str,
        attention: Literal["soft", "hard"] = "soft",
        start: str | None = None,
        feature_size: int | None = 512,
        embedding_size: int = 384,
        hidden_size: int = 384,
        attention_size: int = 384,
        gist: float | None = None,
        dropout: float = 0.5,
        region_dropout: float = 0.0,
        learning_rate: float = 1.5e-3,
        label_smoothing: float = 0.1,
        doubly_stochastic: float = 1.0,
        lambda_r: float = 0.1,
        lambda_e: float = 0.002,
        baseline: Literal["average", "soft"] = "average",
        expectation: float = 0.5,
        gradient_norm: float = 10.0,
        self_critical: int = 0,
        bleu_reward: float = 0.0,
        finetune_from: int | None = None,
        encoder_learning_rate: float = 0.01,
        validate_with: str | None = None,
        validate_beam: int = 1,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_settings(self.hparams)
        data = Prepared.open(prepared)
        encoder = Encoder(**data.encoder)
        self.grid, region_size = encoder.measure(data.preprocess.size)
        decoder = Decoder(
            len(data.vocabulary),
            region_size,
            feature_size,
            embedding_size,
            hidden_size,
            attention_size,
            0.0 if self_critical else dropout,
        )
        rule = validate_with or ("soft" if attention == "soft" else "argmax")
        check_rule(rule, self.grid)
        self.captioner = Captioner(
            encoder,
            decoder,
            data.vocabulary,
            data.preprocess,
            selection=rule,
            trained_with="soft" if attention == "soft" else "sample",
        )
        if start is not None:
            copy_decoder(start, self.captioner)
        if gist is not None:
            decoder.gist = gist
        self.baseline = MovingAverage()
        self.cider_d: CiderD | None = None
        self.captions: dict[int | str, str] = {}

    @property
    def settings(self) -> Any:
        """The arguments, as they are kept in checkpoints."""
        return self.hparams

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.objective(batch)
        if not torch.isfinite(loss.total):
            raise UserError(
                f"the loss is {loss.total.item()} in epoch {self.current_epoch}, batch {batch_idx}, "
                f"photographs {batch.ids}: check their features (`captioner prepare` again), or lower "
                "model.learning_rate"
            )
        self.log("train/loss", loss.total, prog_bar=True, on_step=True, batch_size=len(batch.ids))
        figures = {f"train/{name}": value for name, value in loss.figures.items()}
        self.log_dict(figures, on_step=True, batch_size=len(batch.ids))
        return loss.total

    def objective(self, batch: Batch) -> Loss:
        """The loss of a batch under the objective that is trained."""
        settings = self.settings
        features = drop_regions(self.features(batch), settings.region_dropout)
        if settings.self_critical:
            return self.self_critical(features, batch)
        decoder, smoothing = self.captioner.decoder, settings.label_smoothing
        if settings.attention == "soft":
            transcript = decoder(features, batch.words, batch.lengths, Soft())
            return soft_objective(transcript, settings.doubly_stochastic, smoothing)
        expected = self.coins(features)
        soft = self.read_softly(features, batch) if settings.baseline == "soft" else None
        transcript = decoder(features, batch.words, batch.lengths, ExpectationMixing(expected))
        lambda_r, lambda_e = settings.lambda_r, settings.lambda_e
        return hard_objective(transcript, self.baseline, ~expected, lambda_r, lambda_e, smoothing, soft)

    @torch.no_grad()
    def read_softly(self, features: Tensor, batch: Batch) -> Tensor:
        """log p (M,) of the captions' words with soft attention, under the next reading's dropout."""
        everywhere = torch.ones(len(features), dtype=torch.bool, device=features.device)
        with torch.random.fork_rng([features.device] if features.is_cuda else []):
            rule = ExpectationMixing(everywhere)  # unlike Soft it draws as the next reading will
            return word_log_probs(self.captioner.decoder(features, batch.words, batch.lengths, rule))

    def coins(self, features: Tensor) -> Tensor:
        """Which photographs (B,) take the expectation in place of a draw."""
        return torch.rand(len(features), device=features.device) < self.settings.expectation

    def self_critical(self, features: Tensor, batch: Batch) -> Loss:
        """The loss of captions that the model draws itself.

        The draws must come from the distribution that is trained: with dropout, which differs from reading to
        reading, or words that are never drawn, what is punished never grows rarer, and its likelihood falls
        without end.
        """
        settings, decoder = self.settings, self.captioner.decoder
        n = settings.self_critical
        if settings.attention == "soft":
            draws = sample_captions(decoder, features, Soft(), n)
            again: SelectionRule = Soft()
        else:
            expected = self.coins(features)
            draws = sample_captions(decoder, features, ExpectationMixing(expected), n)
            assert draws.selected is not None
            again = Replay(draws.selected, expected)
        rewards = self.rewards(draws, batch)
        total = rewards["CIDEr-D"]
        if "BLEU" in rewards:
            total = total + settings.bleu_reward * rewards["BLEU"]
        transcript = decoder(features, draws.words, draws.lengths, again).without(Vocabulary.never)
        loss = self_critical_objective(transcript, total)
        return Loss(loss.total, loss.figures | {name: reward.mean() for name, reward in rewards.items()})

    def rewards(self, draws: Draws, batch: Batch) -> dict[str, Tensor]:
        """CIDEr-D and BLEU (B, n) of drawn captions against people's captions of the same photographs."""
        assert self.cider_d is not None
        drawn, people = unpad(draws.words, draws.lengths), unpad(batch.words, batch.lengths)
        measures: dict[str, Reward] = {"CIDEr-D": self.cider_d}
        if self.settings.bleu_reward:
            measures["BLEU"] = bleu
        return {
            name: torch.tensor(list(map(measure, drawn, people)), device=self.device)
            for name, measure in measures.items()
        }

    def features(self, batch: Batch) -> Tensor:
        if batch.features is not None:
            return batch.features
        assert batch.pixels is not None
        features, _ = self.captioner.encoder(batch.pixels)
        return features

    def on_fit_start(self) -> None:
        data: CaptionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        if not data.photographs:
            data.prepared.features(store_key(self.captioner.encoder, self.captioner.preprocess))
        if self.settings.finetune_from is not None:
            if not data.photographs:
                raise UserError(
                    "model.finetune_from trains the encoder, but batches come from the feature store: "
                    "set data.photographs to true"
                )
            if self.trainer.world_size > 1:
                raise UserError("model.finetune_from works in one process: set trainer.devices to 1")
            first, epochs = self.settings.finetune_from, self.trainer.max_epochs
            endless = epochs in (None, -1) or self.trainer.fast_dev_run  # type: ignore[attr-defined]
            if not endless and first >= epochs:
                raise UserError(
                    f"model.finetune_from {first} is after the last of {epochs} epochs, counted from 0: "
                    "set it lower, or null to keep the encoder frozen"
                )
        if self.trainer.world_size > 1:  # or all processes would draw the same regions
            torch.manual_seed(torch.initial_seed() + self.trainer.global_rank)

    def on_train_start(self) -> None:
        if self.settings.self_critical:
            self.cider_d = CiderD(self.trainer.train_dataloader.dataset.encoded)  # type: ignore[union-attr]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["steps"] = self.steps()
        checkpoint["data"] = self.about_data()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same_settings(checkpoint, self.settings, DEFAULTS)
        check_same_data(checkpoint, self.steps(), self.about_data())
        check_whole_epoch(checkpoint)

    def about_data(self) -> dict[str, Any]:
        """What a resumed run must have the same, beside the settings of the model."""
        data: CaptionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        order = {f"data.{name}": getattr(data, name) for name in ("batch_size", "longest", "seed")}
        features = {f"the features' {name}": value for name, value in data.prepared.key.items()}
        return order | {"the vocabulary": self.captioner.vocabulary.fingerprint()} | features

    def on_train_epoch_start(self) -> None:
        finetune = self.settings.finetune_from
        if finetune is not None and self.current_epoch >= finetune:
            self.captioner.encoder.unfreeze()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        regions = Regions(self.features(batch), self.grid)
        captions = self.captioner.decode(regions, beam_size=self.settings.validate_beam)
        self.captions |= dict(zip(batch.ids, (caption.text for caption in captions), strict=True))

    def on_validation_epoch_end(self) -> None:
        captions, self.captions = self.gather(self.captions), {}
        if self.trainer.sanity_checking:
            return
        references = self.trainer.datamodule.references()  # type: ignore[attr-defined]
        asked = {image: references[image] for image in captions}
        scores = score(asked, captions, tokenizer="python", metrics=SCORES)
        for name, value in scores.metrics.items():
            if value is not None:
                self.log(f"val/{name}", value, prog_bar=True, sync_dist=True)

    def gather(self, captions: dict[int | str, str]) -> dict[int | str, str]:
        """The captions of all processes."""
        if self.trainer.world_size == 1:
            return captions
        parts: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, captions)
        return {image: text for part in parts for image, text in part.items()}

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        norm = clip_grad_norm_(self.parameters(), self.settings.gradient_norm)
        self.log("train/gradient_norm", norm, on_step=True)

    def configure_optimizers(self) -> Any:
        rate, share = self.settings.learning_rate, self.settings.encoder_learning_rate
        groups: list[dict[str, Any]] = [{"params": list(self.captioner.decoder.parameters())}]
        rates = [rate]
        if self.settings.finetune_from is not None:
            groups.append({"params": list(self.captioner.encoder.parameters())})
            rates.append(rate * share)
        # With a gradient scaler, a fused optimiser would unscale gradients only after they are clipped.
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        optimizer = torch.optim.Adam(groups, lr=rate, fused=not scaled)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=self.steps())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def steps(self) -> int:
        """The optimiser's steps in the whole run."""
        try:
            return int(self.trainer.estimated_stepping_batches)
        except ValueError as error:  # Lightning's, of an interval longer than an epoch
            raise UserError(f"the trainer cannot do this: {error}") from None


def drop_regions(features: Tensor, share: float) -> Tensor:
    """A random subset of each photograph's regions, (B, L, D) to (B, L', D), at least one.

    Without it a decoder learns thousands of photographs by heart from their mean region.
    """
    batch, regions, size = features.shape
    kept = max(1, round(regions * (1 - share)))
    if kept == regions:
        return features
    order = torch.rand(batch, regions, device=features.device).argsort(1)[:, :kept]
    return features.gather(1, order[..., None].expand(-1, -1, size))


def copy_decoder(model: str | Path, captioner: Captioner) -> None:
    """Start from another model's decoder; the grid may be another, as a decoder reads regions of any number.

    Raises:
        UserError: it has another vocabulary, encoder or preprocessing, or other sizes; what differs is named.
    """
    other = Captioner.load(model, device="cpu")
    if other.vocabulary != captioner.vocabulary:
        raise UserError(
            f"model.start {model} has another vocabulary ({len(other.vocabulary)} words, this data set has "
            f"{len(captioner.vocabulary)}): both must come from the same `captioner prepare`"
        )
    theirs, mine = (features_of_any_grid(model) for model in (other, captioner))
    if theirs != mine:
        raise UserError(
            f"model.start {model} reads features with {differences(theirs, mine)}: "
            "run `captioner prepare` with what it was trained with"
        )
    theirs, mine = other.decoder.sizes, captioner.decoder.sizes
    if theirs != mine:
        settings = ", ".join(f"model.{name} {theirs[name]}" for name in mine if theirs[name] != mine[name])
        how = settings.replace("None", "null")
        raise UserError(f"model.start {model} has {differences(theirs, mine)}: set {how}")
    captioner.decoder.load_state_dict(other.decoder.state_dict())
    captioner.decoder.gist = other.decoder.gist


def features_of_any_grid(captioner: Captioner) -> dict[str, Any]:
    key = store_key(captioner.encoder, captioner.preprocess)
    return {name: value for name, value in key.items() if name != "grid"}


def check_rule(name: str, grid: Grid) -> None:
    """Refuse a rule that selects more regions than the grid has, before the first validation does.

    Raises:
        UserError: it does.
    """
    rule, regions = selection_rule(name), grid[0] * grid[1]
    scores, draws = torch.zeros(1, 1, regions), torch.zeros(1, 1, rule.draws)
    try:
        rule(scores, scores.mT, draws)
    except UserError as error:
        raise UserError(f"model.validate_with {name}: {error}") from None


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no training can follow.

    Raises:
        UserError: a number is out of its bounds, or an unknown selection rule.
    """
    check_all(BOUNDS, settings, "model.")
    if settings["validate_with"] is not None:
        selection_rule(settings["validate_with"])
    if settings["self_critical"] == 1:
        raise UserError("model.self_critical must be 0, or at least 2 draws to compare, not 1")
    if settings["bleu_reward"] and not settings["self_critical"]:
        raise UserError("model.bleu_reward is of captions that are drawn: set model.self_critical, too")


# Of settings that an older checkpoint does not have.
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(CaptioningModule).parameters.items()
    if name != "prepared"
}
