import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import captioner as captioner_package
from captioner.captioner import ASSETS, Captioner
from captioner.data import images
from captioner.data.images import Preprocess
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.model.decoder import Decoder
from captioner.model.encoder import Encoder
from captioner.model.regions import Regions
from captioner.text.vocabulary import Vocabulary
from captioner.visualization.overlay import draw_strip

WORDS = ["dog", "cat", "runs", "sits", "man", "'s"]


@pytest.fixture
def captioner():
    torch.manual_seed(0)
    vocabulary = Vocabulary([*Vocabulary.special, *WORDS])
    decoder = Decoder(len(vocabulary), 706, 8, 8, 8, 8, gist=0.25)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights, std=0.7)
    with torch.no_grad():
        decoder.output.bias[Vocabulary.end] -= 3
    return Captioner(Encoder("patches"), decoder, vocabulary, Preprocess((48, 64)), "argmax", "sample")


@pytest.fixture
def photos():
    noise = np.random.default_rng(0)
    shapes = [(30, 40), (64, 48), (10, 100)]
    return [Image.fromarray(noise.integers(0, 255, (*shape, 3), dtype=np.uint8)) for shape in shapes]


def same(a, b):
    return a.text == b.text and torch.allclose(a.weights, b.weights, atol=1e-5)


def test_one_photo_gives_one_caption_and_a_list_a_list(captioner, photos):
    captions = captioner.caption(photos)
    assert [c.image.size for c in captions] == [p.size for p in photos]
    assert same(captioner.caption(photos[1]), captions[1])
    assert len(captioner.caption(photos[:1])) == 1


def test_any_kind_of_photo_gives_the_same_caption(captioner, photos, tmp_path):
    path = tmp_path / "photo.png"
    photos[0].save(path)
    tensor = torch.from_numpy(np.array(photos[0])).permute(2, 0, 1)
    expected = captioner.caption(photos[0])
    for photo in (path, str(path), path.read_bytes(), tensor, tensor / 255, tensor.to_sparse()):
        assert same(captioner.caption(photo), expected)
    assert captioner.caption(path).source == str(path)


def test_the_overlay_does_not_replace_the_photograph(captioner, photos, tmp_path):
    path = tmp_path / "photo.png"
    photos[0].save(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"photo\.png is the photograph, which would be replaced"):
        captioner.caption(path).save_overlay(tmp_path / "." / "photo.png")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("thing", "kind"), [(None, "None"), (5, "of type int"), (b"x", "of type bytes"), ("", "empty")]
)
def test_what_is_no_path_is_named(captioner, photos, thing, kind):
    caption = captioner.caption(photos[0])
    calls = {
        "a model is a name or a folder": captioner_package.load,
        "a model is saved in a folder": captioner.save,
        "an overlay is written to a path such as dog.png": caption.save_overlay,
        "a prepared data set is a folder": Prepared.open,
    }
    for wanted, call in calls.items():
        with pytest.raises(UserError, match=f"^{wanted}, not {kind}$"):
            call(thing)


