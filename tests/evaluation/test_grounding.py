from dataclasses import replace

import pytest
import torch
from PIL import Image

from captioner.caption import Caption
from captioner.data.captions import CaptionedImage, CaptionSet
from captioner.data.images import Preprocess
from captioner.data.prepared import Prepared
from captioner.evaluation.grounding import pointing
from captioner.text.vocabulary import Vocabulary


@pytest.fixture
def prepared(tmp_path):
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    vocabulary = Vocabulary(Vocabulary.special)
    return Prepared(tmp_path, CaptionSet([]), vocabulary, {}, Preprocess((64, 64)), tmp_path, {})


IMAGE = CaptionedImage(
    1,
    "a.png",
    ("-",),
    boxes=({"word": "circle", "box": [0, 0, 20, 20]}, {"word": "square", "box": [40, 20, 60, 40]}),
)


def caption(words, selected, gate, weights=None):
    steps = len(words)
    return Caption(
        text=" ".join(words),
        words=words,
        log_prob=0.0,
        word_log_probs=torch.zeros(steps),
        selection="argmax",
        grid=(2, 4),
        weights=torch.zeros(steps, 8) if weights is None else weights,
        selected=None if selected is None else torch.tensor(selected)[:, None],
        gate=torch.tensor(gate),
    )


def test_hits_are_selected_cells_whose_centre_lies_in_the_nouns_box(prepared):
    """Cells of 20 x 20 pixels: 0 is on the circle, 6 on the square."""
    words = ["circle", "above", "square"]
    assert pointing({1: caption(words, [0, 3, 6], [1.0, 0.0, 1.0])}, [IMAGE], prepared) == 1.0
    assert pointing({1: caption(words, [0, 3, 5], [1.0, 0.0, 1.0])}, [IMAGE], prepared) == 0.5
    assert pointing({1: caption(words, [6, 3, 0], [1.0, 0.0, 1.0])}, [IMAGE], prepared) == 0.0


def test_a_cell_of_padding_is_no_hit(prepared, tmp_path):
    """The photograph is 80 x 40: padded to a square, the first and last of four rows hold none of it."""
    padded = replace(prepared, preprocess=Preprocess((64, 64), "pad"))
    image = replace(IMAGE, boxes=({"word": "circle", "box": [0, 0, 80, 40]},))
    for selected, expected in ((0, 0.0), (1, 1.0), (2, 1.0), (3, 0.0)):
        looked = replace(caption(["circle"], [selected], [1.0]), grid=(4, 1))
        assert pointing({1: looked}, [image], padded) == expected


def test_the_look_that_counted_most_in_the_phrase_is_the_one(prepared):
    words = ["a", "red", "circle"]
    assert pointing({1: caption(words, [7, 0, 7], [0.2, 0.9, 0.1])}, [IMAGE], prepared) == 1.0
    assert pointing({1: caption(words, [0, 7, 0], [0.2, 0.9, 0.1])}, [IMAGE], prepared) == 0.0
    longer = ["is", "a", "red", "circle"]
    assert pointing({1: caption(longer, [0, 7, 7, 7], [0.9, 0.2, 0.1, 0.1])}, [IMAGE], prepared) == 0.0


def test_soft_attention_points_where_its_weight_is_largest(prepared):
    weights = torch.zeros(1, 8)
    weights[0, 6] = 0.6
    assert pointing({1: caption(["square"], None, [1.0], weights)}, [IMAGE], prepared) == 1.0


def test_without_boxes_or_nouns_there_is_nothing_to_measure(prepared):
    assert pointing({1: caption(["dog"], [0], [1.0])}, [IMAGE], prepared) is None
    plain = CaptionedImage(1, "a.png", ("-",))
    assert pointing({1: caption(["circle"], [0], [1.0])}, [plain], prepared) is None
