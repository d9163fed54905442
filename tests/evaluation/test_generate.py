import json

import pytest
import torch

from captioner.captioner import Captioner
from captioner.data.images import Preprocess
from captioner.errors import UserError
from captioner.evaluation.generate import generate, references, save_captions, split_images


def texts(captions):
    return {image: caption.text for image, caption in captions.items()}


def test_captions_are_the_models_own_of_each_photograph(captioner, prepared):
    captions = generate(captioner, prepared, "test", "soft", beam_size=2, max_length=5)
    assert list(captions) == [103, 104, 105, 106]
    assert len(set(texts(captions).values())) > 1
    for image, caption in captions.items():
        photo = prepared.images / f"{image - 100}.png"
        direct = captioner.caption(photo, selection="soft", beam_size=2, max_length=5)
        assert caption.text == direct.text
        assert caption.selection == "soft"
        assert caption.source == photo.name
        assert len(caption.words) <= 5
        torch.testing.assert_close(caption.weights, direct.weights, rtol=0.01, atol=0.01)  # float16


def test_the_models_own_rule_is_the_default(captioner, prepared):
    assert {c.selection for c in generate(captioner, prepared).values()} == {"argmax"}


@pytest.mark.parametrize("selection", ["soft", "sample", "argmax"])
def test_the_batch_size_changes_nothing(captioner, prepared, selection):
    whole = generate(captioner, prepared, "test", selection, seed=3)
    assert texts(generate(captioner, prepared, "test", selection, seed=3, batch_size=1)) == texts(whole)
    first = generate(captioner, prepared, "test", selection, seed=3, batch_size=3, limit=2)
    assert texts(first) == {image: whole[image].text for image in (103, 104)}


def test_seeds_of_random_rules_differ(captioner, prepared):
    found = {
        tuple(texts(generate(captioner, prepared, "test", "sample", 1, seed)).values())
        for seed in (0, 1, 2, 0)
    }
    assert len(found) == 3


def test_references_are_what_people_wrote(prepared):
    assert references(split_images(prepared, "test", 1)) == {
        103: ("a black dog runs", "the dog sits on green grass")
    }


def test_features_of_another_preprocessing_are_refused(captioner, prepared):
    other = Captioner(captioner.encoder, captioner.decoder, captioner.vocabulary, Preprocess((32, 32), "pad"))
    with pytest.raises(UserError, match="feature store"):
        generate(other, prepared)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "val"}, r"no split 'val': choose from train \(3\), test \(4\)"),
        ({"selection": "hard"}, "unknown selection rule 'hard'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"limit": 0}, "the number of images must be at least 1, not 0"),
    ],
)
def test_mistakes_are_named(captioner, prepared, arguments, message):
    with pytest.raises(UserError, match=message):
        generate(captioner, prepared, **arguments)


def test_captions_are_saved_as_coco_results(captioner, prepared, tmp_path):
    captions = generate(captioner, prepared, limit=2)
    save_captions(captions, tmp_path / "captions.json")
    assert json.loads((tmp_path / "captions.json").read_text()) == [
        {"image_id": 103, "caption": captions[103].text},
        {"image_id": 104, "caption": captions[104].text},
    ]
