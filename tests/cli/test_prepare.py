"""`captioner prepare`."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from captioner.cli import main
from captioner.cli.prepare import pixel_scale
from captioner.data import shapes
from captioner.data.prepared import Prepared
from captioner.errors import UserError
from captioner.text.vocabulary import Vocabulary

SMALL = ("--encoder", "patches", "--size", "64", "--min-count", "1", "--workers", "0")


@pytest.fixture
def captions(tmp_path: Path, pictures: list[Path]) -> Path:
    """Four photographs to train on, with a caption that is empty and one to validate."""
    root = pictures[0].parent
    images = [
        {"id": i, "file_name": str(path.relative_to(root)), "split": "val" if i == 4 else "train"}
        for i, path in enumerate(pictures)
    ]
    texts = [(0, "A dog runs."), (0, " "), (1, "a dog"), (2, "a cat"), (3, "dog"), (4, "a zzyzx")]
    annotations = [{"id": n, "image_id": i, "caption": text} for n, (i, text) in enumerate(texts)]
    path = tmp_path / "captions.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def test_prepares_what_training_reads(process, captions, pictures, tmp_path):
    images = pictures[0].parent
    done = process("prepare", captions, "--images", images, "--out", "ready", *SMALL)
    assert done.returncode == 0, done.stderr
    prepared = Prepared.open(tmp_path / "ready")
    assert prepared.captions.splits() == {"train": 4, "val": 1}
    assert prepared.vocabulary.words[4:] == ("a", "dog", "cat", "runs")
    assert prepared.features().grid == (4, 4)
    assert [pictures[4].name in prepared.features(), len(prepared.features())] == [True, 5]
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["train", "4", "4", "8", "100.00%"],
        ["val", "1", "1", "2", "50.00%"],
    ]
    assert "8 words" in done.stdout
    assert "4 x 4 regions of 706, patches" in done.stdout
    assert "1 empty captions" in done.stdout


def test_size_of_rows_and_columns(captions, pictures, tmp_path):
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", tmp_path / "ready")
    assert main([*map(str, (*arguments, *SMALL, "--size", "32x96"))]) == 0
    assert Prepared.open(tmp_path / "ready").features().grid == (2, 6)


def test_shapes(tmp_path, monkeypatch, capsys):
    few = partial(shapes.write_shapes, train=6, val=2, test=2)
    monkeypatch.setattr(shapes, "write_shapes", few)
    arguments = ("prepare", "shapes", "--out", tmp_path, "--min-count", 1, "--workers", 0)
    assert main([*map(str, arguments)]) == 0
    prepared = Prepared.open(tmp_path)
    assert prepared.captions.splits() == {"train": 6, "val": 2, "test": 2}
    assert prepared.images == tmp_path / "images"
    assert prepared.captions.images[0].boxes
    assert prepared.features().grid == (7, 7)


@pytest.mark.parametrize(("policy", "code"), [("skip", 0), ("report", 1)])
def test_bad_photographs_are_left_out(policy, code, captions, pictures, bad_pictures, tmp_path, capsys):
    content = json.loads(captions.read_text())
    for image, bad in zip(content["images"][1:], bad_pictures, strict=False):
        image["file_name"] = str(bad)
    captions.write_text(json.dumps(content))
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", tmp_path / "ready")
    assert main([*map(str, (*arguments, *SMALL, "--on-bad-image", policy))]) == code
    prepared = Prepared.open(tmp_path / "ready")
    assert [image.id for image in prepared.captions.images] == [0, 4]
    assert prepared.vocabulary.words[4:] == ("a", "dog", "runs")  # none of those that nobody can learn
    printed = capsys.readouterr()
    assert "3 images that cannot be read" in printed.out
    for bad in bad_pictures:
        assert (str(bad) in printed.err) == (policy == "report")


def test_bad_photograph_stops(refused, captions, pictures, bad_pictures, tmp_path):
    content = json.loads(captions.read_text())
    content["images"][1]["file_name"] = str(bad_pictures[0])
    captions.write_text(json.dumps(content))
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", tmp_path / "ready")
    assert str(bad_pictures[0]) in refused(*arguments, *SMALL)
    assert not (tmp_path / "ready" / "prepared.json").exists()


def test_missing_photographs_are_counted_before_the_work(refused, captions, tmp_path):
    (tmp_path / "none").mkdir()
    arguments = ("prepare", captions, "--images", tmp_path / "none", "--out", tmp_path / "ready")
    complaint = refused(*arguments, *SMALL)
    assert "5 of 5 photographs are missing" in complaint
    assert f"under {tmp_path / 'none'}" in complaint
    assert "beach.png, cat.jpg, more/beach.jpg" in complaint
    assert not (tmp_path / "ready").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("none.json", "--images", "{images}"), "no captions file at none.json: check the path"),
        (("none.json",), "no captions file at none.json: check the path"),
        (("{captions}",), "--images is missing: give the folder"),
        (("{captions}", "--images", "{images}/none"), "{images}/none"),
        (("{captions}", "--images", "{images}", "--encoder", "resnet1"), "'resnet1'"),
        (("{captions}", "--images", "{images}", "--size", "224x"), "'224x'"),
        (("{captions}", "--images", "{images}", "--size", "0"), "'0'"),
        (("{captions}", "--images", "{images}", "--size", "1000000"), "give from 1 to 4096 a side"),
        (("{captions}", "--images", "{images}", "--size", "8"), "cannot encode 8 x 8 pixels"),
        (("{captions}", "--images", "{images}", "--size", "70"), "not divisible"),
        (("{captions}", "--images", "{images}", "--layer", "2"), "has neither layers nor weights"),
        (("{captions}", "--images", "{images}", "--weights", "a.pth"), "has neither layers nor weights"),
        (("{captions}", "--images", "{images}", "--out", "{captions}/.."), "would be replaced"),
        (("shapes", "--images", "{images}"), "--images does not go with shapes"),
        (("{captions}", "--images", "{images}", "--min-count", "0"), "--min-count"),
        (("{captions}", "--images", "{images}", "--workers", "-1"), "--workers"),
    ],
)
def test_bad_input(arguments, says, refused, captions, pictures, tmp_path):
    values = {"captions": captions, "images": pictures[0].parent}
    arguments = [argument.format(**values) for argument in arguments]
    complaint = refused("prepare", "--out", tmp_path / "ready", *SMALL, *arguments)
    assert says.format(**values) in complaint
    assert not (tmp_path / "ready").exists()


@pytest.mark.parametrize("name", ["captions.json", "vocabulary.json"])
def test_somebodys_own_files_are_not_replaced(refused, captions, pictures, tmp_path, name):
    own = tmp_path / "ready" / name
    own.parent.mkdir()
    own.write_text("mine")
    for arguments in ((captions, "--images", pictures[0].parent, *SMALL), ("shapes",)):
        complaint = refused("prepare", *arguments, "--out", own.parent)
        assert f"{own} is not of a prepared data set" in complaint
        assert own.read_text() == "mine" and list(own.parent.iterdir()) == [own]


@pytest.mark.parametrize("step", ["write_features", "Vocabulary.build", "fingerprint", "write_json"])
def test_what_a_stopped_run_has_left_is_not_somebodys_own(captions, pictures, tmp_path, monkeypatch, step):
    """Stopped while it encodes, after it has, and before and after its vocabulary is written."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", tmp_path / "ready", *SMALL)
    for _ in ("a new folder", "one with an older set"):
        with monkeypatch.context() as stopped:
            stopped.setattr(f"captioner.data.prepared.{step}", stop)
            assert main([*map(str, arguments)]) == 130
        assert main([*map(str, arguments)]) == 0
        captions.write_text(captions.read_text().replace("a dog", "a cat"))


