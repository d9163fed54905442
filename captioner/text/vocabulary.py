"""The words that a model can read and write, and their indices."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from captioner.errors import UserError
from captioner.files import read_json, write_json


class Vocabulary:
    """Words and their indices, the special ones first.

    Attributes:
        words: all words; a word's position is its index.
        pad, start, end, unknown: indices of the special words, the same in every vocabulary.
        never: those of them that no caption says.

    Raises:
        ValueError: the special words are not first, or a word is there twice.
    """

    pad, start, end, unknown = range(4)
    never = (pad, start, unknown)
    special = ("<pad>", "<start>", "<end>", "<unk>")

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.index = {word: index for index, word in enumerate(self.words)}
        if self.words[: len(self.special)] != self.special:
            raise ValueError(f"a vocabulary begins with {', '.join(self.special)}")
        if len(self.index) < len(self.words):
            raise ValueError("a word is in the vocabulary twice")

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], min_count: int = 5) -> Vocabulary:
        """The words that occur at least `min_count` times, by falling count, then by alphabet."""
        counts = Counter(word for sentence in sentences for word in sentence)
        for word in cls.special:
            del counts[word]
        frequent = [word for word, count in counts.items() if count >= min_count]
        return cls((*cls.special, *sorted(frequent, key=lambda word: (-counts[word], word))))

    def encode(self, words: Iterable[str]) -> list[int]:
        """Indices of words, without start and end; `unknown` for a word that is not here."""
        return [self.index.get(word, self.unknown) for word in words]

    def decode(self, indices: Iterable[int]) -> list[str]:
        """Words up to the first `end`, without padding and start."""
        return list(self._until_end(indices))

    def _until_end(self, indices: Iterable[int]) -> Iterator[str]:
        for index in indices:
            if index == self.end:
                return
            if index not in (self.pad, self.start):
                yield self.words[index]

    def coverage(self, sentences: Iterable[Sequence[str]]) -> float:
        """Share of the sentences' words that are known, in [0, 1]; 1 where there are no words."""
        known = [word in self.index for sentence in sentences for word in sentence]
        return sum(known) / len(known) if known else 1.0

    def fingerprint(self) -> str:
        """A hash of the words and their order."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write JSON; a file that exists stays whole until the new one is."""
        write_json({"words": self.words}, path, indent=0)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or is not a vocabulary.
        """
        try:
            words = read_json(path)["words"]
            if not all(isinstance(word, str) for word in words):
                raise ValueError("a word is not text")
            return cls(words)
        except OSError as error:
            reason = error.strerror
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"no vocabulary can be read from {path} ({reason}): "
            "give the vocabulary.json that `captioner prepare` wrote"
        )

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"
