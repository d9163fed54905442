import csv
import inspect
import json
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import torchvision
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from captioner.attention.estimators import ExpectationMixing, GumbelSoftmax, Reinforce
from captioner.attention.scoring import region_places
from captioner.attention.selection import selection_rule
from captioner.captioner import Captioner
from captioner.data.datamodule import CaptionDataModule, encode_captions, pad, unpad
from captioner.data.images import Preprocess
from captioner.data.prepared import prepare
from captioner.data.shapes import write_shapes
from captioner.errors import UserError
from captioner.evaluation.generate import generate
from captioner.model.encoder import Encoder
from captioner.text.vocabulary import Vocabulary
from captioner.training.callbacks import GradientVariance, RandomState, SaveBest
from captioner.training.module import DEFAULTS, CaptioningModule, drop_regions
from captioner.training.objectives import (
    hard_objective,
    self_critical_objective,
    soft_objective,
    word_log_probs,
)
from captioner.training.reward import CiderD
from captioner.training.settings import check_settings

SMALL = {"feature_size": 8, "embedding_size": 8, "hidden_size": 8, "attention_size": 8}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("shapes")
    captions = write_shapes(root, train=12, val=4, test=2)
    return prepare(captions, root / "images", root, Encoder("patches"), Preprocess((112, 112)), 1, workers=0)


def fit(
    prepared,
    root,
    epochs,
    checkpoint=None,
    max_epochs=None,
    plugins=None,
    val_check_interval=None,
    callbacks=(),
    **settings,
):
    L.seed_everything(3, verbose=False)
    module = CaptioningModule(str(prepared.root), **SMALL | settings)
    data = CaptionDataModule(str(prepared.root), batch_size=5)
    trainer = L.Trainer(
        default_root_dir=root,
        max_epochs=max_epochs or epochs,
        plugins=plugins,
        accelerator="cpu",
        logger=L.pytorch.loggers.CSVLogger(root, name="log"),
        val_check_interval=val_check_interval,
        callbacks=[
            *callbacks,
            SaveBest(),
            RandomState(),
            StopAfter(epochs),
            ModelCheckpoint(root, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data, ckpt_path=checkpoint)
    return module, trainer


class StopAfter(L.Callback):
    """Interrupt a run of more epochs, so that its learning-rate schedule is the whole run's."""

    def __init__(self, epochs):
        self.epochs = epochs

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch + 1 >= self.epochs


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_a_resumed_run_is_the_same_run_bit_for_bit(prepared, tmp_path, attention):
    """2 + 2 epochs equal 4: weights, optimiser, schedule, random states, batches and baseline."""
    torch.set_num_threads(1)
    whole, _ = fit(prepared, tmp_path / "whole", 4, attention=attention)
    _, half = fit(prepared, tmp_path / "half", 2, max_epochs=4, attention=attention)
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = fit(prepared, tmp_path / "resumed", 4, tmp_path / "half.ckpt", attention=attention)
    torch.set_num_threads(2)
    other = resumed.state_dict()
    for key, value in whole.state_dict().items():
        assert torch.equal(value, other[key]), key
    if attention == "hard":
        assert whole.reinforce.average.value.item() < 0


def test_a_run_that_validates_within_epochs_resumes_from_their_ends(prepared, tmp_path):
    settings = {"max_epochs": 3, "attention": "hard", "val_check_interval": 0.5}
    whole, _ = fit(prepared, tmp_path / "whole", 3, **settings)
    resumed, _ = fit(prepared, tmp_path / "resumed", 3, tmp_path / "whole" / "epoch=0.ckpt", **settings)
    other = resumed.state_dict()
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(other[key], value, msg=key)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_self_critical_training_raises_the_reward(prepared, tmp_path, attention):
    settings = {"attention": attention, "learning_rate": 0.02, "dropout": 0.0, "label_smoothing": 0.0}
    fit(prepared, tmp_path / "likelihood", 12, **settings)
    start = str(tmp_path / "likelihood" / "model")
    fit(prepared, tmp_path / "reward", 12, start=start, self_critical=6, **settings)
    with open(tmp_path / "reward" / "log" / "version_0" / "metrics.csv") as file:
        rewards = [float(row["train/CIDEr-D"]) for row in csv.DictReader(file) if row["train/CIDEr-D"]]
    assert len(rewards) == 12 * 3
    assert np.mean(rewards[-9:]) > 1.15 * np.mean(rewards[:9]) > 0


def test_scaled_gradients_are_clipped_as_what_they_are(prepared, tmp_path):
    """A gradient scaler multiplies them by 128 first."""
    scaling = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=128.0))
    norms = []
    for name, plugin in (("plain", None), ("scaled", scaling)):
        _, trainer = fit(prepared, tmp_path / name, 1, plugins=plugin, dropout=0.0)
        with open(tmp_path / name / "log" / "version_0" / "metrics.csv") as file:
            norms.append(float(next(csv.DictReader(file))["train/gradient_norm"]))
        assert trainer.optimizers[0].defaults["fused"] == (plugin is None)
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


