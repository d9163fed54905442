"""The steps of scripts/quickstart.sh as the script has them, with less data and less training."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from captioner.captioner import embedded_models
from captioner.cli import main
from captioner.data import shapes

ROOT = Path(__file__).parents[1]
SCRIPT = (ROOT / "scripts" / "quickstart.sh").read_text()
PHOTOS = "captioner/assets/photos"


def steps() -> dict[str, list[list[str]]]:
    """The arguments of every `captioner COMMAND` in the script, by command."""
    found: dict[str, list[list[str]]] = {}
    for line in SCRIPT.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["captioner"]:
            found.setdefault(words[1], []).append(words[1:])
    return found


def places_named_at_the_end() -> list[str]:
    ending = SCRIPT.partition("Where to look:")[2]
    return re.findall(r"\b(?:out|runs)/[\w./]+", ending)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder in which the script's relative paths lead where they would in a fresh clone."""
    for name in ("captioner", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_shapes_are_prepared_trained_compared_and_captioned(clone, monkeypatch):
    few = partial(shapes.write_shapes, train=64, val=8, test=8)
    monkeypatch.setattr(shapes, "write_shapes", few)
    found = steps()
    (prepare,), (fit,), (compare,) = (found[name] for name in ("prepare", "fit", "compare"))
    assert main(prepare) == 0
    assert main([*fit, "--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"]) == 0
    assert main([*compare, "--seeds", "1"]) == 0
    result = json.loads((clone / "out" / "shapes_compare.json").read_text())
    assert [row["selection"] for row in result["rows"]] == ["sample", "argmax"]
    (caption,) = (step for step in found["caption"] if PHOTOS not in step)
    assert main(caption) == 0
    for place in ("out/shapes", "out/shapes_compare.json", "runs/shapes_hard"):
        assert place in places_named_at_the_end()
        assert (clone / place).exists()


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_sample_photographs_are_captioned(attention, clone):
    assert f"flickr8k-{attention}" in embedded_models()
    (step,) = (step for step in steps()["caption"] if PHOTOS in step)
    assert main([word.replace("$attention", attention) for word in step]) == 0
    photos = [path for path in (ROOT / PHOTOS).iterdir() if path.suffix in (".jpg", ".png")]
    assert len(list((clone / "out" / attention).glob("*.png"))) == len(photos) >= 4
    lines = (clone / "out" / f"{attention}.jsonl").read_text().splitlines()
    assert len({json.loads(line)["caption"] for line in lines}) == len(photos)
