"""The rewards of self-critical training, CIDEr-D and BLEU, of word indices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeAlias

from pycocoevalcap.bleu.bleu_scorer import BleuScorer

Words: TypeAlias = Sequence[Hashable]
# Scores of several captions of one image, given people's captions of it.
Reward: TypeAlias = Callable[[Sequence[Words], Sequence[Words]], list[float]]
Vector: TypeAlias = list[tuple[dict[tuple[Hashable, ...], float], float]]

ORDERS = (1, 2, 3, 4)
SIGMA = 6.0


class CiderD:
    """CIDEr-D (Vedantam et al. 2015, arXiv 1411.5726) as pycocoevalcap defines it, for captions one by one.

    How common an n-gram is, is counted once, over a training set.

    Args:
        images: the captions of each image, as words.
    """

    def __init__(self, images: Iterable[Sequence[Words]]) -> None:
        self.images = 0
        self.frequency: Counter[tuple[Hashable, ...]] = Counter()
        for captions in images:
            self.images += 1
            self.frequency.update({ngram for words in captions for ngram in count(words)})
        self.log_images = math.log(max(self.images, 1))

    def __call__(self, candidates: Sequence[Words], references: Sequence[Words]) -> list[float]:
        """Each candidate's score against one image's references, 0 to 10."""
        theirs = [(self.weigh(words), len(words)) for words in references]
        scores = []
        for words in candidates:
            mine = self.weigh(words)
            total = sum(
                similarity(mine, other) * math.exp(-((len(words) - length) ** 2) / (2 * SIGMA**2))
                for other, length in theirs
            )
            scores.append(10 * total / len(theirs))
        return scores

    def weigh(self, words: Words) -> Vector:
        """tf-idf of the n-grams and its norm, by order."""
        weights: list[dict[tuple[Hashable, ...], float]] = [{} for _ in ORDERS]
        for ngram, times in count(words).items():
            idf = self.log_images - math.log(max(1, self.frequency[ngram]))
            weights[len(ngram) - 1][ngram] = times * idf
        return [(order, math.sqrt(sum(weight**2 for weight in order.values()))) for order in weights]


def bleu(candidates: Sequence[Words], references: Sequence[Words]) -> list[float]:
    """Each candidate's BLEU against one image's references, 0 to 1: the mean of BLEU-1 to BLEU-4.

    BLEU-4 alone is 0 for most captions that are scored one by one.
    """
    theirs = [" ".join(map(str, words)) for words in references]
    scorer = BleuScorer()
    for words in candidates:
        scorer += (" ".join(map(str, words)), theirs)
    _, by_order = scorer.compute_score("closest")
    return [sum(orders) / len(orders) for orders in zip(*by_order, strict=True)]


def count(words: Words) -> Counter[tuple[Hashable, ...]]:
    """How often each n-gram of one to four words occurs."""
    return Counter(tuple(words[i : i + n]) for n in ORDERS for i in range(len(words) - n + 1))


def similarity(candidate: Vector, reference: Vector) -> float:
    """Cosine with clipped counts, the mean over the orders."""
    total = 0.0
    for (mine, norm), (theirs, their_norm) in zip(candidate, reference, strict=True):
        dot = sum(
            min(weight, theirs[ngram]) * theirs[ngram] for ngram, weight in mine.items() if ngram in theirs
        )
        norms = norm * their_norm
        total += dot / norms if norms else dot
    return total / len(ORDERS)
