import csv
import json
import re
import signal

import pytest
import safetensors.torch
import torch
import yaml
from lightning.pytorch.callbacks import Timer

from captioner.captioner import Captioner
from captioner.cli import main
from captioner.data.images import Preprocess
from captioner.data.prepared import prepare
from captioner.data.shapes import write_shapes
from captioner.evaluation.generate import generate, references
from captioner.evaluation.metrics import score
from captioner.model.encoder import Encoder
from captioner.training.module import CaptioningModule


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
    assert "Tip" not in done.stderr + done.stdout
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
    softer = process("fit", "--config", config, "--ckpt_path", run / "last.ckpt", "--model.attention", "soft")
    assert softer.returncode == 2 and softer.stderr.count("\n") == 1
    assert "a run with model.attention hard, this one has soft" in softer.stderr
    for name, before in (("gist", None), ("bleu_reward", 0.0)):  # an older version's checkpoint
        assert checkpoint["hyper_parameters"].pop(name) == before
    torch.save(checkpoint, tmp_path / "older.ckpt")
    older = ("--ckpt_path", tmp_path / "older.ckpt")
    gist = process("fit", "--config", config, *older, "--model.gist", 0.3)
    assert "a run with model.gist None, this one has 0.3" in gist.stderr
    order = process("fit", "--config", config, *older, "--data.seed", 9)
    assert order.returncode == 2 and "a run with data.seed 0, this one has 9" in order.stderr
    assert process("fit", "--config", config, *older).returncode == 0
    config.write_text(config.read_text().replace("max_epochs: 2", "max_epochs: 1"))
    trained = (run / "model" / "config.json").read_bytes()
    assert process("fit", "--config", config, "--trainer.fast_dev_run", "true").returncode == 0
    assert (run / "model" / "config.json").read_bytes() == trained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data.batch_size", "0"), "data.batch_size must be at least 1, not 0"),
        (("--model.dropout", "1"), "model.dropout must be from 0 to below 1, not 1.0"),
        (("--model.region_dropout", "1"), "model.region_dropout must be from 0 to below 1"),
        (("--model.label_smoothing", "1"), "model.label_smoothing must be from 0 to below 1"),
        (("--model.expectation", "-1"), "model.expectation must be from 0 to 1"),
        (("--model.gradient_norm", "0"), "model.gradient_norm must be above 0, not 0.0"),
        (("--model.feature_size", "0"), "model.feature_size must be from 1 to 10000, not 0"),
        (("--model.embedding_size", "-1"), "model.embedding_size must be from 1"),
        (("--model.hidden_size", "10000000"), "model.hidden_size must be from 1 to 10000"),
        (("--model.attention_size", "0"), "model.attention_size must be from 1"),
        (("--model.learning_rate", ".nan"), "model.learning_rate must be above 0, not nan"),
        (("--model.encoder_learning_rate", "-1"), "model.encoder_learning_rate must be above 0"),
        (("--model.finetune_from", "-1"), "model.finetune_from must be at least 0"),
        (("--model.validate_beam", "0"), "model.validate_beam must be from 1 to 100"),
        (("--model.lambda_r", ".nan"), "model.lambda_r must be at least 0, not nan"),
        (("--model.doubly_stochastic", ".inf"), "model.doubly_stochastic must be at least 0, not inf"),
        (("--model.self_critical", "1"), "at least 2 draws"),
        (("--model.bleu_reward", "1"), "set model.self_critical"),
        (("--model.gist", "1"), "model.gist must be from 0 to below 1"),
        (("--trainer.val_check_interval", "00:00:00:01"), "or a number of batches, not a time"),
        (("--trainer.precision", "bf16-true"), "can be 32-true, 16-mixed, bf16-mixed, not bf16-true"),
        (("--trainer.max_epochs", "null", "--trainer.max_time", "00:01:00:00"), "set trainer.max_epochs"),
        (("--seed_everything", "-5"), "seed_everything must be from 0 to 4294967295, not -5"),
        (("--trainer.max_epochs", "-1"), "trainer.max_epochs must be at least 1, not -1"),
        (("--trainer.max_steps", "0"), "trainer.max_steps must be at least 1"),
        (("--trainer.limit_val_batches", "0"), "trainer.limit_val_batches must be above 0"),
        (("--trainer.limit_train_batches", "0"), "trainer.limit_train_batches must be above 0"),
        (("--trainer.accumulate_grad_batches", "0"), "trainer.accumulate_grad_batches must be at least 1"),
        (("--trainer.check_val_every_n_epoch", "3"), "must be from 1 to 2, not 3"),
        (("--trainer.enable_checkpointing", "false"), "trainer.enable_checkpointing cannot be false"),
        (("--trainer.gradient_clip_val", "1"), "set model.gradient_norm"),
        (("--trainer.default_root_dir", "s3://a/b"), "s3://a/b is an address: give a folder"),
        (("--trainer.default_root_dir", "{config}"), "{config}/model cannot be written (Not a directory)"),
        (("--trainer.devices", "0"), "`Trainer(devices='0')` value is not a valid"),
        (("--trainer.strategy", "foo"), "invalid strategy name: `strategy='foo'`"),
        (("--early_stopping.monitor", "val/foo"), "early_stopping.monitor 'val/foo' is not logged"),
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
    arguments = [argument.format(config=config) for argument in arguments]
    assert message.format(config=config) in refused("fit", "--config", config, *arguments)


