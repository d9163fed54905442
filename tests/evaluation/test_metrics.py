import math
import platform
from importlib.metadata import version

import pytest

import captioner
from captioner.errors import UserError
from captioner.evaluation.metrics import METRICS, score, score_runs

# Three captions whose n-grams are counted by hand below.
REFERENCES = {
    "mat": ["The cat is on the mat.", "There is a cat on the mat"],
    "dog": ["A dog runs fast"],
    "horse": ["A man rides a horse on a beach"],
}
CAPTIONS = {
    "mat": "the cat sat on the mat",
    "dog": "a dog runs",
    "horse": "a man rides a red horse",
}


@pytest.fixture(scope="module")
def scores():
    return score(REFERENCES, CAPTIONS, "python", ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L"])


def test_bleu_is_that_of_the_whole_set(scores):
    # Matches of all n-grams: mat 5/6 3/5 1/4 0/3, dog 3/3 2/2 1/1 0/0, horse 5/6 3/5 2/4 1/3.
    precisions = [13 / 15, 8 / 12, 4 / 9, 1 / 6]
    brevity = math.exp(1 - 18 / 15)  # 6 + 3 + 6 words against the nearest references' 6 + 4 + 8
    for n in range(1, 5):
        expected = brevity * math.prod(precisions[:n]) ** (1 / n)
        assert scores.metrics[f"BLEU-{n}"] == pytest.approx(expected, rel=1e-6)


def test_bleu_of_each_image(scores):
    assert scores.per_image["BLEU-2"] == pytest.approx(
        {
            "mat": math.sqrt(5 / 6 * 3 / 5),
            "dog": math.exp(1 - 4 / 3),
            "horse": math.exp(1 - 8 / 6) * math.sqrt(5 / 6 * 3 / 5),
        },
        rel=1e-6,
    )


def test_rouge_l_is_the_mean_f_score_of_the_longest_common_subsequence(scores):
    def f_score(precision, recall):
        return 2.44 * precision * recall / (recall + 1.44 * precision)

    expected = {
        "mat": f_score(5 / 6, 5 / 6),  # the cat on the mat
        "dog": f_score(3 / 3, 3 / 4),
        "horse": f_score(5 / 6, 5 / 8),  # a man rides a horse
    }
    assert scores.per_image["ROUGE-L"] == pytest.approx(expected)
    assert scores.metrics["ROUGE-L"] == pytest.approx(sum(expected.values()) / 3)


def test_cider_of_distinct_images():
    # Every n-gram is in one image, so all weigh the same and CIDEr is ten times the mean cosine.
    references = {1: ["one black dog runs fast"], 2: ["two white cats sleep here"]}
    captions = {1: "one black dog jumps fast", 2: "Two white cats sleep here!"}
    scores = score(references, captions, "python", ["CIDEr"])
    cosines = [4 / 5, 2 / 4, 1 / 3, 0 / 2]
    assert scores.per_image["CIDEr"] == pytest.approx({1: 10 * sum(cosines) / 4, 2: 10})
    assert scores.metrics["CIDEr"] == pytest.approx((10 * sum(cosines) / 4 + 10) / 2)
    assert scores.warnings == []


def test_cider_of_one_image_is_warned_of():
    scores = score({1: ["a dog runs"]}, {1: "a dog runs"}, "python", ["CIDEr", "BLEU-1"])
    assert scores.metrics["CIDEr"] == 0
    assert scores.metrics["BLEU-1"] == pytest.approx(1)
    assert scores.warnings == ["CIDEr is 0 on a single image: it weighs words by how few images have them"]


def test_empty_and_constant_captions_are_warned_of():
    captions = dict.fromkeys(REFERENCES, "...")
    scores = score(REFERENCES, captions, "python", [*METRICS[:4], "ROUGE-L", "CIDEr"])
    assert set(scores.metrics.values()) == {0}
    assert scores.warnings == ["3 of 3 captions have no words", "all 3 captions are the same: ''"]


def test_without_java_the_rest_is_scored(no_java):
    scores = score(REFERENCES, CAPTIONS, "python")
    assert tuple(scores.metrics) == METRICS
    assert scores.metrics["BLEU-1"] == pytest.approx(math.exp(1 - 18 / 15) * 13 / 15)
    reason = "Java is not installed: there is no `java` on the PATH"
    assert scores.skipped == {"METEOR": reason, "SPICE": reason}
    assert {name for name, value in scores.metrics.items() if value is None} == {"METEOR", "SPICE"}
    assert set(scores.per_image) == set(METRICS) - {"METEOR", "SPICE"}


def test_without_java_the_standard_tokenizer_is_refused(no_java):
    with pytest.raises(UserError, match=r"Java is not installed.*use the python tokenizer"):
        score(REFERENCES, CAPTIONS)


def test_a_meteor_that_dies_costs_only_meteor(fake_java):
    fake_java('case "$*" in *-version*) exit 0;; esac; echo "Exception: no heap" >&2; exit 1')
    scores = score(REFERENCES, CAPTIONS, "python", ["BLEU-1", "METEOR"])
    assert scores.skipped == {"METEOR": "METEOR failed: Exception: no heap"}
    assert scores.metrics["BLEU-1"] == pytest.approx(math.exp(1 - 18 / 15) * 13 / 15)


def test_a_tokenizer_that_dies_is_one_line(fake_java):
    fake_java('case "$*" in *-version*) exit 0;; esac; echo "Exception: no heap" >&2; exit 1')
    with pytest.raises(UserError, match=r"^the PTB tokenizer failed: Exception: no heap: [^\n]*$"):
        score(REFERENCES, CAPTIONS)


def test_metrics_come_in_their_order_whatever_the_question():
    scores = score(REFERENCES, CAPTIONS, "python", ["ROUGE-L", "BLEU-3"])
    assert list(scores.metrics) == ["BLEU-3", "ROUGE-L"]
    assert set(scores.per_image) == {"BLEU-3", "ROUGE-L"}


def test_images_may_come_in_any_order(scores):
    backwards = dict(reversed(CAPTIONS.items()))
    again = score(REFERENCES, backwards, "python", list(scores.metrics))
    assert again.per_image == scores.per_image


def test_runs_are_scored_each_by_itself(scores):
    others = {"dog": "a cat", "horse": "", "mat": "the cat is on the mat"}
    names = [*scores.metrics]
    first, second = score_runs(REFERENCES, [CAPTIONS, others], "python", names)
    assert first == scores
    assert second == score(REFERENCES, others, "python", names)
    assert second.per_image["BLEU-1"]["mat"] == pytest.approx(1)
    assert (first.warnings, second.warnings) == ([], ["1 of 3 captions have no words"])


def test_what_made_the_numbers_is_told(scores):
    result = scores.to_dict()
    assert set(result) == {"metrics", "skipped", "warnings", "versions"}
    assert result["versions"] == {
        "captioner": captioner.__version__,
        "pycocoevalcap": version("pycocoevalcap"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


ONE = {1: ["a dog"]}


@pytest.mark.parametrize(
    ("references", "captions", "arguments", "message"),
    [
        (
            {image: ["a dog"] for image in range(5)},
            {0: "a dog"},
            {},
            r"4 images have references but no caption \(first: 1, 2, 3\)",
        ),
        (
            ONE,
            {1: "a", "x": "b"},
            {},
            r"1 images have a caption but no references \(first: 'x'\)",
        ),
        ({1: []}, {1: "a"}, {}, r"1 images have a caption but no references \(first: 1\)"),
        ({}, {}, {}, "no captions to score"),
        ({1: ["..."]}, {1: "a"}, {}, "no reference of the 1 images has a word"),
        (ONE, {1: "a"}, {"metrics": ["BLEU"]}, "unknown metric 'BLEU': choose from BLEU-1"),
        (ONE, {1: "a"}, {"tokenizer": "nltk"}, "unknown tokenizer 'nltk': choose ptb or python"),
    ],
)
def test_mistakes_are_one_line(references, captions, arguments, message):
    with pytest.raises(UserError, match=message) as error:
        score(references, captions, **{"tokenizer": "python", **arguments})
    assert "\n" not in str(error.value)