def test_pixel_scale_is_the_encoders_own():
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    half = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    assert pixel_scale("vgg19") == imagenet
    assert pixel_scale("timm:resnet50.tv_in1k") == imagenet
    assert pixel_scale("efficientnet_lite0") == half


def prepared_in(folder, captions, pictures):
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", folder, *SMALL)
    assert main([*map(str, arguments)]) == 0
    return folder


def test_parts_of_two_sets_are_not_taken_for_one(captions, pictures, tmp_path):
    ready = prepared_in(tmp_path / "ready", captions, pictures)
    Prepared.open(ready)
    captions.write_text(captions.read_text().replace("a cat", "a dog"))
    other = prepared_in(tmp_path / "other", captions, pictures)
    before = (ready / "captions.json").read_bytes()
    for part in ("captions.json", "vocabulary.json", "features/store.json"):
        before = (ready / part).read_bytes()
        (ready / part).write_bytes((other / part).read_bytes().replace(b"png", b"gif", 1) + b" ")
        with pytest.raises(UserError, match="are not of one run"):
            Prepared.open(ready)
        (ready / part).write_bytes(before)
    Prepared.open(ready)


def test_a_set_of_an_older_version_opens(captions, pictures, tmp_path):
    ready = prepared_in(tmp_path / "ready", captions, pictures)
    settings = json.loads((ready / "prepared.json").read_text())
    del settings["contents"]
    (ready / "prepared.json").write_text(json.dumps(settings))
    assert len(Prepared.open(ready).captions.images) == 5


