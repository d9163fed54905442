import csv
import json

import pytest
import torch
import yaml

from captioner.captioner import Captioner
from captioner.data.images import Preprocess
from captioner.data.prepared import prepare
from captioner.data.shapes import write_shapes
from captioner.model.encoder import Encoder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared")
    captions = write_shapes(root, train=8, val=3, test=2)
    return prepare(captions, root / "images", root, Encoder("patches"), Preprocess((112, 112)), 1, workers=0)


@pytest.fixture
def config(prepared, tmp_path):
    """A recipe as those in configs/, small."""
    sizes = ("feature_size", "embedding_size", "hidden_size", "attention_size")
    settings = {
        "data": {"prepared": str(prepared.root), "batch_size": 4},
        "model": {"attention": "hard", "dropout": 0.0} | dict.fromkeys(sizes, 8),
        "trainer": {
            "default_root_dir": str(tmp_path / "run"),
            "max_epochs": 2,
            "accelerator": "cpu",
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_fit_leaves_a_model_logs_and_a_checkpoint_to_resume_from(process, config, tmp_path, prepared):
    done = process("fit", "--config", config)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    model = Captioner.load(run / "model")
    assert model.trained_with == "sample" and model.vocabulary == prepared.vocabulary
    notes = json.loads((run / "model" / "config.json").read_text())["training"]
    assert notes["lambda_r"] == 0.1 and not any(name.startswith("_") for name in notes)
    with open(run / "csv" / "version_0" / "metrics.csv") as file:
        assert {"train/reward", "train/baseline", "train/entropy", "train/gradient_norm", "val/CIDEr"} <= set(
            next(csv.reader(file))
        )
    assert list((run / "tensorboard" / "version_0").glob("events.*"))
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 1 and checkpoint["global_step"] == 4
    again = process("fit", "--config", config, "--ckpt_path", run / "last.ckpt")
    assert again.returncode == 0, again.stderr
    longer = process("fit", "--config", config, "--ckpt_path", run / "last.ckpt", "--trainer.max_epochs", 3)
    assert longer.returncode == 2 and "same trainer.max_epochs" in longer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data.batch_size", "0"), "data.batch_size must be at least 1, not 0"),
        (("--model.dropout", "2"), "model.dropout must be from 0 to 1, not 2"),
        (("--model.expectation", "-1"), "model.expectation must be from 0 to 1"),
        (("--data.prepared", "absent"), "no prepared data set at absent"),
        (("--model.attention", "medium"), "medium"),
        (("--model.start", "absent"), "no model 'absent'"),
        (("--ckpt_path", "absent.ckpt"), "no checkpoint at absent.ckpt"),
        (("--model.finetune_from", "0"), "data.photographs"),
        (("--save_best.monitor", "val/cider"), "val/CIDEr"),
        (("--config", "absent.yaml"), "absent.yaml"),
    ],
)
def test_bad_settings_are_one_line(refused, config, arguments, message):
    assert message in refused("fit", "--config", config, *arguments)


def test_features_of_another_encoder_are_refused(refused, config, prepared, monkeypatch):
    monkeypatch.setattr(Encoder, "fingerprint", lambda self: "another")
    assert "was made with weights" in refused("fit", "--config", config)


def test_two_processes_share_the_batches(process, config, tmp_path):
    """Two batches an epoch are one step of each process; all validation photographs are captioned once."""
    two = ("--trainer.devices", 2, "--trainer.strategy", "ddp", "--model.expectation", 0.0)
    done = process("fit", "--config", config, *two)
    assert done.returncode == 0, done.stderr
    checkpoint = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 1 and checkpoint["global_step"] == 2
    assert Captioner.load(tmp_path / "run" / "model").trained_with == "sample"
