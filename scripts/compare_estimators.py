"""Train the same model by several estimators for the same time, and compare what they have learnt.

    python scripts/compare_estimators.py prepared/flickr8k_5x5 --minutes 15

Two hours on two CPU cores. Each estimator gets as many epochs as fit into the minutes, by the time of its
steps, which is measured for all of them in turn before anything is trained. Scores are of the validation
split, under each model's own rule. The figures go to results/estimators.json, .md and .png after each of
them, and a comparison that was interrupted goes on from there; remove the first to begin anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from captioner.cli import memory  # noqa: F401
from captioner.data.datamodule import CaptionDataModule
from captioner.files import read_json, write_json
from captioner.training.module import CaptioningModule

ESTIMATORS: dict[str, dict[str, Any]] = {
    "soft": {"attention": "soft", "doubly_stochastic": 0.02},
    "top:4": {"attention": "top:4", "doubly_stochastic": 0.02},
    "REINFORCE, moving average": {"attention": "hard"},
    "REINFORCE, to go": {"attention": "hard", "reward": "to-go"},
    "REINFORCE, leave-one-out of 5": {"attention": "hard", "baseline": "leave-one-out", "draws": 5},
    "Gumbel straight-through": {"attention": "hard", "estimator": "straight-through"},
    "hard-soft:8": {"attention": "hard-soft:8"},
}
COMMON = {"region_dropout": 0.5, "label_smoothing": 0.1, "dropout": 0.5, "learning_rate": 1.5e-3}
SCORES = ("BLEU-4", "METEOR", "CIDEr")
TIMED = 8  # steps of each estimator, of which the median counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a folder that `captioner prepare` wrote")
    parser.add_argument("--minutes", type=float, default=15.0, help="of training, for each (%(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/estimators"), help="(%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="(%(default)s)")
    parser.add_argument("--beam-size", type=int, default=3, help="(%(default)s)")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    file = args.results / "estimators.json"
    how = {"data": args.data, "minutes": args.minutes, "beam_size": args.beam_size, "settings": COMMON}
    if not file.exists():
        write_json({"how": how, "plan": plan(args.data, args.minutes), "estimators": []}, file)
    found = read_json(file)
    if found["how"] != how:
        parser.error(f"{file} is of another comparison, {found['how']}: remove it to begin anew")
    rows = found["estimators"]
    for name, settings in ESTIMATORS.items():
        if name in {row["estimator"] for row in rows}:
            continue
        folder = args.runs / name.replace(" ", "_").replace(",", "").replace(":", "_")
        planned = found["plan"][name]
        shutil.rmtree(folder, ignore_errors=True)  # of a comparison that was interrupted
        train(args.data, folder, settings, planned["epochs"])
        evaluate(args.data, folder, args.beam_size)
        rows.append({"estimator": name, **planned, **figures(folder)})
        write_json(found, file)
        (args.results / "estimators.md").write_text(table(rows))
        draw(rows, args.results / "estimators.png")
        print(json.dumps(rows[-1]), flush=True)


def plan(data: str, minutes: float) -> dict[str, dict[str, Any]]:
    """Seconds a step and epochs of each estimator."""
    modules = {name: CaptioningModule(data, **COMMON | settings) for name, settings in ESTIMATORS.items()}
    batches = list(zip(range(TIMED), CaptionDataModule(data).train_dataloader(), strict=False))
    steps = len(CaptionDataModule(data).train_dataloader())
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    for _, batch in batches:
        for name, module in modules.items():
            optimizer = torch.optim.Adam(module.captioner.decoder.parameters(), fused=True)
            start = time.perf_counter()
            module.objective(batch).total.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds[name].append(time.perf_counter() - start)
    plans = {}
    for name, times in seconds.items():
        step = statistics.median(times)
        epochs = max(1, round(minutes * 60 / (steps * step)))
        plans[name] = {"step_seconds": step, "epochs": epochs, "minutes": epochs * steps * step / 60}
        print(f"{name}: {step:.3f} s a step, {epochs} epochs of {steps}", flush=True)
    return plans


def train(data: str, folder: Path, settings: dict[str, Any], epochs: int) -> None:
    named = {f"--model.{name}": value for name, value in (COMMON | settings).items()}
    named |= {"--trainer.max_epochs": epochs, "--trainer.default_root_dir": folder}
    options = [f"{name}={value}" for name, value in named.items()]
    common = [
        "--trainer.log_every_n_steps=10",
        "--trainer.num_sanity_val_steps=0",
        "--early_stopping.patience=100",
    ]
    run("fit", f"--data.prepared={data}", *options, *common, "--gradient_variance.every=20")


def evaluate(data: str, folder: Path, beam_size: int) -> None:
    places = ["--model", folder / "model", "--data", data, "--json", folder / "val.json"]
    run("evaluate", *places, "--split", "val", "--beam-size", beam_size)


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "captioner", *map(str, arguments)], check=True)


def figures(folder: Path) -> dict[str, Any]:
    """Scores, and the medians in the last quarter of the run of what was logged of its gradients."""
    scores = json.loads((folder / "val.json").read_text())
    with (folder / "csv" / "version_0" / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))

    def late(name: str) -> float:
        values = [float(row[name]) for row in logged if row.get(name)]
        return statistics.median(values[-max(1, len(values) // 4) :])

    config = json.loads((folder / "model" / "config.json").read_text())
    return {
        "rule": config["selection"],
        **{name: scores["metrics"][name] for name in SCORES},
        "validation": [float(row["val/CIDEr"]) for row in logged if row.get("val/CIDEr")],
        "gradient_variance": late("train/gradient_variance"),
        "gradient_square": late("train/gradient_square"),
        "entropy": late("train/entropy"),
        "gate": late("train/gate"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, the best CIDEr first."""
    head = ["estimator", "rule", *SCORES, "s a step", "epochs", "minutes", "variance", "variance / square"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 2 + " ---: |" * (len(head) - 2)]
    for row in sorted(rows, key=lambda row: -row["CIDEr"]):
        ratio = row["gradient_variance"] / max(row["gradient_square"], 1e-12)
        scores = ["-" if row[name] is None else f"{100 * row[name]:.1f}" for name in SCORES]
        numbers = [f"{row['step_seconds']:.2f}", row["epochs"], f"{row['minutes']:.0f}"]
        spread = [f"{row['gradient_variance']:.2g}", f"{ratio:.2g}"]
        cells = [row["estimator"], row["rule"], *scores, *numbers, *spread]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """CIDEr of the validation captions as training goes on, and the gradient's variance beside its square."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    ranked = sorted(rows, key=lambda row: -row["CIDEr"])
    for i, row in enumerate(ranked):
        epochs = range(1, len(row["validation"]) + 1)
        minutes = [epoch / row["epochs"] for epoch in epochs]
        left.plot(
            minutes, row["validation"], marker=".", color=f"C{i}", label=f"{row['estimator']} ({row['rule']})"
        )
    left.set(xlabel="share of the training time", ylabel="CIDEr on validation, greedy")
    left.legend(fontsize=8)
    names = [row["estimator"] for row in ranked]
    ratios = [row["gradient_variance"] / max(row["gradient_square"], 1e-12) for row in ranked]
    right.barh(names, ratios, color=[f"C{i}" for i in range(len(rows))])
    right.set(xscale="log", xlabel="variance of the attention's gradient / squared norm of its mean")
    right.invert_yaxis()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
