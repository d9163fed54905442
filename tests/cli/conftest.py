"""Commands as a user runs them, and a small model and pictures to run them on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.cli import main
from captioner.data.images import Preprocess
from captioner.model.decoder import Decoder
from captioner.model.encoder import Encoder
from captioner.text.vocabulary import Vocabulary


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `captioner` with these arguments as a process of its own, in a temporary folder."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "captioner", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `captioner` here and expect exit code 2 and one line; the line after its beginning."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        complaint = capsys.readouterr().err
        assert complaint.startswith("captioner: error: ")
        assert complaint.count("\n") == 1
        return complaint.removeprefix("captioner: error: ").strip()

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained hard model of 64 x 64 pixels and 4 x 4 regions."""
    torch.manual_seed(1)
    encoder = Encoder("patches")
    vocabulary = Vocabulary([*Vocabulary.special, "dog", "cat", "runs", "sits", "green", "grass"])
    decoder = Decoder(len(vocabulary), 706, 8, 8, 8, 8)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    captioner = Captioner(encoder, decoder, vocabulary, Preprocess((64, 64)), selection="argmax")
    return captioner.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five photographs of noise of several shapes; two have the same stem."""
    folder = tmp_path_factory.mktemp("pictures")
    names = ("beach.png", "cat.jpg", "more/beach.jpg", "more/dog.png", "zebra.png")
    random = np.random.default_rng(0)
    for name, (height, width) in zip(names, [(64, 64), (48, 96), (96, 48), (30, 30), (64, 80)], strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        noise = random.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(folder / name)
    return [folder / name for name in names]


@pytest.fixture
def bad_pictures(tmp_path: Path, pictures: list[Path]) -> list[Path]:
    """Half a JPEG, an empty file, and a web page that claims to be a JPEG."""
    folder = tmp_path / "bad"
    folder.mkdir()
    whole = pictures[1].read_bytes()
    contents = {
        "half.jpg": whole[: len(whole) // 2],
        "empty.jpg": b"",
        "page.jpg": b"<!doctype html><html><body>404</body></html>",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