def test_wrong_kinds_of_things_are_named(captioner, photos):
    caption, regions = captioner.caption(photos[0]), captioner.encode(photos)
    for call, message in (
        (lambda: captioner.decode(regions, 5), "selection is a rule's name, not of type int"),
        (lambda: captioner.caption(photos[0], selection=b"soft"), "a rule's name, not of type bytes"),
        (lambda: draw_strip(None), "draw_strip takes a caption, not None"),
        (lambda: draw_strip(caption, 5), "a photograph cannot be of type int: give a path"),
        (lambda: images.read(None), "a photograph cannot be None: give a path"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_photographs_that_have_a_path_are_opened_again_rather_than_kept(
    captioner, photos, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    photos[0].save("photo.png")
    relative, absolute, bare = captioner.caption(["photo.png", tmp_path / "photo.png", photos[0]])
    assert [type(photo) for photo in captioner.encode(["photo.png"]).photos] == [type(tmp_path)]
    monkeypatch.chdir("elsewhere")
    assert relative.source == relative.to_dict()["image"] == "photo.png"
    expected = bare.save_overlay("bare.png").read_bytes()
    for caption in (relative, absolute):
        assert caption.photo == tmp_path / "photo.png"
        assert caption.image.tobytes() == photos[0].tobytes()
        assert caption.save_overlay("again.png").read_bytes() == expected
    with pytest.raises(UserError, match=r"is the photograph, which would be replaced"):
        relative.save_overlay("../photo.png")
    (tmp_path / "photo.png").unlink()
    with pytest.raises(UserError) as gone:
        relative.save_overlay("gone.png")
    where = f"no picture at {tmp_path / 'photo.png'}: check the path"
    assert str(gone.value) == f"the photograph of {relative.text!r} cannot be opened again: {where}"
    assert bare.image.size == photos[0].size


@pytest.mark.parametrize(
    "photo", [torch.zeros(3, 4, 4, device="meta"), torch.nested.nested_tensor([torch.zeros(3, 4, 4)])]
)
def test_a_tensor_without_numbers_of_one_size_is_refused(captioner, photo):
    with pytest.raises(UserError, match="must hold numbers, of one size"):
        captioner.caption(photo)


def test_decoding_what_was_not_encoded_is_refused(captioner):
    with pytest.raises(UserError, match="decode takes what encode gives, not of type list: encode"):
        captioner.decode(["dog.jpg"])


@pytest.mark.parametrize("selection", ["soft", "sample", "argmax"])
def test_a_caption_holds_what_it_says(captioner, photos, selection):
    c = captioner.caption(photos[1], selection=selection, beam_size=2, max_length=7)
    steps = len(c.words)
    assert 0 < steps <= 7 and c.selection == selection and c.grid == (3, 4)
    assert c.weights.shape == (steps, 12) and c.gate.shape == c.word_log_probs.shape == (steps,)
    torch.testing.assert_close(c.weights.sum(-1), torch.ones(steps))
    assert c.selected is None if selection == "soft" else c.selected.shape == (steps, 1)
    if selection == "argmax":
        assert c.selected[:, 0].tolist() == c.weights.argmax(-1).tolist()
    assert c.log_prob <= c.word_log_probs.sum().item() + 1e-5
    assert json.loads(json.dumps(c.to_dict()))["words"] == c.words
    assert c.geometry.cell_box(0, c.grid) == (0, 0, 12, 64 / 3)


@pytest.mark.parametrize("selection", ["soft", "sample", "argmax"])
def test_captions_do_not_depend_on_the_batch(captioner, photos, selection):
    settings = {"selection": selection, "seed": 3, "beam_size": 2}
    alone = [captioner.caption(photo, **settings) for photo in photos]
    for order in ([0, 1, 2], [2, 0, 1]):
        together = captioner.caption([photos[i] for i in order], batch_size=2, **settings)
        assert all(same(caption, alone[i]) for i, caption in zip(order, together, strict=True))


def test_sampling_changes_with_the_seed_alone(captioner, photos):
    drawn = [captioner.caption(photos[0], selection="sample", seed=seed) for seed in (1, 1, 2, 3)]
    assert drawn[0].selected.tolist() == drawn[1].selected.tolist()
    assert any(d.selected.tolist() != drawn[0].selected.tolist() for d in drawn[2:])


def test_encode_once_ask_often(captioner, photos):
    regions = captioner.encode(photos)
    assert isinstance(regions, Regions) and regions.features.shape == (3, 12, 706)
    for selection in ("soft", "argmax"):
        assert same(
            captioner.decode(regions, selection)[2], captioner.caption(photos[2], selection=selection)
        )


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_in_another_precision_is_saved_and_comes_back(captioner, photos, tmp_path, precision):
    expected = captioner.encoder.fingerprint()
    loaded = Captioner.load(captioner.to(precision).save(tmp_path / "model"), device="cpu")
    assert captioner.encoder.fingerprint() == loaded.encoder.fingerprint() == expected
    assert same(loaded.caption(photos[0]), captioner.float().caption(photos[0]))
    torch.testing.assert_close(
        loaded.decoder.scoring.key.weight, captioner.decoder.scoring.key.weight.float(), rtol=0, atol=0
    )


def test_an_encoder_whose_weights_were_changed_is_saved_with_them(captioner, photos, tmp_path):
    library = captioner.encoder.fingerprint()
    captioner.encoder.network.directions *= 0.5
    loaded = Captioner.load(captioner.save(tmp_path / "model"), device="cpu")
    assert loaded.encoder.fingerprint() == captioner.encoder.fingerprint() != library
    assert same(loaded.caption(photos[0]), captioner.caption(photos[0]))


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_model_comes_back_in_another_process(captioner, photos, tmp_path, half):
    folder = captioner.save(tmp_path / "model", half=half, note="a note")
    photos[0].save(tmp_path / "photo.png")
    script = (
        "import captioner; c = captioner.load('model').caption('photo.png'); "
        "print(c.text, c.selection, round(c.log_prob, 2), sep='|')"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = captioner.caption(photos[0])
    text, selection, log_prob = run.stdout.strip().split("|")
    assert (text, selection) == (expected.text, "argmax")
    assert float(log_prob) == pytest.approx(expected.log_prob, abs=0.05)
    assert json.loads((folder / "config.json").read_text())["note"] == "a note"
    assert Captioner.load(folder).trained_with == "sample"


def test_the_encoders_own_weights_travel_with_the_model(tmp_path, photos):
    torch.manual_seed(1)
    vocabulary = Vocabulary([*Vocabulary.special, *WORDS])
    encoder = Encoder("resnet18", weights=None)
    model = Captioner(encoder, Decoder(len(vocabulary), 512, 8, 8, 8, 8), vocabulary, Preprocess((64, 64)))
    loaded = Captioner.load(model.save(tmp_path / "model"))
    assert loaded.encoder.fingerprint() == encoder.fingerprint()
    assert same(loaded.caption(photos[0]), model.caption(photos[0]))


def test_vocabulary_and_weights_that_disagree_name_both_sizes(captioner, tmp_path):
    folder = captioner.save(tmp_path / "model")
    Vocabulary([*Vocabulary.special, *WORDS, "more"]).save(folder / "vocabulary.json")
    with pytest.raises(UserError, match=r"has 11 words, .* has 10"):
        Captioner.load(folder)


def test_broken_models_are_one_clear_line(captioner, tmp_path):
    with pytest.raises(UserError, match=r"no model 'flickr9k'.*flickr8k-hard"):
        Captioner.load("flickr9k")
    folder = captioner.save(tmp_path / "model")
    for name, content in (("model.safetensors", b"no tensors"), ("config.json", b"{")):
        broken = tmp_path / f"broken-{name}"
        shutil.copytree(folder, broken)
        (broken / name).write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            Captioner.load(broken)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"encoder_fingerprint": "0123"}))
    with pytest.raises(UserError, match="other weights of encoder"):
        Captioner.load(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "beam_size must be from 1 to 100, not 0"),
        ({"beam_size": 10**6}, "beam_size must be from 1 to 100, not 1000000"),
        ({"beam_size": "3"}, "beam_size must be from 1 to 100 and a whole number, not '3'"),
        ({"max_length": 0}, "max_length must be from 1 to 1000"),
        ({"length_penalty": math.nan}, "length_penalty must be from 0 to 10, not nan"),
        ({"length_penalty": math.inf}, "length_penalty must be from 0 to 10, not inf"),
        ({"length_penalty": 1e308}, "length_penalty must be from 0 to 10"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, not -1"),
        ({"selection": "hard"}, "unknown selection rule 'hard'"),
    ],
)
def test_bad_settings(captioner, photos, settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        captioner.caption(photos, **settings)


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (None, "cannot be None"),
        (5, "cannot be of type int"),
        ({"dog.jpg"}, "cannot be of type set"),
        (np.zeros((4, 4, 3), np.uint8), "of type ndarray.*fromarray"),
        ("absent.jpg", r"absent\.jpg"),
        (torch.zeros(4, 5, 6), r"\(3, H, W\), not \(4, 5, 6\)"),
        (torch.zeros(3, 0, 6), r"\(3, H, W\), not \(3, 0, 6\)"),
        (torch.ones(3, 4, 4, dtype=torch.complex64), "complex64.*divide by 255"),
        (torch.full((3, 4, 4), 200), "int64.*uint8"),
        (torch.full((3, 4, 4), 200.0), "float32.*divide by 255"),
        (torch.full((3, 4, 4), math.nan), "float32"),
    ],
)
def test_what_is_no_photograph(captioner, photo, message):
    for asked in (photo, [photo]):
        with pytest.raises(UserError, match=message):
            captioner.caption(asked)


