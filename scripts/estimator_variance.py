"""How far the gradient estimators scatter, and how far off their means are, at equal draws.

    python scripts/estimator_variance.py --model flickr8k-soft --data prepared/flickr8k

About seven minutes on a CPU core. First on a small decoder, three regions and three words, whose 27 selection
paths are enumerated, so that all but the relaxations' figures are exact; then on a model of the shapes, which
is trained for a few epochs, and, where they are given, on a model and its prepared data. Figures are of the
attention's parameters; the table goes to results/variance.md.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
from torch import Tensor

from captioner.attention.estimators import GumbelSoftmax, to_go
from captioner.attention.selection import Argmax, Rule, Selection, SelectionRule, Soft, chosen
from captioner.data.datamodule import CaptionDataModule
from captioner.data.images import Preprocess
from captioner.data.prepared import prepare
from captioner.data.shapes import write_shapes
from captioner.model.decoder import Decoder, Transcript
from captioner.model.encoder import Encoder
from captioner.training.module import CaptioningModule
from captioner.training.objectives import word_log_probs

DRAWS = 5
WORDS, LENGTHS = torch.tensor([[[1, 4, 5, 2]]]), torch.tensor([[3]])
PATHS = torch.tensor(list(itertools.product(range(3), repeat=3)))
# reward, baseline
SCORE_FUNCTION = [
    *(("whole", "none"), ("whole", "average"), ("whole", "argmax"), ("whole", "soft")),
    *(("to-go", "none"), ("to-go", "average"), ("to-go", "argmax"), ("to-go", "soft")),
    *(("whole", "leave-one-out"), ("to-go", "leave-one-out"), ("to-go", "mean")),
]
RELAXED = [("gumbel", 1.0), ("gumbel", 0.3), ("straight-through", 1.0), ("straight-through", 0.3)]


@dataclass
class Row:
    """Of a mean over `DRAWS` draws: the trace of the covariance, and the bias as a share of the gradient."""

    name: str
    variance: float
    bias: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a model's name or folder")
    parser.add_argument("--data", help="its data, a folder that `captioner prepare` wrote")
    parser.add_argument("--results", type=Path, default=Path("results"), help="(%(default)s)")
    args = parser.parse_args()
    torch.manual_seed(0)
    text = f"Small decoder, {DRAWS} draws:\n\n{table(small_decoder())}"
    text += f"\nShapes, {DRAWS} draws of each caption of a batch:\n\n{table(shapes())}"
    if args.model and args.data:
        rows = scattered(args.model, args.data, 8, repeats=40)
        text += f"\n{args.model} on a batch of {args.data}:\n\n{table(rows)}"
    print(text)
    args.results.mkdir(exist_ok=True)
    (args.results / "variance.md").write_text(text)


def table(rows: list[Row]) -> str:
    by_name = {row.name: row.variance for row in rows}
    none, average = by_name["whole, none"], by_name["whole, average"]
    lines = ["| estimator | variance | of none | of average | bias |", "|" + " --- |" * 5]
    for row in rows:
        bias = "" if row.bias is None else f"{100 * row.bias:.1f} %"
        shares = f"{row.variance / none:.4f} | {row.variance / average:.2f}"
        lines.append(f"| {row.name} | {row.variance:.3g} | {shares} | {bias} |")
    return "\n".join(lines) + "\n"


def small_decoder() -> list[Row]:
    torch.manual_seed(1)
    decoder = Decoder(6, 4, None, 5, 6, 6, dropout=0.0).double()
    with torch.no_grad():
        for parameter in decoder.scoring.parameters():
            parameter.mul_(3)
    features = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return [*enumerated(decoder, features), *relaxed(decoder, features)]


class Given(Rule):
    """Given regions (27, T), one step a call."""

    name = "sample"

    def __init__(self, paths: Tensor) -> None:
        self.steps = iter(paths.unbind(-1))

    def __call__(self, scores: Tensor, values: Tensor, u: Tensor | None = None) -> Selection:
        log_weights = scores.log_softmax(-1)
        return chosen(log_weights, log_weights.exp(), values, next(self.steps)[None])


def read(decoder: Decoder, features: Tensor, rule: SelectionRule, n: int = 1) -> Transcript:
    return decoder(decoder.read(features), WORDS.expand(1, n, -1), LENGTHS.expand(1, n), rule)


def gradient(decoder: Decoder, scalar: Tensor) -> Tensor:
    parameters = list(decoder.scoring.parameters())
    parts = torch.autograd.grad(
        scalar, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in parts])


def enumerated(decoder: Decoder, features: Tensor) -> list[Row]:
    drawn = read(decoder, features, Given(PATHS), len(PATHS))
    log_p, rewards = drawn.padded(drawn.log_prob)[0], drawn.padded(word_log_probs(drawn))[0]
    p = log_p.sum(-1).exp()
    exact = gradient(decoder, (p * rewards.sum(-1)).sum())
    pathwise = torch.stack([gradient(decoder, one) for one in rewards.sum(-1)])
    scores = torch.stack([torch.stack([gradient(decoder, one) for one in path]) for path in log_p])
    p, rewards = p.detach(), rewards.detach()
    of_rules = {
        name: read(decoder, features, rule) for name, rule in (("argmax", Argmax()), ("soft", Soft()))
    }
    readings = {name: word_log_probs(found).detach()[None] for name, found in of_rules.items()}
    tuples = torch.multinomial(p, 200_000 * DRAWS, replacement=True).view(-1, DRAWS)
    rows = []
    for reward, baseline in SCORE_FUNCTION:
        returns_of = to_go if reward == "to-go" else whole
        returns = returns_of(rewards)
        if baseline in ("leave-one-out", "mean"):
            values = returns[tuples]
            mean = values.mean(1, keepdim=True)
            b = (mean * DRAWS - values) / (DRAWS - 1) if baseline == "leave-one-out" else mean
            gradients = pathwise[tuples].mean(1)
            gradients += torch.einsum("ndt,ndtp->np", values - b, scores[tuples]) / DRAWS
            variance = gradients.var(0).sum().item()
            share = (DRAWS - 1) / DRAWS if baseline == "mean" else 1.0
            expected = p @ pathwise + share * (p @ torch.einsum("nt,ntp->np", returns, scores))
        else:
            b = baseline_of(baseline, rewards, p, readings, returns_of)
            gradients = pathwise + torch.einsum("nt,ntp->np", returns - b, scores)
            expected = p @ gradients
            variance = (p @ (gradients - expected).square()).sum().item() / DRAWS
        bias = ((expected - exact).norm() / exact.norm()).item()
        rows.append(Row(f"{reward}, {baseline}", variance, bias))
    return rows


def whole(rewards: Tensor) -> Tensor:
    return rewards.sum(-1, keepdim=True).expand_as(rewards)


def baseline_of(
    name: str,
    rewards: Tensor,
    p: Tensor,
    readings: dict[str, Tensor],
    returns_of: Callable[[Tensor], Tensor],
) -> Tensor:
    if name == "none":
        return torch.zeros_like(rewards)
    if name == "average":  # where it settles
        return returns_of((p @ rewards).expand_as(rewards))
    return returns_of(readings[name])


def relaxed(decoder: Decoder, features: Tensor, groups: int = 200, size: int = 100) -> list[Row]:
    """By chance, the bias with about 2 % of error."""
    drawn = read(decoder, features, Given(PATHS), len(PATHS))
    p = drawn.per_caption(drawn.log_prob).exp()
    exact = gradient(decoder, (p * drawn.per_caption(word_log_probs(drawn))).sum())
    rows = []
    for name, temperature in RELAXED:
        rule = GumbelSoftmax(temperature, name == "straight-through")
        means = torch.stack(
            [
                gradient(decoder, word_log_probs(read(decoder, features, rule, size)).sum() / size)
                for _ in range(groups)
            ]
        )
        variance = means.var(0).sum().item() * size / DRAWS
        bias = ((means.mean(0) - exact).norm() / exact.norm()).item()
        rows.append(Row(f"{name}, temperature {temperature}", variance, bias))
    return rows


def shapes() -> list[Row]:
    settings = {"feature_size": 128, "embedding_size": 64, "hidden_size": 128, "attention_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        captions = write_shapes(root, train=600, val=20, test=20)
        prepare(captions, root / "images", root, Encoder("efficientnet_lite0"), Preprocess((112, 112)), 1)
        return scattered(trained(root, settings), str(root), 32, repeats=60, **settings)


def scattered(model: str, data: str, batch_size: int, repeats: int, **settings: object) -> list[Row]:
    """The variances of a batch's gradient, the model's own dropout left out."""
    still = {"dropout": 0.0, "label_smoothing": 0.0, "lambda_e": 0.0, "lambda_r": 1.0, "expectation": 0.0}
    batch = next(iter(CaptionDataModule(data, batch_size).train_dataloader()))

    def row(name: str, **estimator: object) -> Row:
        module = CaptioningModule(data, "hard", model, draws=DRAWS, **settings, **still, **estimator)
        with torch.no_grad():
            for _ in range(30):  # the average settles
                module.objective(batch)
        return Row(name, scatter(module, batch, repeats))

    rows = [
        row(f"{reward}, {baseline}", reward=reward, baseline=baseline) for reward, baseline in SCORE_FUNCTION
    ]
    return rows + [
        row(f"{name}, temperature {temperature}", estimator=name, temperature=temperature)
        for name, temperature in RELAXED
    ]


def scatter(module: CaptioningModule, batch: object, repeats: int) -> float:
    gradients = torch.stack([module.attention_gradient(batch, seed) for seed in range(repeats)])
    return gradients.var(0).sum().item()


def trained(root: Path, settings: dict[str, object]) -> str:
    L.seed_everything(0, verbose=False)
    module = CaptioningModule(
        str(root),
        "hard",
        learning_rate=5e-3,
        dropout=0.0,
        label_smoothing=0.0,
        lambda_r=0.2,
        lambda_e=0.0,
        **settings,
    )
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, CaptionDataModule(str(root), batch_size=32))
    return str(module.captioner.save(root / "model"))


if __name__ == "__main__":
    main()
