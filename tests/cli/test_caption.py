"""`captioner caption`."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from captioner.cli import arguments, main


def test_captions_with_overlays_and_json(process, model, pictures, tmp_path):
    arguments = ("--model", model, "--overlay", "pictures", "--json", "captions.jsonl")
    done = process("caption", *pictures, *arguments)
    assert (done.returncode, done.stdout.count("\n")) == (0, 5)
    lines = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == [str(picture) for picture in pictures]
    for line, printed in zip(lines, done.stdout.splitlines(), strict=True):
        assert printed == f"{line['image']}: {line['caption']}"
        assert line["grid"] == [4, 4]
        assert line["selection"] == "argmax"
        assert len(line["words"]) == len(line["weights"]) == len(line["selected"]) > 0
        for weights, (selected,) in zip(line["weights"], line["selected"], strict=True):
            assert sum(weights) == pytest.approx(1, abs=1e-5)
            assert selected == weights.index(max(weights))
    names = ["beach-2.png", "beach.png", "cat.png", "dog.png", "zebra.png"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == names
    for name in names:
        with Image.open(tmp_path / "pictures" / name) as overlay:
            overlay.load()


def lines_of(capsys, *arguments):
    capsys.readouterr()
    assert main([*map(str, arguments), "--json", "-"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("selection", ["soft", "sample"])
def test_a_caption_depends_on_the_photograph_alone(selection, model, pictures, capsys):
    settings = ("--model", model, "--selection", selection, "--seed", 7)
    together = lines_of(capsys, "caption", *pictures, *settings)
    in_twos = lines_of(capsys, "caption", *pictures[::-1], *settings, "--batch-size", 2)[::-1]
    alone = [line for p in pictures for line in lines_of(capsys, "caption", p, *settings)]
    for lines in (in_twos, alone):
        for line, other in zip(together, lines, strict=True):
            for exact in ("image", "caption", "words", "selected", "finished", "geometry"):
                assert line[exact] == other[exact]
            assert line["log_prob"] == pytest.approx(other["log_prob"], abs=1e-4)


def test_the_seed_matters_to_sampling(model, pictures, capsys):
    settings = ("--model", model, "--selection", "sample")
    first, second = (lines_of(capsys, "caption", *pictures, *settings, "--seed", seed) for seed in (0, 1))
    assert [line["selected"] for line in first] != [line["selected"] for line in second]


def test_folders_and_lists(model, pictures, tmp_path, capsys):
    names = tmp_path / "photos.txt"
    names.write_text(f"{pictures[0]}\n{pictures[4]}\n")
    found = lines_of(capsys, "caption", names, pictures[2].parent, "--model", model)
    expected = [pictures[0], pictures[4], pictures[2], pictures[3]]
    assert [line["image"] for line in found] == [str(path) for path in expected]


def test_json_to_a_pipe_leaves_the_pipe_in_place(model, pictures, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["caption", str(pictures[0]), "--model", str(model), "--json", str(pipe)]) == 0
        assert json.loads(os.read(reader, 65536))["image"] == str(pictures[0])
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_cut_off_captions_are_mentioned(model, pictures, capsys):
    (line,) = lines_of(capsys, "caption", pictures[0], "--model", model, "--max-length", 1)
    assert (line["finished"], len(line["words"])) == (False, 1)
    assert main(["caption", str(pictures[0]), "--model", str(model), "--max-length", "1"]) == 0
    assert "1 of 1 captions were cut off at 1 words" in capsys.readouterr().err


def test_the_same_caption_for_everything_is_mentioned(model, pictures, tmp_path, capsys):
    for name in "abc":
        shutil.copy(pictures[0], tmp_path / f"{name}.png")
    assert main(["caption", str(tmp_path), "--model", str(model)]) == 0
    assert "all 3 photographs got the same caption" in capsys.readouterr().err


def test_bad_photograph_stops(process, model, pictures, bad_pictures, tmp_path):
    outputs = ("--json", "captions.jsonl", "--overlay", "pictures")
    done = process("caption", pictures[0], bad_pictures[0], "--model", model, *outputs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("captioner: error: ")
    assert done.stderr.count("\n") == 1
    assert str(bad_pictures[0]) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


@pytest.mark.parametrize("batch_size", ["1", "16"])
@pytest.mark.parametrize(("policy", "code"), [("skip", 0), ("report", 1)])
def test_bad_photographs_are_left_out(policy, code, batch_size, model, pictures, bad_pictures, capsys):
    photos = [bad_pictures[0], *pictures[:3], *bad_pictures[1:], *pictures[3:]]
    settings = ("--model", model, "--on-bad-image", policy, "--batch-size", batch_size)
    assert main([*map(str, ("caption", *photos, *settings))]) == code
    printed = capsys.readouterr()
    assert [line.partition(": ")[0] for line in printed.out.splitlines()] == [*map(str, pictures)]
    for path in bad_pictures:
        assert printed.err.count(str(path)) == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("none.jpg",), "none.jpg"),
        (("{photo}", "--model", "flickr9k"), "flickr9k"),
        (("{photo}", "--selection", "best"), "choose one of soft, sample, argmax"),
        (("{photo}", "--beam-size", "0"), "--beam-size must be at least 1, not 0"),
        (("{photo}", "--max-length", "0"), "--max-length must be at least 1, not 0"),
        (("{photo}", "--batch-size", "-1"), "--batch-size must be at least 1, not -1"),
        (("{photo}", "--seed", "x"), "--seed"),
        (("{photo}", "--json", "none/captions.jsonl"), "none/captions.jsonl"),
        (("{photo}", "--json", "{folder}"), "{folder}"),
        (("{photo}", "--json", "{photo}"), "--json {photo} would replace a file that is read"),
        (("{folder}", "--json", "{photo}"), "--json {photo} would replace a file that is read"),
        (("{photo}", "--json", "{model}/config.json"), "would replace a file that is read"),
        (("{photo}", "--json", "o/beach.png", "--overlay", "o"), "o/beach.png"),
        (("https://example.org/a.jpg",), "https://example.org/a.jpg is an address"),
        (("{photo}", "--overlay", "{photo}"), "--overlay {photo} cannot be written (Not a directory)"),
        (("{photo}", "--overlay", "{photo}/a/b"), "{photo}/a/b cannot be written (Not a directory)"),
        (("{photo}", "--overlay", "{folder}"), "would replace a photograph"),
    ],
)
def test_bad_input(asked, says, refused, model, pictures):
    before = pictures[0].read_bytes()
    values = {"photo": pictures[0], "folder": pictures[0].parent, "model": model}
    asked = [argument.format(**values) for argument in asked]
    if "--model" not in asked:
        asked += ["--model", str(model)]
    assert says.format(**values) in refused("caption", *asked)
    assert pictures[0].read_bytes() == before


def test_overlays_replace_overlays_alone(refused, model, pictures, tmp_path):
    out = tmp_path / "out"
    arguments = ["caption", str(pictures[0]), str(pictures[4]), "--model", str(model), "--overlay", str(out)]
    assert main(arguments) == 0
    before = (out / "beach.png").read_bytes()
    assert main([*arguments, "--selection", "soft"]) == 0
    assert (out / "beach.png").read_bytes() != before
    (out / "beach.png").write_bytes(before)
    for own in (pictures[1].read_bytes(), b"", None):
        (out / "zebra.png").unlink()
        if own is None:
            os.mkfifo(out / "zebra.png")
        else:
            (out / "zebra.png").write_bytes(own)
        complaint = refused(*arguments, "--selection", "soft")
        assert complaint.startswith(f"the overlay {out / 'zebra.png'} would replace what captioner has not")
        assert (out / "beach.png").read_bytes() == before


def test_the_list_of_photographs_is_not_replaced(refused, model, pictures, tmp_path):
    names = tmp_path / "photos.txt"
    names.write_text(str(pictures[0]))
    link = tmp_path / "link.txt"
    link.symlink_to(names)
    for output in (names, link):
        complaint = refused("caption", names, "--model", model, "--json", output)
        assert "would replace a file that is read" in complaint
    assert names.read_text() == str(pictures[0])


def test_json_is_not_sent_where_standard_output_goes(model, pictures, tmp_path):
    with (tmp_path / "out.txt").open("w") as out:
        command = [sys.executable, "-m", "captioner", "caption", str(pictures[0]), "--model", str(model)]
        done = subprocess.run(
            [*command, "--json", "out.txt"], stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    assert done.returncode == 2
    assert "out.txt is where standard output goes" in done.stderr


def test_nothing_but_bad_photographs_is_an_error(model, bad_pictures, tmp_path, capsys):
    settings = ("--model", model, "--on-bad-image", "skip", "--json", tmp_path / "captions.jsonl")
    assert main([*map(str, ("caption", *bad_pictures, *settings))]) == 2
    assert "not one of the photographs could be read" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "captions.jsonl").exists()


def test_one_photograph_three_times_is_no_sign_of_anything(model, pictures, capsys):
    assert main(["caption", *[str(pictures[0])] * 3, "--model", str(model)]) == 0
    assert "got the same caption" not in capsys.readouterr().err


def test_names_are_shown_without_control_characters_but_json_has_them(model, pictures, tmp_path, capsys):
    photo = tmp_path / "\x1b[31mred\n.png"
    shutil.copy(pictures[0], photo)
    (line,) = lines_of(capsys, "caption", photo, "--model", model)
    assert line["image"] == str(photo)
    assert main(["caption", str(photo), "--model", str(model)]) == 0
    assert capsys.readouterr().out == rf"{tmp_path}/\x1b[31mred\n.png: {line['caption']}" + "\n"


def test_a_full_standard_output_is_named(refused, monkeypatch, model, pictures):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arguments, "print", full, raising=False)
    complaint = refused("caption", pictures[0], "--model", model)
    assert complaint == "standard output: No space left on device"