def test_a_generator_of_photographs_is_a_list(captioner, photos):
    captions = captioner.caption(photo for photo in photos)
    assert [c.text for c in captions] == [c.text for c in captioner.caption(photos)]
    with pytest.raises(UserError, match="takes a list of photographs, not of type str"):
        captioner.encode("dog.jpg")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_regions_follow_the_models_precision(captioner, photos, dtype):
    regions = captioner.encode(photos)
    expected = captioner.decode(regions)
    captioner.to(dtype)
    tolerance = 1e-4 if dtype == torch.float64 else 0.1
    for found in (captioner.decode(regions), captioner.caption(photos)):
        assert found[0].weights.dtype == dtype
        torch.testing.assert_close(
            found[0].weights[0].double(), expected[0].weights[0].double(), atol=tolerance, rtol=tolerance
        )


def test_regions_that_are_not_finite_are_refused(captioner, photos):
    regions = captioner.encode(photos)
    regions.features = regions.features.clone()
    regions.features[1, 2, 3] = math.nan
    with pytest.raises(UserError, match="not finite"):
        captioner.decode(regions)


def test_damaged_weights_are_said_to_be(captioner, tmp_path):
    with torch.no_grad():
        captioner.decoder.output.bias[2] = math.nan
    with pytest.raises(UserError, match=r"damaged \(decoder\.output\.bias is not finite\)"):
        Captioner.load(captioner.save(tmp_path / "model"))