@pytest.mark.parametrize("rule", ["top:50", "sample:50", "hard-soft:50"])
def test_rules_select_no_more_regions_than_there_are(prepared, rule):
    message = f"model.validate_with {rule}: 50 regions cannot be selected of 49: choose 1 to 49"
    with pytest.raises(UserError, match=message):
        CaptioningModule(str(prepared.root), validate_with=rule, **SMALL)
    with pytest.raises(UserError, match=r"model\.attention top:25: 25 regions cannot be selected of 24"):
        CaptioningModule(str(prepared.root), "top:25", region_dropout=0.5, **SMALL)
    fitting = rule.replace("50", "49")
    assert CaptioningModule(str(prepared.root), validate_with=fitting, **SMALL).captioner.selection == fitting


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"max_epochs": 2}, "model.finetune_from 2 is after the last of 2 epochs, counted from 0"),
        ({"max_epochs": 3}, None),
        ({"max_epochs": -1, "max_steps": 1}, None),
        ({"max_steps": 1}, None),
        ({"max_epochs": 2, "fast_dev_run": True}, None),
    ],
)
def test_fine_tuning_begins_within_the_run(prepared, tmp_path, trainer, message):
    module = CaptioningModule(str(prepared.root), finetune_from=2, **SMALL)
    data = CaptionDataModule(str(prepared.root), batch_size=5, photographs=True)
    settings = {"default_root_dir": tmp_path, "accelerator": "cpu", "limit_train_batches": 1, "logger": False}
    run = L.Trainer(**settings, enable_progress_bar=False, enable_checkpointing=False, **trainer)
    if message is None:
        return run.fit(module, data)
    with pytest.raises(UserError, match=message):
        run.fit(module, data)


def test_self_critical_training_knows_no_dropout(prepared):
    module = CaptioningModule(str(prepared.root), self_critical=2, **SMALL | {"dropout": 0.5})
    assert module.captioner.decoder.dropout.p == 0.0


def test_one_draw_has_nothing_to_be_compared_with(prepared):
    with pytest.raises(UserError, match="at least 2 draws"):
        CaptioningModule(str(prepared.root), self_critical=1, **SMALL)


def test_regions_are_left_out_at_random_for_each_photograph():
    features = torch.arange(2 * 10.0).view(2, 10, 1)
    torch.manual_seed(0)
    places = region_places(2, 5)
    drawn = [drop_regions(features, places, 0.3) for _ in range(200)]
    for part, where in drawn:
        assert torch.equal(where[1], places[part[1].flatten().long() - 10])
    kept = [part for part, _ in drawn]
    assert {part.shape for part in kept} == {(2, 7, 1)}
    for part in kept:
        assert len(set(part[0].flatten().tolist())) == 7 and set(part[1].flatten().tolist()) <= set(
            range(10, 20)
        )
    shares = torch.bincount(torch.cat([part[0] for part in kept]).flatten().long(), minlength=10) / 200
    assert (shares - 0.7).abs().max() < 0.12
    assert any(not torch.equal(part[0], part[1] - 10) for part in kept)
    assert drop_regions(features, places, 0.0) == (features, places)
    assert drop_regions(features, places, 1.0)[0].shape == (2, 1, 1)


