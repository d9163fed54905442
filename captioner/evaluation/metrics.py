"""BLEU, METEOR, ROUGE-L, CIDEr and SPICE as pycocoevalcap defines them.

Scores are fractions, as pycocoevalcap gives them. They can only be compared between captions that
were tokenized alike: the Penn Treebank tokenizer is the standard.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Literal, TypeAlias, TypeVar

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioner import __version__
from captioner.errors import UserError
from captioner.evaluation import java
from captioner.evaluation.java import JavaError, java_missing
from captioner.text.tokenizer import tokenize

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")

Id = TypeVar("Id", bound=Hashable)
Tokenizer: TypeAlias = Literal["ptb", "python"]
Sentences: TypeAlias = dict[Id, list[str]]
Scored: TypeAlias = dict[str, tuple[float, Sequence[float]]]


@dataclass(frozen=True)
class Scores:
    """Scores of a set of captions.

    Attributes:
        metrics: each metric of the whole set, a fraction; None where it was skipped.
        skipped: why a metric was skipped.
        warnings: what makes a number mean less than it seems to.
        versions: what made the numbers.
        per_image: each metric that was not skipped, by image.
    """

    metrics: dict[str, float | None]
    skipped: dict[str, str]
    warnings: list[str]
    versions: dict[str, str]
    per_image: dict[str, dict[Any, float]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the scores of single images, as plain types."""
        result = asdict(self)
        del result["per_image"]
        return result


def score(
    references: Mapping[Id, Sequence[str]],
    captions: Mapping[Id, str],
    tokenizer: Tokenizer = "ptb",
    metrics: Sequence[str] | None = None,
) -> Scores:
    """Score one caption an image against that image's references.

    METEOR and SPICE are skipped where Java or SPICE's models are missing, or fail.

    Args:
        references: for each image, one or more captions that people wrote.
        captions: for each of the same images, the caption to score; it may be empty.
        tokenizer: `ptb` is the standard and needs Java; `python` is close to it.
        metrics: some of `METRICS`; None is all.

    Raises:
        UserError: the images differ, references are missing, a metric or the tokenizer is unknown,
            or the tokenizer failed.
    """
    return score_runs(references, [captions], tokenizer, metrics)[0]


def score_runs(
    references: Mapping[Id, Sequence[str]],
    runs: Sequence[Mapping[Id, str]],
    tokenizer: Tokenizer = "ptb",
    metrics: Sequence[str] | None = None,
) -> list[Scores]:
    """Score several captions an image, each run by itself as `score` does, in less time."""
    wanted = check_metrics(metrics)
    for captions in runs:
        check_images(references, captions)
    gts, all_res = tokenized(references, runs, tokenizer)
    if not any(words for sentences in gts.values() for words in sentences):
        raise UserError(f"no reference of the {len(gts)} images has a word: check the captions file")

    found: list[Scored] = [{} for _ in runs]
    skipped: dict[str, str] = {}
    for names, scorer in SCORERS.items():
        asked = [name for name in names if name in wanted]
        if asked:
            try:
                for scores, new in zip(found, scorer(gts, all_res), strict=True):
                    scores |= {name: new[name] for name in asked}
            except JavaError as error:
                skipped |= dict.fromkeys(asked, str(error))
    return [
        Scores(
            metrics={name: float(scores[name][0]) if name in scores else None for name in wanted},
            skipped=dict(skipped),
            warnings=warnings(res, scores),
            versions=versions(),
            per_image={
                name: dict(zip(gts, map(float, each), strict=True)) for name, (_, each) in scores.items()
            },
        )
        for scores, res in zip(found, all_res, strict=True)
    ]


def check_metrics(metrics: Sequence[str] | None) -> list[str]:
    """The metrics asked for, in the order of `METRICS`."""
    unknown = [name for name in metrics or () if name not in METRICS]
    if unknown:
        raise UserError(f"unknown metric {unknown[0]!r}: choose from {', '.join(METRICS)}")
    return [name for name in METRICS if metrics is None or name in metrics]


