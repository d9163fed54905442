import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.data.captions import CaptionedImage, CaptionSet
from captioner.data.images import Preprocess
from captioner.data.prepared import prepare
from captioner.model.decoder import Decoder
from captioner.model.encoder import Encoder
from captioner.text.vocabulary import Vocabulary

WORDS = ("red", "blue", "green", "black", "white", "brown", "grey")


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    """A PATH without java."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """A function that puts a shell script in java's place."""

    def install(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "java"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture(scope="session")
def java():
    if shutil.which("java") is None:
        pytest.skip("needs Java: apt-get install default-jre-headless")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Seven pictures of noise, four of them for testing, of 2 x 2 regions."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    (root / "images").mkdir()
    images = []
    for number in range(7):
        name, split = f"{number}.png", "train" if number < 3 else "test"
        noise = random.integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(root / "images" / name)
        texts = (f"a {WORDS[number]} dog runs", f"the dog sits on {WORDS[number - 1]} grass")
        images.append(CaptionedImage(100 + number, name, texts, split))
    return prepare(
        CaptionSet(images),
        root / "images",
        root / "prepared",
        Encoder("patches"),
        Preprocess((32, 32)),
        min_count=1,
        workers=0,
    )


@pytest.fixture(scope="session")
def captioner(prepared):
    """An untrained model whose selections and captions vary."""
    torch.manual_seed(1)
    vocabulary = Vocabulary([*Vocabulary.special, "a", "the", "dog", "runs", "sits", *WORDS])
    encoder = Encoder(**prepared.encoder)
    _, size = encoder.measure(prepared.preprocess.size)
    decoder = Decoder(len(vocabulary), size, None, 8, 8, 8)
    for weights in decoder.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    return Captioner(encoder, decoder, vocabulary, prepared.preprocess, selection="argmax")
