import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner.text.tokenizer import detokenize, tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog runs .", "a dog runs"),
        ("The man's t-shirt isn't red.", "the man 's t-shirt is n't red"),
        ("They don't, can't and cannot stop!", "they do n't ca n't and can not stop"),
        ("the boys' dogs; 'quoted' \"too\"", "the boys dogs quoted too"),
        ("It's 5:30 p.m. at 1,000 U.S. stores", "it 's 5:30 p.m. at 1,000 u.s. stores"),
        ("Mr. Smith at 9 o'clock, #7 and 50%", "mr. smith at 9 o'clock # 7 and 50 %"),
        ("off -- on - a- -b", "off on a b"),
        ("man 's hat, a bird's-eye view", "man 's hat a bird 's eye view"),
        ("a 3.5-foot dog in the 1980's on 9/11", "a 3.5-foot dog in the 1980 's on 9/11"),
    ],
)
def test_words_are_those_of_the_penn_treebank_tokenizer(text: str, words: str) -> None:
    assert tokenize(text) == words.split()


def test_brackets_and_missing_spaces_leave_plain_words() -> None:
    assert tokenize("(a [big] {dog}).The cat,too") == ["a", "big", "dog", "the", "cat", "too"]


def test_curly_apostrophes_are_apostrophes() -> None:
    assert tokenize("the man’s dog doesn’t") == ["the", "man", "'s", "dog", "does", "n't"]


@pytest.mark.parametrize("word", ["café", "são", "кот", "हिन्दी", "猫", "ñandú", "q̃"])
def test_letters_of_any_script_stay_in_one_word(word: str) -> None:
    assert tokenize(f"“{word}” – a {word}…") == [word, "a", word]


def test_composed_and_decomposed_letters_are_one_word() -> None:
    assert tokenize("cafe\u0301") == tokenize("caf\u00e9") == ["caf\u00e9"]


@pytest.mark.parametrize("separator", list("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\u00a0\u200b\ufeff"))
def test_line_separators_part_words_like_a_space(separator: str) -> None:
    assert tokenize(f"a dog{separator}runs") == ["a", "dog", "runs"]


@pytest.mark.parametrize("text", ["", "  ", ". , ! ? -- ...", "''", "( )"])
def test_no_words(text: str) -> None:
    assert tokenize(text) == []


def test_special_words_cannot_be_written_in_a_caption() -> None:
    assert tokenize("<end> <pad>") == ["<", "end", ">", "<", "pad", ">"]


def test_detokenize_joins_what_people_write_as_one() -> None:
    words = ["the", "man", "'s", "dog", "does", "n't", "see", "the", "'s-x", "t-shirt"]
    assert detokenize(words) == "the man's dog doesn't see the 's-x t-shirt"


@given(st.text(alphabet=st.one_of(st.sampled_from("aAnNst'’-. ,5/:émrd"), st.characters())))
def test_words_survive_being_written_and_read_again(text: str) -> None:
    words = tokenize(text)
    assert tokenize(" ".join(words)) == words
    assert all(word == "".join(word.split()) and word for word in words)