def test_unpadded_captions_are_those_that_were_padded():
    captions = [[[4, 5, 2], [6, 2]], [[7, 2]]]
    assert unpad(*pad(captions)) == captions


def test_checkpoints_load_with_weights_only(prepared, tmp_path):
    _, trainer = fit(prepared, tmp_path, 1)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True)["epoch"] == 1


def test_the_best_model_is_saved_and_captions(prepared, tmp_path):
    fit(prepared, tmp_path, 1, attention="hard")
    model = Captioner.load(tmp_path / "model")
    assert model.trained_with == "sample" and model.selection == "argmax"
    photo = prepared.images / prepared.captions.images[0].file_name
    assert model.caption(photo).grid == (7, 7)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["training"]["attention"] == "hard" and "val/CIDEr" in config["training"]


def test_the_figures_of_hard_attention_are_logged(prepared, tmp_path):
    fit(prepared, tmp_path, 1, attention="hard", expectation=0.0)
    with open(tmp_path / "log" / "version_0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    first = rows[0]
    assert float(first["train/reward"]) == pytest.approx(float(first["train/baseline"]))
    for name in ("loss", "entropy", "gradient_norm", "word_loss"):
        assert np.isfinite(float(first[f"train/{name}"]))
    assert 0 < float(first["train/entropy"]) <= np.log(49) + 1e-5
    assert float(rows[-1]["val/CIDEr"]) >= 0


@pytest.mark.parametrize("baseline", ["soft", "argmax"])
def test_a_baseline_is_read_under_the_same_dropout(prepared, baseline):
    module = CaptioningModule(str(prepared.root), "hard", **SMALL | {"dropout": 0.5})
    batch = CaptionDataModule(str(prepared.root), batch_size=5).val_dataloader().dataset[[0, 1]]
    memory, rule = module.read(batch), selection_rule(baseline)
    reading = module.reading(rule, memory, batch.words, batch.lengths)
    again = module.captioner.decoder(memory, batch.words, batch.lengths, rule)
    torch.testing.assert_close(again.padded(word_log_probs(again)), reading)
    other = module.captioner.decoder(memory, batch.words, batch.lengths, rule)
    assert not torch.allclose(other.padded(word_log_probs(other)), reading)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_measuring_the_gradients_variance_leaves_no_trace(prepared, tmp_path, attention):
    runs = []
    for every in (0, 1):
        measured = GradientVariance(every)
        settings = {"attention": attention, "dropout": 0.0, "expectation": 0.0}
        module, _ = fit(prepared, tmp_path / str(every), 2, callbacks=[measured], **settings)
        runs.append(module.state_dict())
    for name, tensor in runs[0].items():
        assert torch.equal(tensor, runs[1][name]), name
    with open(tmp_path / "1" / "log" / "version_0" / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    variances = [float(row["train/gradient_variance"]) for row in rows]
    # Without dropout nothing is drawn for soft attention.
    assert all(v == 0 for v in variances) if attention == "soft" else all(v > 0 for v in variances)


def test_the_variance_is_that_of_many_gradients(prepared):
    """Half the squared distance of two, on average, is the spread of many about their mean."""
    module = CaptioningModule(str(prepared.root), "hard", **SMALL | {"dropout": 0.0})
    batch = CaptionDataModule(str(prepared.root), batch_size=5).train_dataloader().dataset[range(5)]
    module.reinforce.average.value.fill_(-20.0)
    module.reinforce.average.started.fill_(True)
    many = torch.stack([module.attention_gradient(batch, seed) for seed in range(200)])
    pairs = (many[::2] - many[1::2]).square().sum(1) / 2
    assert pairs.mean().item() == pytest.approx(many.var(0).sum().item(), rel=0.15)
    assert torch.equal(many[3], module.attention_gradient(batch, 3))
    assert module.reinforce.average.value.item() == -20.0


def test_training_from_a_models_words(prepared, tmp_path):
    soft, _ = fit(prepared, tmp_path / "soft", 1)
    start = str(tmp_path / "soft" / "model")
    hard = CaptioningModule(str(prepared.root), "hard", start=start, gist=0.5, **SMALL)
    assert hard.captioner.decoder.gist == 0.5
    hard.captioner.save(tmp_path / "hard")
    for gist, expected in ((None, 0.5), (0.0, 0.0)):
        again = CaptioningModule(str(prepared.root), start=str(tmp_path / "hard"), gist=gist, **SMALL)
        assert again.captioner.decoder.gist == expected
    for key, value in soft.captioner.decoder.state_dict().items():
        torch.testing.assert_close(hard.captioner.decoder.state_dict()[key], value, atol=1e-3, rtol=1e-3)
    for changes, message in (
        ({"hidden_size": 9}, "has hidden_size 8 instead of 9: set model.hidden_size 8$"),
        (
            {"feature_size": None, "attention_size": 7},
            "has feature_size 8 instead of None, attention_size 8 instead of 7: "
            "set model.feature_size 8, model.attention_size 8$",
        ),
    ):
        with pytest.raises(UserError, match=message):
            CaptioningModule(str(prepared.root), "hard", start=start, **SMALL | changes)

    def other(preprocess, grid=None):
        root = tmp_path / f"{preprocess.resize}_{grid}"
        captions, encoder = write_shapes(root, train=12, val=4, test=2), Encoder("patches", grid=grid)
        data = prepare(captions, root / "images", root, encoder, preprocess, 1, workers=0)
        return CaptioningModule(str(data.root), "hard", start=start, **SMALL)

    assert other(Preprocess((112, 112)), (3, 4)).grid == (3, 4)
    with pytest.raises(UserError, match="reads features with resize 'squash' instead of 'pad': run `capt"):
        other(Preprocess((112, 112), "pad"))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "soft", "doubly_stochastic": 0.7},
        {"attention": "top:4", "doubly_stochastic": 0.7, "scoring": "local:0.5", "region_dropout": 0.5},
        {"attention": "hard", "lambda_r": 0.3, "lambda_e": 0.02, "region_dropout": 0.5},
        {"attention": "hard", "lambda_r": 0.3, "baseline": "soft", "expectation": 0.3},
        {"attention": "hard", "baseline": "leave-one-out", "reward": "to-go", "discount": 0.9, "draws": 3},
        {"attention": "hard-soft:8", "baseline": "argmax", "draws": 2, "scoring": "multi-head:2"},
        {"attention": "sample:3", "baseline": "learned", "reward": "to-go"},
        {"attention": "hard", "estimator": "gumbel", "lambda_e": 0.02, "temperature": 0.3},
        {"attention": "hard", "estimator": "straight-through", "expectation": 0.0},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_what_is_trained_is_the_objective_of_the_settings(prepared, changes):
    settings = {"label_smoothing": 0.1, "dropout": 0.0} | changes
    module = CaptioningModule(str(prepared.root), **SMALL | settings)
    decoder, heads = module.captioner.decoder, 2 if "multi-head:2" in changes.values() else 1
    batch = CaptionDataModule(str(prepared.root), batch_size=5).train_dataloader().dataset[range(12)]
    torch.manual_seed(1)
    found = module.objective(batch)
    torch.manual_seed(1)
    places = region_places(7, 7)
    memory = decoder.read(*drop_regions(batch.features, places, settings.get("region_dropout", 0.0)))
    words, lengths = batch.words, batch.lengths
    if settings["attention"] in ("soft", "top:4"):
        rule = selection_rule(settings["attention"])
        expected = soft_objective(decoder(memory, words, lengths, rule), 0.7, 0.1)
    else:
        coins = torch.rand(12) < settings.get("expectation", 0.5)
        assert 0 < coins.sum() < 12 or "expectation" in changes  # each photograph has its own
        draws, names = settings.get("draws", 1), {"hard": "sample"}
        words, lengths = words.repeat_interleave(draws, 1), lengths.repeat_interleave(draws, 1)
        rule = selection_rule(names.get(settings["attention"], settings["attention"]))
        u, reading = None, None
        if "estimator" in changes:
            rule = GumbelSoftmax(
                settings.get("temperature", 1.0), settings["estimator"] == "straight-through"
            )
        else:
            u = torch.rand(12, 5 * draws, words.shape[2] - 1, heads * rule.draws)
        if settings.get("baseline") in ("soft", "argmax"):
            reading = decoder(memory, words, lengths, selection_rule(settings["baseline"]))
            reading = reading.padded(word_log_probs(reading)).detach()
        transcript = decoder(memory, words, lengths, ExpectationMixing(coins, rule), u)
        lambdas = settings.get("lambda_r", 0.1), settings.get("lambda_e", 0.002)
        reinforce = Reinforce(
            settings.get("reward", "whole"),
            settings.get("baseline", "average"),
            settings.get("discount", 1.0),
            SMALL["hidden_size"],
        )
        expected = hard_objective(transcript, reinforce, ~coins, *lambdas, 0.1, draws, reading)
    torch.testing.assert_close(found.total, expected.total)
    for name, figure in expected.figures.items():
        torch.testing.assert_close(found.figures[name], figure)


def test_bleu_counts_as_much_as_the_settings_say(prepared, monkeypatch):
    given = {}

    def objective(transcript, rewards):
        given["rewards"] = rewards
        return self_critical_objective(transcript, rewards)

    monkeypatch.setattr("captioner.training.module.self_critical_objective", objective)
    module = CaptioningModule(str(prepared.root), self_critical=4, bleu_reward=2.5, **SMALL)
    dataset = CaptionDataModule(str(prepared.root), batch_size=5).train_dataloader().dataset
    module.cider_d = CiderD(dataset.encoded)
    loss = module.objective(dataset[[0, 1, 2]])
    assert given["rewards"].shape == (3, 4) and loss.figures["BLEU"] > 0
    expected = loss.figures["CIDEr-D"] + 2.5 * loss.figures["BLEU"]
    torch.testing.assert_close(given["rewards"].mean(), expected)


def test_a_loss_that_is_not_finite_stops_and_names_the_photographs(prepared):
    module = CaptioningModule(str(prepared.root), **SMALL)
    batch = CaptionDataModule(str(prepared.root), batch_size=5).val_dataloader().dataset[[0, 1]]
    batch.features[0, 0, 0] = torch.inf
    with pytest.raises(UserError, match=rf"loss is nan.*photographs \[{batch.ids[0]}, {batch.ids[1]}\]"):
        module.training_step(batch, 7)


def test_fine_tuning_needs_photographs(prepared, tmp_path):
    with pytest.raises(UserError, match=r"data\.photographs"):
        fit(prepared, tmp_path, 1, finetune_from=0)


RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_name_settings_that_there_are_and_start_from_each_other(path):
    recipe = yaml.safe_load(path.read_text())
    assert set(recipe["model"]) <= set(DEFAULTS)
    assert set(recipe["data"]) <= set(inspect.signature(CaptionDataModule).parameters)
    check_settings(DEFAULTS | recipe["model"])
    assert recipe["trainer"]["default_root_dir"] == f"runs/{path.stem}"
    assert f"captioner fit --config configs/{path.name}" in path.read_text()
    if (start := recipe["model"].get("start")) is not None:
        assert start in {f"runs/{other.stem}/model" for other in RECIPES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "medium"}, "model.attention: unknown selection rule 'medium': .*, or hard$"),
        ({"attention": "argmax"}, "model.attention argmax is for validation"),
        ({"attention": "mean:4"}, "model.attention mean:4 is for validation"),
        ({"estimator": "gumbel", "attention": "soft"}, "model.estimator gumbel is for hard attention"),
        ({"estimator": "gumbel", "attention": "hard", "self_critical": 5}, "set .*self_critical to 0"),
        ({"baseline": "leave-one-out"}, "leave-one-out compares draws: set model.draws to 2 or more"),
        ({"discount": 0.5}, "set model.reward to to-go"),
        ({"temperature": -1.0}, "model.temperature must be above 0, not -1.0"),
        ({"draws": 0}, "model.draws must be from 1 to 1000, not 0"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_settings(DEFAULTS | changes)


def test_a_missing_data_set_says_what_to_run(tmp_path):
    for build in (CaptioningModule, CaptionDataModule):
        with pytest.raises(UserError, match="captioner prepare"):
            build(str(tmp_path / "absent"))


def test_captions_are_padded_longest_first():
    vocabulary = Vocabulary([*Vocabulary.special, "a", "dog", "runs"])
    captions = encode_captions(["A dog.", "a dog runs", "a zebra"], vocabulary, 30)
    assert captions == [[4, 5, 6, 2], [4, 5, 2], [4, 3, 2]]
    words, lengths = pad([captions, [[4, 2]]])
    assert words.tolist()[1] == [[1, 4, 2, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert lengths.tolist() == [[4, 3, 3], [2, 0, 0]]
    assert encode_captions(["a dog runs"], vocabulary, 2) == [[4, 5]]


def test_fine_tuning_trains_the_encoder_from_its_epoch_on_and_the_result_is_evaluated(tmp_path):
    captions = write_shapes(tmp_path, train=6, val=2, test=2)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "weights.pth")
    encoder = Encoder("resnet18", str(tmp_path / "weights.pth"))
    data = prepare(captions, tmp_path / "images", tmp_path, encoder, Preprocess((64, 64)), 1, workers=0)
    L.seed_everything(0, verbose=False)
    module = CaptioningModule(
        str(data.root), finetune_from=1, encoder_learning_rate=1.0, learning_rate=0.01, **SMALL
    )
    seen = []

    class Watch(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append(pl_module.captioner.encoder.fingerprint())

    trainer = L.Trainer(
        default_root_dir=tmp_path,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        callbacks=[SaveBest(), Watch()],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, CaptionDataModule(str(data.root), batch_size=3, photographs=True))
    assert seen[0] == encoder.fingerprint() != seen[1]
    module.captioner.save(tmp_path / "tuned")
    tuned = Captioner.load(tmp_path / "tuned")
    assert tuned.encoder.fingerprint() == seen[1]
    captions = generate(tuned, data, "test", beam_size=1)
    photo = data.captions.split("test")[0]
    assert captions[photo.id].text == tuned.caption(data.images / photo.file_name, beam_size=1).text


def test_a_model_with_weights_from_a_file_travels_without_the_file(tmp_path):
    captions = write_shapes(tmp_path, train=4, val=2, test=2)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "weights.pth")
    encoder = Encoder("resnet18", str(tmp_path / "weights.pth"))
    data = prepare(captions, tmp_path / "images", tmp_path, encoder, Preprocess((64, 64)), 1, workers=0)
    CaptioningModule(str(data.root), **SMALL).captioner.save(tmp_path / "model", half=True)
    CaptioningModule(str(data.root), "hard", start=str(tmp_path / "model"), **SMALL)  # no complaint
    (tmp_path / "weights.pth").unlink()
    model = Captioner.load(tmp_path / "model")
    assert model.encoder.fingerprint() == encoder.fingerprint()
    assert len(generate(model, data, "test", beam_size=1)) == 2