def test_a_file_in_the_models_place_is_found_before_the_training(refused, config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").touch()
    complaint = refused("fit", "--config", config)
    assert f"trainer.default_root_dir: {tmp_path / 'run' / 'model'} cannot be written" in complaint
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["model"]


def test_a_checkpoint_that_is_not_yet_whole_does_not_take_the_last_ones_place(config, tmp_path, monkeypatch):
    """What is written lies beside it, on the same disk: a rename is all that is left to do."""
    last, seen, save = tmp_path / "run" / "last.ckpt", [], torch.save

    def watched(checkpoint, file):
        seen.append(last.read_bytes() if last.exists() else None)
        save(checkpoint, file)
        assert file.parent == last.parent and file != last
        if len(seen) == 2:
            file.write_bytes(b"half")
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", watched)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["fit", "--config", str(config)]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert seen[0] is None and seen[1] == last.read_bytes()
    assert torch.load(last, weights_only=True)["epoch"] == 0
    assert not list(last.parent.glob(".*.ckpt"))


@pytest.mark.parametrize(
    "content",
    [b"", b"text", safetensors.torch.save({"a": torch.ones(2)}), [1, 2], {"state_dict": {}, "epoch": 3}],
    ids=["empty", "text", "safetensors", "list", "another program's"],
)
def test_a_file_that_is_no_checkpoint_is_refused_before_anything_is_written(
    refused, config, tmp_path, content
):
    path = tmp_path / "odd.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    assert f"{path} is not a checkpoint" in refused("fit", "--config", config, "--ckpt_path", path)
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_bytes_is_one_line(refused, tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(bytes(range(256)))
    for option in ("--config", "--model"):
        assert "YAML" in refused("fit", "--data.prepared", "x", option, tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  hidden_size: [1\ndata:\n", "{path}, line 3, is not YAML (expected ',' or ']'"),
        ("- 1\n- 2\n", "{path} holds no settings"),
        ("", "{path} holds no settings"),
        ("a: \x07", "{path} is not YAML (unacceptable character"),
        ("model: 3", "{path}: model is not 3, but a section of settings"),
        ("data: [x]", "{path}: data is not ['x'], but a section"),
        ("model: {hiden_size: 3}", "unknown setting model.hiden_size: did you mean model.hidden_size?"),
        ("model: {hidden_size: [3]}", "model.hidden_size must be a whole number, not [3]"),
        ("model: {feature_size: big}", "model.feature_size must be a whole number or null, not big"),
        ("model: {reward: medium}", "model.reward must be one of 'whole', 'to-go', not medium"),
        ("data: {prepared: 5}", "data.prepared must be text, not 5"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_one_line(refused, tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    asked = () if text.startswith("data") else ("--data.prepared", "x")
    complaint = refused("fit", *asked, "--config", path)
    assert complaint.startswith(message.format(path=path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "data.prepared is missing: give a recipe with --config configs/X.yaml, or --data.prepared"),
        (("--model.hiden_size", "3"), "unknown setting model.hiden_size: did you mean model.hidden_size?"),
        (("--model.hiden_size=3",), "unknown setting model.hiden_size: did you mean model.hidden_size?"),
        (("--gist", "0.5"), "unknown setting gist: did you mean model.gist?"),
        (("--zzyzx", "3"), "unknown setting zzyzx (`captioner fit --help` lists all)"),
        (("--model.hidden_size", "null"), "model.hidden_size must be a whole number, not None"),
    ],
)
def test_missing_and_misspelt_settings_are_named(refused, arguments, message):
    prepared = ("--data.prepared", "x") if arguments else ()
    assert refused("fit", *prepared, *arguments).startswith(message)


def test_an_interrupted_run_says_so(config, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(CaptioningModule, "training_step", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["fit", "--config", str(config)]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert "captioner: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_a_photograph_that_cannot_be_read_is_one_line(process, config, tmp_path, workers):
    captions = write_shapes(tmp_path, train=4, val=2, test=2)
    data = prepare(
        captions, tmp_path / "images", tmp_path, Encoder("patches"), Preprocess((112, 112)), 1, workers=0
    )
    photo = data.images / data.captions.split("train")[0].file_name
    photo.write_bytes(b"no picture")
    asked = ("--data.prepared", tmp_path, "--data.photographs", "true", "--data.workers", workers)
    done = process("fit", "--config", config, *asked)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"captioner: error: {photo} is not a picture")


def test_features_of_another_encoder_are_refused(refused, config, prepared, monkeypatch):
    monkeypatch.setattr(Encoder, "fingerprint", lambda self: "another")
    assert "was made with weights" in refused("fit", "--config", config)


def test_a_run_that_is_cut_off_keeps_the_checkpoint_of_its_last_whole_epoch(process, config, tmp_path):
    """Two batches an epoch: three steps end within the second."""
    whole, run = ("--trainer.max_epochs", 3), tmp_path / "run"
    cut = process("fit", "--config", config, *whole, "--trainer.max_steps", 3)
    assert cut.returncode == 0, cut.stderr
    assert "the run ended within epoch 2: no checkpoint is kept of a part" in cut.stderr
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 0 and checkpoint["global_step"] == 2
    parts = ("--checkpoint.every_n_train_steps", 1, "--checkpoint.save_top_k", -1)
    process("fit", "--config", config, *whole, *parts, "--checkpoint.filename", "{step}")
    for step, refused in ((3, True), (2, False)):
        resumed = process("fit", "--config", config, *whole, "--ckpt_path", run / f"step={step}.ckpt")
        assert ("was written within an epoch" in resumed.stderr) == refused, resumed.stderr
        assert resumed.returncode == (2 if refused else 0)


def test_a_run_that_its_time_ended_goes_on_as_if_it_had_not(config, tmp_path, monkeypatch):
    """Two batches an epoch, an hour a batch: the time is over within the second epoch of three."""
    asked = ["fit", "--config", str(config), "--trainer.max_epochs", "3", "--model.dropout", "0.5"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    hours = []
    train = CaptioningModule.training_step
    torch.set_num_threads(1)
    assert main([*asked, "--trainer.default_root_dir", str(whole)]) == 0
    asked += ["--trainer.default_root_dir", str(cut)]
    with monkeypatch.context() as slow:
        slow.setattr(CaptioningModule, "training_step", lambda *a: hours.append(1) or train(*a))
        slow.setattr(Timer, "time_elapsed", lambda *_: 3600.0 * len(hours))
        assert main([*asked, "--trainer.max_time", "00:02:30:00"]) == 0
    assert len(hours) == 3
    assert torch.load(cut / "last.ckpt", weights_only=True)["global_step"] == 2
    assert main([*asked, "--ckpt_path", str(cut / "last.ckpt")]) == 0
    torch.set_num_threads(2)
    expected, found = (torch.load(run / "last.ckpt", weights_only=True) for run in (whole, cut))
    assert expected["global_step"] == found["global_step"] == 6
    for name, value in expected["state_dict"].items():
        assert torch.equal(value, found["state_dict"][name]), name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (("--trainer.max_steps", 1), "the run ended before its first validation"),
        (("--trainer.val_check_interval", 3), "less than or equal to the number of the training batches (2)"),
    ],
)
def test_a_run_without_validation_is_one_line(process, config, setting, message):
    done = process("fit", "--config", config, *setting)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("captioner: error: ") and message in done.stderr


def test_a_run_that_stops_early_says_so_and_where_its_model_is(process, config, tmp_path):
    patience = ("--early_stopping.patience", 1, "--model.learning_rate", 1e-9)
    done = process("fit", "--config", config, *patience)
    assert done.returncode == 0
    assert "stopped after epoch 2: val/CIDEr has not improved in 1 validations" in done.stderr
    assert f"is in {tmp_path / 'run' / 'model'}" in done.stderr


def test_each_epoch_is_a_line_where_there_is_no_terminal(process, config):
    done = process("fit", "--config", config, "--trainer.enable_progress_bar", "true")
    lines = [line for line in done.stderr.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2"]
    assert re.fullmatch(
        r"epoch 2: train/loss \d+\.\d{3}, val/BLEU-4 \d\.\d{3}, val/CIDEr \d\.\d{3}", lines[1]
    )


TWO = ("--trainer.devices", 2, "--trainer.strategy", "ddp")


def test_two_processes_share_the_batches(process, config, tmp_path, prepared):
    """Two batches an epoch are one step of each process, and validation scores the captions of both."""
    learnt = ("--model.attention", "soft", "--model.learning_rate", 0.03, "--trainer.max_epochs", 15)
    patient = ("--early_stopping.patience", 15)
    done = process("fit", "--config", config, *TWO, *learnt, *patient)
    assert done.returncode == 0, done.stderr
    checkpoint = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 14 and checkpoint["global_step"] == 15
    folder = tmp_path / "run" / "model"
    model = Captioner.load(folder)
    images = prepared.captions.split("val")
    texts = {image: caption.text for image, caption in generate(model, prepared, "val", beam_size=1).items()}
    expected = score(references(images), texts, "python", ["CIDEr", "BLEU-4"]).metrics
    notes = json.loads((folder / "config.json").read_text())["training"]
    assert notes["val/CIDEr"] == pytest.approx(expected["CIDEr"], abs=1e-3) and expected["CIDEr"] > 0


def test_each_process_resumes_with_its_own_random_state(process, config, tmp_path):
    """Dropout and draws of both processes go on as they would have: 1 + 1 epochs equal 2."""
    drawn = (*TWO, "--model.dropout", 0.5, "--checkpoint.save_top_k", -1, "--checkpoint.filename", "{epoch}")
    run, again = tmp_path / "run", tmp_path / "again"
    whole = process("fit", "--config", config, *drawn)
    assert whole.returncode == 0, whole.stderr
    half = ("--ckpt_path", run / "epoch=0.ckpt", "--trainer.default_root_dir", again)
    resumed = process("fit", "--config", config, *drawn, *half)
    assert resumed.returncode == 0, resumed.stderr
    first, second = (torch.load(place / "epoch=1.ckpt", weights_only=True) for place in (run, again))
    states = [state["cpu"] for state in first["random_states"]]
    assert len(states) == 2 and not torch.equal(*states)
    assert all(
        torch.equal(a["cpu"], b["cpu"])
        for a, b in zip(first["random_states"], second["random_states"], strict=True)
    )
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name
    alone = process("fit", "--config", config, *drawn[4:], "--ckpt_path", run / "epoch=0.ckpt")
    assert alone.returncode == 2 and alone.stderr.splitlines()[-1].startswith(
        "captioner: error: the checkpoint"
    )
