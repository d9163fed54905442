"""Captions to words and back.

The words are those of the Penn Treebank tokenizer that caption metrics use, after its punctuation
is removed: lower case, "man's" is `man 's`, "don't" is `do n't`, "t-shirt" is one word. Unlike it,
brackets leave no word behind, and a full stop without a space parts two words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LETTER = r"[a-z0-9\u0080-\U0010ffff]"  # beyond ASCII `simplify` leaves letters, marks and digits
CLITIC = rf"(?:n't|'(?:s|m|d|re|ve|ll))(?!{LETTER})"
ABBREVIATION = rf"(?<!{LETTER})(?:(?:[a-z]\.){{2,}}|(?:mr|mrs|ms|dr|jr|sr|st|vs)\.)(?!{LETTER})"
WORD = rf"{LETTER}+(?:(?:[-'/]|(?<=\d)[.,:](?=\d)){LETTER}+)*"
SYMBOL = r"[#$%&*+/<=>@]"

SPLIT = re.compile(rf"({CLITIC})|(?<=\bcan)(?=not\b)")
TOKEN = re.compile("|".join([CLITIC, ABBREVIATION, WORD, SYMBOL]))
JOIN = re.compile(rf" (?={CLITIC}(?: |$))")
APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ`´", "'"))


def tokenize(text: str) -> list[str]:
    """The words of a caption, lower case, without punctuation; any white space parts words.

    >>> tokenize("The man's t-shirt isn't red.")
    ['the', 'man', "'s", 't-shirt', 'is', "n't", 'red']
    """
    return TOKEN.findall(SPLIT.sub(r" \1 ", simplify(text)))


def detokenize(words: Iterable[str]) -> str:
    """Words as people write them: `man 's` is "man's"."""
    return JOIN.sub("", " ".join(words))


def simplify(text: str) -> str:
    """Lower case with plain apostrophes; of what is not ASCII, letters, marks and digits only."""
    text = unicodedata.normalize("NFC", text).lower().translate(APOSTROPHES)
    if text.isascii():
        return text
    return "".join(c if c.isascii() or unicodedata.category(c)[0] in "LMN" else " " for c in text)