def test_a_refused_run_leaves_the_set_that_was_there(refused, captions, pictures, bad_pictures, tmp_path):
    ready = prepared_in(tmp_path / "ready", captions, pictures)
    content = json.loads(captions.read_text())
    content["images"][1]["file_name"] = str(bad_pictures[0])
    captions.write_text(json.dumps(content))
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", ready, *SMALL)
    assert str(bad_pictures[0]) in refused(*arguments)
    assert len(Prepared.open(ready).features()) == 5


def test_a_run_that_is_stopped_among_the_parts_leaves_no_set(captions, pictures, tmp_path, monkeypatch):
    ready = prepared_in(tmp_path / "ready", captions, pictures)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Vocabulary, "save", stop)
    arguments = ("prepare", captions, "--images", pictures[0].parent, "--out", ready, *SMALL)
    assert main([*map(str, arguments)]) == 130
    assert not (ready / "prepared.json").exists()


def test_shapes_that_are_stopped_leave_no_set(tmp_path, monkeypatch):
    few = partial(shapes.write_shapes, train=3, val=1, test=1)
    monkeypatch.setattr(shapes, "write_shapes", few)
    arguments = ["prepare", "shapes", "--out", str(tmp_path), "--min-count", "1", "--workers", "0"]
    assert main(arguments) == 0

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, "draw", stop)
    assert main([*arguments, "--seed", "1"]) == 130
    with pytest.raises(UserError, match="no prepared data set"):
        Prepared.open(tmp_path)


def test_shapes_that_failed_for_want_of_space_can_be_drawn_again(refused, tmp_path, monkeypatch):
    few = partial(shapes.write_shapes, train=3, val=1, test=1)
    monkeypatch.setattr(shapes, "write_shapes", few)
    arguments = ["prepare", "shapes", "--out", str(tmp_path / "sh"), "--min-count", "1", "--workers", "0"]
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        assert "free some space" in refused(*arguments)
    assert main(arguments) == 0


def test_nothing_but_bad_photographs_leaves_no_folder(refused, captions, bad_pictures, tmp_path):
    content = json.loads(captions.read_text())
    for image in content["images"]:
        image["file_name"] = str(bad_pictures[0])
    captions.write_text(json.dumps(content))
    arguments = ("--images", tmp_path, "--out", tmp_path / "ready", *SMALL, "--on-bad-image", "skip")
    assert "not one of 5 photographs can be read" in refused("prepare", captions, *arguments)
    assert not (tmp_path / "ready").exists()


def test_a_reader_that_has_gone_is_no_error(captions, pictures, tmp_path):
    command = [sys.executable, "-m", "captioner", "prepare", captions, "--images", pictures[0].parent]
    process = subprocess.Popen(
        [*map(str, command), "--out", "ready", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141


def test_splits_in_other_letters_are_mentioned(captions, pictures, tmp_path, capsys):
    captions.write_text(captions.read_text().replace('"train"', '"Train"'))
    prepared_in(tmp_path / "ready", captions, pictures)
    said = capsys.readouterr().err
    assert "has no train split, which `captioner fit` needs: its splits are Train, val" in said


def test_a_grid_that_cannot_be_made_leaves_an_older_set_alone(refused, tmp_path):
    (tmp_path / "prepared.json").write_text("{}")
    message = refused("prepare", "shapes", "--grid", "99x99", "--out", tmp_path)
    assert "a grid of 99 x 99 regions cannot be made" in message
    assert [path.name for path in tmp_path.iterdir()] == ["prepared.json"]