def check_images(references: Mapping[Id, Sequence[str]], captions: Mapping[Id, str]) -> None:
    """Both sides have the same images, and every image has a reference."""
    faults = {
        "have references but no caption": [i for i in references if i not in captions],
        "have a caption but no references": [i for i in captions if not references.get(i)],
    }
    for fault, images in faults.items():
        if images:
            first = ", ".join(map(repr, images[:3]))
            raise UserError(f"{len(images)} images {fault} (first: {first}): give both for the same images")
    if not captions:
        raise UserError("there are no captions to score: choose a split that has images")


def tokenized(
    references: Mapping[Id, Sequence[str]], runs: Sequence[Mapping[Id, str]], tokenizer: Tokenizer
) -> tuple[Sentences[Id], list[Sentences[Id]]]:
    """References and each run's captions as scorers take them: words joined by spaces, in lists."""
    said = [text for texts in references.values() for text in texts]
    said += [captions[image] for captions in runs for image in references]
    if tokenizer == "ptb":
        if reason := java_missing():
            raise UserError(f"{reason}: install Java, or use the python tokenizer")
        try:
            lines = iter(java.ptb_tokenize(said))
        except JavaError as error:
            reason = f"the PTB tokenizer failed: {error}"
            raise UserError(f"{reason}: mend Java, or use the python tokenizer") from None
    elif tokenizer == "python":
        lines = (" ".join(tokenize(text)) for text in said)
    else:
        raise UserError(f"unknown tokenizer {tokenizer!r}: choose ptb or python")
    gts = {image: [next(lines) for _ in texts] for image, texts in references.items()}
    return gts, [{image: [next(lines)] for image in references} for _ in runs]


def bleu(gts: Sentences[Id], runs: Sequence[Sentences[Id]]) -> list[Scored]:
    scores = [Bleu(4).compute_score(gts, res, verbose=0) for res in runs]
    return [{f"BLEU-{n + 1}": (totals[n], each[n]) for n in range(4)} for totals, each in scores]


def meteor(gts: Sentences[Id], runs: Sequence[Sentences[Id]]) -> list[Scored]:
    if reason := java_missing():
        raise JavaError(reason)
    scores = java.meteor(list(gts.values()), [texts_of(res) for res in runs])
    return [{"METEOR": pair} for pair in scores]


def rouge_l(gts: Sentences[Id], runs: Sequence[Sentences[Id]]) -> list[Scored]:
    return [{"ROUGE-L": Rouge().compute_score(gts, res)} for res in runs]


def cider(gts: Sentences[Id], runs: Sequence[Sentences[Id]]) -> list[Scored]:
    return [{"CIDEr": Cider().compute_score(gts, res)} for res in runs]


def spice(gts: Sentences[Id], runs: Sequence[Sentences[Id]]) -> list[Scored]:
    if reason := java_missing() or java.spice_missing():
        raise JavaError(reason)
    return [{"SPICE": java.spice(list(gts.values()), texts_of(res))} for res in runs]


def texts_of(res: Sentences[Id]) -> list[str]:
    return [text for (text,) in res.values()]


SCORERS: dict[tuple[str, ...], Callable[[Sentences[Any], list[Sentences[Any]]], list[Scored]]] = {
    METRICS[:4]: bleu,
    ("METEOR",): meteor,
    ("ROUGE-L",): rouge_l,
    ("CIDEr",): cider,
    ("SPICE",): spice,
}


def warnings(res: Sentences[Id], found: Scored) -> list[str]:
    """What a reader of the numbers should know."""
    texts = texts_of(res)
    notes = []
    if "CIDEr" in found and len(texts) == 1:
        notes.append("CIDEr is 0 on a single image: it weighs words by how few images have them")
    if empty := texts.count(""):
        notes.append(f"{empty} of {len(texts)} captions have no words")
    if len(texts) > 1 and len(set(texts)) == 1:
        notes.append(f"all {len(texts)} captions are the same: {texts[0]!r}")
    return notes


def versions() -> dict[str, str]:
    """Versions of what scores depend on."""
    packages = {name: version(name) for name in ("pycocoevalcap", "torch")}
    return {"captioner": __version__, **packages, "python": platform.python_version()}
