"""The same model under several selection rules: what changes when a region is sampled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from captioner.attention.selection import selection_rule
from captioner.captioner import Captioner
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.evaluation.generate import generate, references, split_images
from captioner.evaluation.metrics import Scores, Tokenizer, score


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
        seconds_per_image: mean wall time of reading features and decoding them.
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

    Args:
        seeds: of random rules.
        limit: only the first so many images of the split.

    Raises:
        UserError: see `generate` and `score`.
    """
    if not seeds or not selections:
        raise UserError("nothing to compare: give at least one selection rule and one seed")
    gold = references(split_images(prepared, split, limit))
    rules = [selection_rule(name) for name in dict.fromkeys(selections)]
    # The first call of all is slow, whatever the rule: it must not count against one of them.
    generate(captioner, prepared, split, rules[0].name, beam_size, limit=1)
    rows: list[Row] = []
    scored: dict[str, list[Scores]] = {}
    for rule in rules:
        used = list(seeds) if rule.stochastic else list(seeds)[:1]
        runs = scored[rule.name] = []
        waited = 0.0
        for seed in used:
            started = time.perf_counter()
            captions = generate(captioner, prepared, split, rule.name, beam_size, seed, batch_size, limit)
            waited += time.perf_counter() - started
            texts = {image: caption.text for image, caption in captions.items()}
            runs.append(score(gold, texts, tokenizer, metrics))
        figures = [run.metrics for run in runs]
        seconds = waited / (len(used) * len(gold))
        rows.append(Row(rule.name, used, spreads(figures, rule.stochastic), seconds, figures))
    every = [(name, run) for name, runs in scored.items() for run in runs]
    return Comparison(
        rows=rows,
        skipped={name: why for _, run in every for name, why in run.skipped.items()},
        warnings=list(dict.fromkeys(f"{name}: {note}" for name, run in every for note in run.warnings)),
        versions=every[0][1].versions,
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
