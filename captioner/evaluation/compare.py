"""The same model under several selection rules: what changes when a region is sampled."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from captioner.attention.selection import selection_rule
from captioner.captioner import Captioner
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.evaluation.generate import RegionSource, caption_images, references, split_images
from captioner.evaluation.grounding import pointing
from captioner.evaluation.metrics import Tokenizer, score_runs


@dataclass(frozen=True)
class Spread:
    """A figure over seeds.

    Attributes:
        mean: over the seeds.
        std: sample standard deviation over the seeds; 0 where nothing is random, None for one seed.
    """

    mean: float
    std: float | None


@dataclass(frozen=True)
class Row:
    """One selection rule.

    Attributes:
        selection: its name.
        seeds: those it was run with; one where the rule is deterministic.
        metrics: each metric that was not skipped.
        seconds_per_image: mean wall time of decoding, with its features in memory.
        runs: each seed's metrics.
    """

    selection: str
    seeds: list[int]
    metrics: dict[str, Spread]
    seconds_per_image: float
    runs: list[dict[str, float | None]]


@dataclass(frozen=True)
class Comparison:
    """Rows in the order asked for; skipped, warnings and versions as in `Scores`."""

    rows: list[Row]
    skipped: dict[str, str]
    warnings: list[str]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


def compare(
    captioner: Captioner,
    prepared: Prepared,
    split: str = "test",
    selections: Sequence[str] = ("soft", "sample", "argmax"),
    seeds: Sequence[int] = range(5),
    beam_size: int = 1,
    batch_size: int = 64,
    limit: int | None = None,
    tokenizer: Tokenizer = "ptb",
    metrics: Sequence[str] | None = None,
) -> Comparison:
    """Caption and score a split under each rule; random rules once a seed, the others once.

    Where it is known what lies where, as in the shapes, `pointing` is among the metrics.

    Args:
        seeds: of random rules.
        limit: only the first so many images of the split.

    Raises:
        UserError: see `generate` and `score`.
    """
    if not seeds or not selections:
        raise UserError("nothing to compare: give at least one selection rule and one seed")
    images = split_images(prepared, split, limit)
    gold = references(images)
    rules = list(dict.fromkeys(map(selection_rule, selections)))
    source = RegionSource.open(captioner, prepared)
    # The first call of all is slow, whatever the rule: it must not count against one of them.
    caption_images(source, images[:1], selection=rules[0].name, beam_size=beam_size)
    asked = [(rule, seed) for rule in rules for seed in (seeds if rule.draws else seeds[:1])]
    texts, seconds = [], []
    aims: list[float | None] = []
    for rule, seed in asked:
        run = caption_images(source, images, batch_size, selection=rule.name, beam_size=beam_size, seed=seed)
        seconds.append(run.seconds / len(images))
        texts.append({image: caption.text for image, caption in run.captions.items()})
        aims.append(pointing(run.captions, images, prepared))
    boxed = any(aim is not None for aim in aims)  # a run may have named nothing that is there
    scores = score_runs(gold, texts, tokenizer, metrics)
    notes = [
        f"{rule.name}: {n}" for (rule, _), result in zip(asked, scores, strict=True) for n in result.warnings
    ]
    rows = []
    for rule in rules:
        mine = [i for i, (other, _) in enumerate(asked) if other is rule]
        figures = [scores[i].metrics | ({"pointing": aims[i]} if boxed else {}) for i in mine]
        rows.append(
            Row(
                selection=rule.name,
                seeds=[asked[i][1] for i in mine],
                metrics=spreads(figures, stochastic=rule.draws > 0),
                seconds_per_image=statistics.fmean(seconds[i] for i in mine),
                runs=figures,
            )
        )
    return Comparison(
        rows, scores[0].skipped, warnings=list(dict.fromkeys(notes)), versions=scores[0].versions
    )


def spreads(runs: Sequence[dict[str, float | None]], stochastic: bool) -> dict[str, Spread]:
    """Mean and spread of each metric that no run skipped."""
    found = {}
    for name in runs[0]:
        values = [value for run in runs if (value := run[name]) is not None]
        if len(values) == len(runs):
            alone = None if stochastic else 0.0
            std = statistics.stdev(values) if len(values) > 1 else alone
            found[name] = Spread(statistics.fmean(values), std)
    return found
