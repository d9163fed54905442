"""`CaptioningModule`: trains soft or hard attention, and scores free-running captions after each epoch."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from captioner.attention.estimators import ExpectationMixing, GumbelSoftmax, Reinforce, annealed
from captioner.attention.scoring import region_places
from captioner.attention.selection import Argmax, SelectionRule, Soft
from captioner.captioner import Captioner
from captioner.data.datamodule import Batch, CaptionDataModule, unpad
from captioner.data.features import differences, store_key
from captioner.data.prepared import Prepared
from captioner.decoding.sampling import Draws, sample_captions
from captioner.errors import UserError
from captioner.evaluation.metrics import score
from captioner.model.decoder import Decoder, Memory
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
from captioner.training.settings import check_rule, check_settings, training_rule, without_chance

READINGS: dict[str, SelectionRule] = {"argmax": Argmax(), "soft": Soft()}  # of baselines
SCORES = ("BLEU-4", "CIDEr")  # of each validation, logged as val/BLEU-4 and val/CIDEr


class CaptioningModule(L.LightningModule):
    """The captioner in training.

    Args:
        prepared: a folder that `captioner prepare` wrote: its vocabulary, encoder and preprocessing.
        attention: `soft`, trained by backpropagation, `hard`, which draws one region a word, or another
            selection rule, such as `top:4` or `hard-soft:8`.
        start: a model's folder or name whose decoder to start from; None starts afresh.
        feature_size: what the encoder's features are projected to; None does not project them.
        embedding_size: of the words, and of the deep output.
        hidden_size: of the LSTM.
        attention_size: of the scoring function.
        scoring: `additive`, `dot`, `general`, `concat`, `scaled-dot`, `multi-head:HEADS` or `local:WIDTH`.
        gist: the share that the mean region has in each region's value; None is that of `start`, or 0,
            the paper's model.
        dropout: on embedded words, regions and the deep output.
        region_dropout: the share of each photograph's regions that a training step leaves out, at random.
        learning_rate: the largest of the one-cycle schedule (Smith and Topin 2019, arXiv 1708.07120).
        label_smoothing: of the words' cross-entropy.
        doubly_stochastic: lambda of the soft objective, which all rules without chance have.
        lambda_r: weight of the hard objective's score-function term (REINFORCE).
        lambda_e: weight of the hard objective's entropy term.
        estimator: how gradient passes hard selection: by `reinforce`, or by a relaxed draw, `gumbel`, or one
            that is hard all the same, `straight-through`.
        reward: what a selection answers for: the `whole` caption, as in the paper, or the words `to-go`.
        discount: what each step further on counts in a reward to go; below 1 is biased.
        baseline: what rewards are compared with: the moving `average` of the paper, `none`, what is `learned`
            of the state, of other draws the `leave-one-out` mean, of all draws the `mean`, which is biased,
            or the same caption read with `argmax` or `soft` selection, which costs another reading.
        draws: how often each caption is read, with selections of its own each time.
        temperature: of the relaxed draws in the first step.
        final_temperature: in the last; in between it falls geometrically.
        expectation: probability, per photograph, that a draw is replaced by its expectation.
        gradient_norm: gradients are clipped to this norm.
        self_critical: captions that are drawn of each photograph and learnt from by their CIDEr-D (Rennie et
            al. 2017, arXiv 1612.00563), in place of people's captions; `dropout`, `label_smoothing`,
            `doubly_stochastic`, `lambda_r`, `lambda_e`, `reward`, `baseline` and `draws` have no effect then.
            0 learns from people's.
        bleu_reward: weight of their BLEU, the mean of BLEU-1 to BLEU-4, beside their CIDEr-D.
        finetune_from: the epoch from which the encoder learns too; None keeps it frozen.
        encoder_learning_rate: the encoder's, as a share of `learning_rate`.
        validate_with: selection rule of the validation captions, which becomes the saved model's own; None
            is the rule that is trained, or without its chance: argmax for hard, `top:8` for `hard-soft:8`.
        validate_beam: beam size of the validation captions.
    """

    def __init__(
        self,
        prepared: str,
        attention: str = "soft",
        start: str | None = None,
        feature_size: int | None = 512,
        embedding_size: int = 384,
        hidden_size: int = 384,
        attention_size: int = 384,
        scoring: str = "additive",
        gist: float | None = None,
        dropout: float = 0.5,
        region_dropout: float = 0.0,
        learning_rate: float = 1.5e-3,
        label_smoothing: float = 0.1,
        doubly_stochastic: float = 1.0,
        lambda_r: float = 0.1,
        lambda_e: float = 0.002,
        estimator: Literal["reinforce", "gumbel", "straight-through"] = "reinforce",
        reward: Literal["whole", "to-go"] = "whole",
        discount: float = 1.0,
        baseline: Literal[
            "average", "none", "learned", "leave-one-out", "mean", "argmax", "soft"
        ] = "average",
        draws: int = 1,
        temperature: float = 1.0,
        final_temperature: float = 0.5,
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
            scoring,
            0.0 if self_critical else dropout,
        )
        self.rule = training_rule(attention)
        rule = validate_with or without_chance(self.rule).name
        regions = self.grid[0] * self.grid[1]
        check_rule("model.attention", self.rule.name, kept_regions(regions, region_dropout))
        check_rule("model.validate_with", rule, regions)
        self.captioner = Captioner(
            encoder,
            decoder,
            data.vocabulary,
            data.preprocess,
            selection=rule,
            trained_with=self.rule.name,
        )
        if start is not None:
            copy_decoder(start, self.captioner)
        if gist is not None:
            decoder.gist = gist
        self.reinforce = Reinforce(reward, baseline, discount, hidden_size)
        self.progress = 0.0  # of the run, from 0 to 1
        self.cider_d: CiderD | None = None
        self.captions: dict[int | str, str] = {}

    @property
    def settings(self) -> Any:
        """The arguments, as they are kept in checkpoints."""
        return self.hparams

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.progress = self.global_step / self.steps()

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
        settings, decoder = self.settings, self.captioner.decoder
        memory = self.read(batch)
        if settings.self_critical:
            return self.self_critical(memory, batch)
        words, lengths = batch.words, batch.lengths
        if not self.rule.draws:
            transcript = decoder(memory, words, lengths, self.rule)
            return soft_objective(transcript, settings.doubly_stochastic, settings.label_smoothing)
        words, lengths = (tensor.repeat_interleave(settings.draws, 1) for tensor in (words, lengths))
        rule = self.mixed_rule(memory)
        u, reading = None, None
        if rule.draws:
            # Before the readings, so that all have the same dropout.
            heads = decoder.scoring.heads
            u = torch.rand(*lengths.shape, int(lengths.max()), heads * rule.draws, device=lengths.device)
            if settings.baseline in READINGS:
                reading = self.reading(READINGS[settings.baseline], memory, words, lengths)
        return hard_objective(
            decoder(memory, words, lengths, rule, u),
            self.reinforce,
            ~rule.expected,
            settings.lambda_r,
            settings.lambda_e,
            settings.label_smoothing,
            settings.draws,
            reading,
        )

    def read(self, batch: Batch) -> Memory:
        """What the decoder reads of a batch, without the regions that are dropped."""
        features = self.features(batch)
        places = region_places(*self.grid).to(features)
        return self.captioner.decoder.read(*drop_regions(features, places, self.settings.region_dropout))

    @torch.no_grad()
    def reading(self, rule: SelectionRule, memory: Memory, words: Tensor, lengths: Tensor) -> Tensor:
        """log p (B, n, T) of words as read with a rule without chance, under the next reading's dropout."""
        with torch.random.fork_rng([words.device] if words.is_cuda else []):
            transcript = self.captioner.decoder(memory, words, lengths, rule)
        return transcript.padded(word_log_probs(transcript))

    def mixed_rule(self, memory: Memory) -> ExpectationMixing:
        """The rule that is trained, but for the photographs of a coin their expectation."""
        settings, rule = self.settings, self.rule
        if settings.estimator != "reinforce":
            temperature = annealed(settings.temperature, settings.final_temperature, self.progress)
            rule = GumbelSoftmax(temperature, settings.estimator == "straight-through")
        coins = torch.rand(len(memory), device=memory.mean.device) < settings.expectation
        return ExpectationMixing(coins, rule)

    def self_critical(self, memory: Memory, batch: Batch) -> Loss:
        """The loss of captions that the model draws itself.

        The draws must come from the distribution that is trained: with dropout, which differs from reading to
        reading, or words that are never drawn, what is punished never grows rarer, and its likelihood falls
        without end.
        """
        settings, decoder = self.settings, self.captioner.decoder
        rule = self.mixed_rule(memory) if self.rule.draws else self.rule
        draws = sample_captions(decoder, memory, rule, settings.self_critical)
        rewards = self.rewards(draws, batch)
        total = rewards["CIDEr-D"]
        if "BLEU" in rewards:
            total = total + settings.bleu_reward * rewards["BLEU"]
        transcript = decoder(memory, draws.words, draws.lengths, rule, draws.u).without(Vocabulary.never)
        loss = self_critical_objective(transcript, total)
        return Loss(loss.total, loss.figures | {name: reward.mean() for name, reward in rewards.items()})

    @torch.enable_grad()
    def attention_gradient(self, batch: Batch, seed: int) -> Tensor:
        """The gradient (P,) of the attention's parameters for a batch; leaves no trace in the run.

        Args:
            seed: of the selections and the dropout.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        average = {name: value.clone() for name, value in self.reinforce.state_dict().items()}
        parameters = list(self.captioner.decoder.scoring.parameters())
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            loss = self.objective(batch).total
        self.reinforce.load_state_dict(average)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(parameter) if part is None else part).flatten().float()
                for parameter, part in zip(parameters, parts, strict=True)
            ]
        )

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
        # A learned baseline has gradients of another scale, and none of the captioner's.
        norm = clip_grad_norm_(self.captioner.parameters(), self.settings.gradient_norm)
        self.log("train/gradient_norm", norm, on_step=True)

    def configure_optimizers(self) -> Any:
        rate, share = self.settings.learning_rate, self.settings.encoder_learning_rate
        learning = [*self.captioner.decoder.parameters(), *self.reinforce.parameters()]
        groups: list[dict[str, Any]] = [{"params": learning}]
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


def drop_regions(features: Tensor, places: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """A random subset of each photograph's regions (B, L, D) at places (L, 2), at least one.

    Without it a decoder learns thousands of photographs by heart from their mean region.

    Returns:
        regions (B, L', D) and their places (B, L', 2).
    """
    batch, regions, size = features.shape
    kept = kept_regions(regions, share)
    if kept == regions:
        return features, places
    order = torch.rand(batch, regions, device=features.device).argsort(1)[:, :kept]
    return features.gather(1, order[..., None].expand(-1, -1, size)), places[order]


def kept_regions(regions: int, share: float) -> int:
    return max(1, round(regions * (1 - share)))


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
    theirs, mine = other.decoder.architecture, captioner.decoder.architecture
    if theirs != mine:
        settings = ", ".join(f"model.{name} {theirs[name]}" for name in mine if theirs[name] != mine[name])
        how = settings.replace("None", "null")
        raise UserError(f"model.start {model} has {differences(theirs, mine)}: set {how}")
    captioner.decoder.load_state_dict(other.decoder.state_dict())
    captioner.decoder.gist = other.decoder.gist


def features_of_any_grid(captioner: Captioner) -> dict[str, Any]:
    key = store_key(captioner.encoder, captioner.preprocess)
    return {name: value for name, value in key.items() if name != "grid"}


# Of settings that an older checkpoint does not have.
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(CaptioningModule).parameters.items()
    if name != "prepared"
}
