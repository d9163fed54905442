"""Measure what the README claims: `python scripts/bench.py aim`, `speed` or `memory`, from the root.

aim: trains hard attention on the shapes (configs/shapes_hard.yaml) and prints how often the selected region
    lies on the named thing, on the test split, with the time that training took.
speed: times the decoder's training step under each selection rule, interleaved in one run, as ratios to soft;
    and `captioner caption` as a whole process.
memory: times encoding 32 photographs, and a training step, in a process that keeps freed memory as the
    commands do and in one that does not, interleaved, as ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from captioner.attention.estimators import ExpectationMixing
from captioner.attention.scoring import region_places
from captioner.attention.selection import Argmax, Sample, SelectionRule, Soft
from captioner.cli.memory import keep_freed_memory
from captioner.model.decoder import Decoder
from captioner.model.encoder import Encoder
from captioner.training.objectives import word_loss

ROOT = Path(__file__).parents[1]
BAR = 0.90


def aim() -> int:
    """Train on the shapes in a temporary folder; the exit code says whether the bar was reached."""
    from captioner.captioner import Captioner
    from captioner.data.prepared import Prepared
    from captioner.evaluation.generate import generate, split_images
    from captioner.evaluation.grounding import pointing

    with tempfile.TemporaryDirectory() as folder:
        run("prepare", "shapes", "--out", f"{folder}/shapes")
        started = time.perf_counter()
        run(
            *("fit", "--config", str(ROOT / "configs" / "shapes_hard.yaml")),
            *("--data.prepared", f"{folder}/shapes", "--trainer.default_root_dir", f"{folder}/run"),
        )
        seconds = time.perf_counter() - started
        model, prepared = Captioner.load(f"{folder}/run/model"), Prepared.open(f"{folder}/shapes")
        images = split_images(prepared, "test")
        shares = {}
        for rule in ("argmax", "sample"):
            captions = generate(model, prepared, "test", rule, beam_size=1)
            shares[rule] = pointing(captions, images, prepared) or 0.0
    print(f"training took {seconds:.0f} s")
    for rule, share in shares.items():
        print(f"{rule}: the selected region lies on the named shape for {share:.1%} of the nouns")
    return 0 if shares["argmax"] >= BAR else 1


def speed() -> int:
    rules: dict[str, SelectionRule] = {
        "soft": Soft(),
        "sample": Sample(),
        "argmax": Argmax(),
        "sample, half expected": ExpectationMixing(torch.arange(32) % 2 == 0),
    }
    steps = {name: partial(train_step, rule) for name, rule in rules.items()}
    print(f"training step, 160 captions of 12 words, {torch.get_num_threads()} threads")
    report(interleaved(steps, 8))
    names = ("additive", "general", "concat", "scaled-dot", "multi-head:8", "local:0.3")
    print("the same by scoring function, soft")
    report(interleaved({name: partial(train_step, Soft(), name) for name in names}, 8))
    photo = str(ROOT / "captioner" / "assets" / "photos" / "dog.jpg")
    print("captioner caption dog.jpg, whole process")
    report(interleaved({"one photograph": lambda: run("caption", photo)}, 5))
    return 0


def memory() -> int:
    """Two processes that take turns, as freed memory is kept for good once it is."""
    spawn = multiprocessing.get_context("spawn")
    works: dict[str, Callable[[], None]] = {
        "encoding 32 photographs of 320 x 320": encode_photographs,
        "training step, 160 captions of 12 words": partial(train_step, Soft()),
    }
    with (
        ProcessPoolExecutor(1, spawn) as usual,
        ProcessPoolExecutor(1, spawn, initializer=keep_freed_memory) as keeping,
    ):
        for title, work in works.items():
            print(f"{title}, {torch.get_num_threads()} threads")
            turns = {"freed memory goes back": usual, "freed memory is kept": keeping}
            report(interleaved({name: partial(run_in, pool, work) for name, pool in turns.items()}, 8))
    return 0


def run_in(pool: ProcessPoolExecutor, work: Callable[[], None]) -> None:
    pool.submit(work).result()


@cache
def captions() -> tuple[Tensor, Tensor, Tensor]:
    """A batch: features, words, lengths."""
    torch.manual_seed(0)
    features, words = torch.randn(32, 49, 1280), torch.randint(4, 2542, (32, 5, 13))
    return features, words, torch.full((32, 5), 12)


@cache
def decoder(scoring: str) -> Decoder:
    return Decoder(2542, 1280, scoring=scoring)


def train_step(rule: SelectionRule, scoring: str = "additive") -> None:
    features, words, lengths = captions()
    memory = decoder(scoring).read(features, region_places(7, 7))
    word_loss(decoder(scoring)(memory, words, lengths, rule), 0.1).mean().backward()
    decoder(scoring).zero_grad()


@cache
def photographs() -> tuple[Encoder, Tensor]:
    return Encoder(), torch.rand(32, 3, 320, 320)


@torch.inference_mode()
def encode_photographs() -> None:
    encoder, pixels = photographs()
    encoder(pixels)


def interleaved(work: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each piece of work in turn, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(rounds + 1):
        for name, task in work.items():
            started = time.perf_counter()
            task()
            if round_:
                times[name].append(time.perf_counter() - started)
    return times


def report(times: dict[str, list[float]]) -> None:
    """Median seconds, and the ratio to the first row, round by round."""
    first = next(iter(times.values()))
    for name, seconds in times.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds, first, strict=True))
        print(f"  {name:24} {statistics.median(seconds):7.3f} s   x {ratio:.2f}")


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "captioner", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("aim", "speed", "memory"))
    sys.exit({"aim": aim, "speed": speed, "memory": memory}[parser.parse_args().what]())
