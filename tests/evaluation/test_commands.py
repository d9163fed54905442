"""The commands `evaluate` and `compare`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import captioner.evaluation.metrics as metrics
from captioner.cli import main
from captioner.evaluation.generate import generate, references, split_images
from captioner.evaluation.metrics import score


@pytest.fixture(scope="session")
def arguments(captioner, prepared, tmp_path_factory):
    """The model and the data, as on the command line."""
    model = captioner.save(tmp_path_factory.mktemp("models") / "tiny")
    return ["--model", str(model), "--data", str(prepared.root)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Commands run in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def error_of(capsys):
    """The one line of complaint."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    return line


def test_evaluate_without_java(arguments, folder, captioner, prepared, no_java, capsys):
    asked = ["--selection", "sample", "--seed", "2", "--beam-size", "2", "--json", "scores.json"]
    assert main(["evaluate", *arguments, *asked]) == 0
    captions = generate(captioner, prepared, "test", "sample", 2, 2)
    texts = {image: caption.text for image, caption in captions.items()}
    expected = score(references(split_images(prepared, "test")), texts, "python")

    result = json.loads((folder / "scores.json").read_text())
    assert set(result) == {"metrics", "skipped", "warnings", "settings", "versions"}
    assert result["metrics"] == expected.metrics
    assert result["skipped"] == expected.skipped
    assert set(result["skipped"]) == {"METEOR", "SPICE"}
    assert result["settings"] == {
        "model": arguments[1],
        "data": arguments[3],
        "split": "test",
        "images": 4,
        "selection": "sample",
        "beam_size": 2,
        "max_length": 20,
        "length_penalty": 0.7,
        "seed": 2,
        "tokenizer": "python",
    }
    saved = json.loads((folder / "scores.captions.json").read_text())
    assert {item["image_id"]: item["caption"] for item in saved} == texts

    shown, said = capsys.readouterr()
    assert f"{expected.metrics['BLEU-1']:.4f}" in shown
    assert "METEOR was skipped: Java is not installed" in shown
    assert said.startswith("captioner: Java is not installed")
    assert "apt-get install default-jre-headless" in said


def test_evaluate_as_a_process(arguments, folder, java):
    command = [sys.executable, "-m", "captioner", "evaluate", *arguments, "--json", "-"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["settings"]["tokenizer"] == "ptb"
    assert result["settings"]["selection"] == "argmax"
    assert result["metrics"]["METEOR"] > 0
    assert "METEOR" in done.stderr and "BLEU-4" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["captions-test.json"]


def test_captions_are_saved_before_scoring(arguments, folder, monkeypatch):
    def broken(*_):
        raise RuntimeError("no score")

    monkeypatch.setattr(metrics, "score", broken)
    with pytest.raises(RuntimeError, match="no score"):
        main(["evaluate", *arguments, "--captions", "mine.json", "--json", "scores.json"])
    assert len(json.loads((folder / "mine.json").read_text())) == 4
    assert [path.name for path in folder.iterdir()] == ["mine.json"]


def test_java_is_looked_for_before_the_data(folder, no_java, capsys):
    assert main(["evaluate", "--data", "nowhere"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("captioner: Java is not installed")
    assert second.startswith("captioner: error: no prepared data set at nowhere")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "asked", "message"),
    [
        ("evaluate", ["--split", "dev"], "no split 'dev': choose from train (3), test (4)"),
        ("evaluate", ["--selection", "hard"], "unknown selection rule 'hard'"),
        ("evaluate", ["--beam-size", "0"], "--beam-size must be at least 1, not 0"),
        ("evaluate", ["--json", "no/such.json"], "--json no/such.json cannot be written"),
        ("evaluate", ["--captions", "a.json", "--json", "a.json"], "are both a.json: give two"),
        (
            "evaluate",
            ["--captions", "{data}/../a.json", "--json", "{data}/features/../../a.json"],
            "a.json: give two",
        ),
        ("evaluate", ["--captions", "."], "--captions . cannot be written"),
        ("evaluate", ["--captions", "-"], "--captions - is no file"),
        ("evaluate", ["--captions", "{data}/captions.json"], "would replace a file that is read"),
        ("evaluate", ["--json", "{data}/features/store.json"], "would replace a file that is read"),
        ("evaluate", ["--json", "{data}/../images/4.png"], "would replace a file that is read"),
        ("evaluate", ["--json", "{model}/config.json"], "would replace a file that is read"),
        ("compare", ["--json", "{data}/prepared.json"], "would replace a file that is read"),
        ("evaluate", ["--split", "TEST"], "no split 'TEST': did you mean 'test', of train (3), test (4)?"),
        ("evaluate", ["--tokenizer", "nltk"], "argument --tokenizer: invalid choice: 'nltk'"),
        ("evaluate", ["--model", "nothing"], "no model 'nothing'"),
        ("compare", ["--selections", "soft", "hard"], "unknown selection rule 'hard'"),
        ("compare", ["--seeds", "0"], "--seeds must be at least 1, not 0"),
        ("compare", ["--limit", "0"], "--limit must be at least 1, not 0"),
        ("compare", ["--json", "."], "--json . cannot be written"),
    ],
)
def test_mistakes_end_before_the_work(arguments, folder, capsys, command, asked, message):
    before = {path: path.read_bytes() for path in Path(arguments[3]).rglob("*.json")}
    asked = [part.format(model=arguments[1], data=arguments[3]) for part in asked]
    assert main([command, *arguments, *asked]) == 2
    assert {path: path.read_bytes() for path in Path(arguments[3]).rglob("*.json")} == before
    assert message in error_of(capsys)
    assert list(folder.iterdir()) == []


def test_compare_without_java(arguments, folder, no_java, capsys):
    asked = ["--selections", "argmax", "sample", "--seeds", "2", "--limit", "3"]
    assert main(["compare", *arguments, *asked, "--json", "compared.json"]) == 0
    result = json.loads((folder / "compared.json").read_text())
    assert set(result) == {"rows", "skipped", "warnings", "settings", "versions"}
    assert [(row["selection"], row["seeds"]) for row in result["rows"]] == [
        ("argmax", [0]),
        ("sample", [0, 1]),
    ]
    assert result["settings"]["images"] == 3
    assert result["settings"]["tokenizer"] == "python"

    shown = capsys.readouterr().out
    argmax, sample = (row["metrics"]["BLEU-1"] for row in result["rows"])
    assert "sample (2 seeds)" in shown
    assert f"{argmax['mean']:.4f} " in shown
    assert f"{sample['mean']:.4f} ± {sample['std']:.4f}" in shown
    assert "ms per image" in shown
    assert "METEOR was skipped: Java is not installed" in shown
    assert [path.name for path in folder.iterdir()] == ["compared.json"]


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_reader_that_has_gone_is_no_error(command, arguments, folder, no_java):
    process = subprocess.Popen(
        [sys.executable, "-m", "captioner", command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    process.stdout.close()
    with process.stderr:
        assert b"Traceback" not in process.stderr.read()
    assert process.wait() == 141
