import json
from pathlib import Path

import pytest

from captioner.errors import UserError
from captioner.text.vocabulary import Vocabulary

SENTENCES = [
    ["a", "dog", "sees", "a", "cat"],
    ["a", "cat", "sees", "the", "dog"],
    ["the", "end", "<end>", "<end>"],
]


def test_words_by_falling_count_then_alphabet_after_the_special_ones() -> None:
    vocabulary = Vocabulary.build(SENTENCES, min_count=2)
    assert vocabulary.words == (
        "<pad>",
        "<start>",
        "<end>",
        "<unk>",
        "a",
        "cat",
        "dog",
        "sees",
        "the",
    )


def test_order_of_sentences_does_not_matter() -> None:
    assert Vocabulary.build(SENTENCES, 1) == Vocabulary.build(SENTENCES[::-1], 1)


def test_special_indices() -> None:
    vocabulary = Vocabulary.build([])
    named = [vocabulary.pad, vocabulary.start, vocabulary.end, vocabulary.unknown]
    assert [vocabulary.words[i] for i in named] == ["<pad>", "<start>", "<end>", "<unk>"]
    assert named == [0, 1, 2, 3]


def test_unknown_words_are_encoded_as_unknown_and_counted_in_coverage() -> None:
    vocabulary = Vocabulary.build(SENTENCES, min_count=2)
    assert vocabulary.encode(["a", "zzyzx", "dog"]) == [4, 3, 6]
    assert vocabulary.coverage([["a", "zzyzx"], ["dog", "sees"]]) == 0.75
    assert "dog" in vocabulary.index
    assert "zzyzx" not in vocabulary.index


def test_decode_stops_at_the_end_and_leaves_out_padding() -> None:
    vocabulary = Vocabulary.build(SENTENCES, min_count=2)
    assert vocabulary.decode([1, 4, 6, 0, 3, 2, 5, 5]) == ["a", "dog", "<unk>"]
    assert vocabulary.decode([2, 4]) == []


def test_saved_and_loaded_alike_whatever_the_script(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["café", "猫", "'s", "</script>"]], min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    assert [file.name for file in tmp_path.iterdir()] == ["vocabulary.json"]


def test_a_failed_save_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    vocabulary = Vocabulary.build(SENTENCES, min_count=1)
    vocabulary.save(path)
    broken = Vocabulary([*Vocabulary.special, "a"])
    broken.words = (*broken.words, object())  # type: ignore[assignment]
    with pytest.raises(TypeError):
        broken.save(path)
    assert Vocabulary.load(path) == vocabulary


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"words": null}',
        '{"words": ["<pad>", "<start>", "<end>", "<unk>", 5]}',
        '{"words": ["<pad>", "<start>", "<end>", "<unk>", "a", "a"]}',
        '{"words": ["a", "<pad>", "<start>", "<end>", "<unk>"]}',
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        Vocabulary.load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json \(No such file"):
        Vocabulary.load(tmp_path / "absent.json")


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    Vocabulary.build([["dog"]], min_count=1).save(path)
    words = ["<pad>", "<start>", "<end>", "<unk>", "dog"]
    assert json.loads(path.read_text()) == {"words": words}