def test_sizes_that_do_not_fit_the_weights_take_no_memory(captioner, tmp_path):
    folder = captioner.save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["decoder"]["hidden_size"] = 10**6
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"decoder\.\S+ is \(.*\), not \(.*000000.*\): copy"):
        Captioner.load(folder)


def test_a_model_is_where_it_was_asked_to_be(captioner, tmp_path):
    folder = captioner.save(tmp_path / "model")
    assert Captioner.load(folder, device="cpu").device == torch.device("cpu")
    assert Captioner.load(folder).device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    for device in ("gpu", "meta"):
        with pytest.raises(UserError, match=f"no device '{device}' here"):
            Captioner.load(folder, device=device)


@pytest.mark.parametrize("name", ["flickr8k-soft", "flickr8k-hard"])
def test_the_embedded_models_caption_a_dog(name):
    photo = ASSETS / "photos" / "dog.jpg"
    model = Captioner.load(name)
    caption = model.caption(photo)
    assert "dog" in caption.words and caption.finished
    assert model.trained_with == ("soft" if name.endswith("soft") else "sample")
    assert Path(ASSETS / name / "model.safetensors").stat().st_size < 12 * 2**20


@pytest.mark.parametrize("text", ["[]", "[1]", "3"])
def test_a_configuration_that_is_no_object_is_one_line(tmp_path, text):
    Captioner.load("flickr8k-soft").save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=f"the model {tmp_path} "):
        Captioner.load(tmp_path)


def test_no_photograph_is_refused():
    with pytest.raises(UserError, match="at least one"):
        Captioner.load("flickr8k-soft").encode([])


@pytest.mark.parametrize("scoring", ["general", "concat", "scaled-dot", "multi-head:4", "local:0.3"])
def test_a_model_of_any_scoring_function_is_saved_and_comes_back(photos, tmp_path, scoring):
    torch.manual_seed(0)
    vocabulary = Vocabulary([*Vocabulary.special, *WORDS])
    decoder = Decoder(len(vocabulary), 706, 8, 8, 8, 8, scoring)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights, std=0.7)
    with torch.no_grad():
        decoder.output.bias[Vocabulary.end] -= 3
    made = Captioner(Encoder("patches"), decoder, vocabulary, Preprocess((48, 64)), "sample:2")
    loaded = Captioner.load(made.save(tmp_path / "model"), device="cpu")
    assert loaded.decoder.scoring.name == scoring
    expected, caption = made.caption(photos[0]), loaded.caption(photos[0])
    assert same(caption, expected) and len(caption.words) > 1
    heads = 4 if scoring == "multi-head:4" else 1
    assert caption.selected.shape == (len(caption.words), 2 * heads)
    assert caption.save_overlay(tmp_path / "strip.png").exists()
    line = json.loads(json.dumps(caption.to_dict()))
    if heads == 1:
        assert caption.heads is None and line["heads"] is None
    else:
        assert caption.heads.shape == (len(caption.words), 4, 12)
        torch.testing.assert_close(caption.heads.mean(1), caption.weights)
        assert len(caption.heads.flatten(1).unique(dim=1).T) > 12  # the heads differ
        assert np.array(line["heads"]).shape == caption.heads.shape


@pytest.mark.parametrize("selection", ["soft", "argmax", "sample:2", "top:4", "mean:3"])
def test_masked_regions_are_not_looked_at(captioner, photos, selection):
    regions = captioner.encode(photos)
    regions.mask = torch.ones(3, 12, dtype=torch.bool)
    whole = captioner.decode(regions, selection)
    regions.mask[1, 4:] = False
    captions = captioner.decode(regions, selection)
    assert (captions[1].weights[:, 4:] == 0).all() and len(captions[1].words) > 0
    if captions[1].selected is not None:
        assert captions[1].selected.max() < 4
    assert same(captions[0], whole[0]) and same(captions[2], whole[2])
    regions.mask[0] = False
    with pytest.raises(UserError, match=r"all regions of photographs \[0\] are masked"):
        captioner.decode(regions, selection)
