import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider

from captioner.training.reward import CiderD, bleu

REFERENCES = {
    0: ["a brown dog runs in the grass", "a dog is running outside", "the dog runs"],
    1: ["two children play with a red ball", "kids play ball in the grass"],
    2: ["a man rides a bike", "a man on a bike rides down a hill in the sun", "a man"],
}
CANDIDATES = {
    0: "a dog runs in the grass",
    1: "a dog runs with a red ball ball ball",
    2: "zebras",
}


def test_it_is_pycocoevalcaps_cider():
    _, expected = Cider().compute_score(REFERENCES, {image: [text] for image, text in CANDIDATES.items()})
    reward = CiderD([text.split() for text in texts] for texts in REFERENCES.values())
    for image, text in CANDIDATES.items():
        (mine,) = reward([text.split()], [reference.split() for reference in REFERENCES[image]])
        assert mine == pytest.approx(expected[image], abs=1e-9)
    assert expected[0] > expected[1] > expected[2] == 0


def test_a_caption_that_breaks_off_is_worth_less_than_a_whole_one():
    """The end token is a word of both: without it `a dog runs in the` would lose next to nothing."""
    end = 2
    images = [[[4, 5, 6, end]], [[4, 7, 8, end]], [[9, 5, end]]]
    reward = CiderD(images)
    whole, broken = reward([[4, 5, 6, end], [4, 5, 6]], images[0])
    assert whole > 1.3 * broken > 0


def test_an_empty_caption_is_worth_nothing():
    assert CiderD([[["a"]], [["b"]]])([[]], [["a"]]) == [0.0]


def test_bleu_is_the_mean_of_four_orders_of_a_caption_alone():
    for image, text in CANDIDATES.items():
        _, expected = Bleu(4).compute_score({image: REFERENCES[image]}, {image: [text]}, verbose=0)
        _, mine = bleu([["zebras"], text.split()], [words.split() for words in REFERENCES[image]])
        assert mine == pytest.approx(sum(scores[0] for scores in expected) / 4, rel=1e-6)


def test_bleu_counts_by_hand():
    """Four of five words, three of four pairs, two of three triples, one of two fours."""
    orders = [(4 / 5), (4 / 5 * 3 / 4) ** (1 / 2), (4 / 5 * 3 / 4 * 2 / 3) ** (1 / 3), (1 / 5) ** (1 / 4)]
    assert bleu([[1, 2, 3, 4, 9]], [[1, 2, 3, 4, 5], [7, 7]]) == [pytest.approx(sum(orders) / 4)]
    assert bleu([[]], [[1, 2]]) == [pytest.approx(0, abs=1e-6)]
