import statistics

import pytest

from captioner.data.features import FeatureStore
from captioner.errors import UserError
from captioner.evaluation.compare import Spread, compare, spreads
from captioner.evaluation.generate import generate, references, split_images
from captioner.evaluation.metrics import score

METRICS = ["BLEU-1", "ROUGE-L"]


@pytest.fixture(scope="module")
def comparison(captioner, prepared):
    return compare(
        captioner,
        prepared,
        selections=["sample", "soft", "sample"],
        seeds=[4, 5, 6],
        tokenizer="python",
        metrics=METRICS,
    )


def test_random_rules_run_once_a_seed_and_the_others_once(comparison):
    assert [(row.selection, row.seeds) for row in comparison.rows] == [
        ("sample", [4, 5, 6]),
        ("soft", [4]),
    ]


def test_figures_are_those_of_the_runs(comparison, captioner, prepared):
    gold = references(split_images(prepared, "test"))
    sample, soft = comparison.rows
    for row in (sample, soft):
        for seed, run in zip(row.seeds, row.runs, strict=True):
            captions = generate(captioner, prepared, "test", row.selection, 1, seed)
            texts = {image: caption.text for image, caption in captions.items()}
            assert run == score(gold, texts, "python", METRICS).metrics
    for name in METRICS:
        values = [run[name] for run in sample.runs]
        assert len(set(values)) > 1
        assert sample.metrics[name].mean == pytest.approx(sum(values) / 3)
        assert sample.metrics[name].std == pytest.approx(statistics.stdev(values))
        assert soft.metrics[name] == Spread(soft.runs[0][name], 0.0)


def test_the_store_is_opened_once_and_only_decoding_is_timed(captioner, prepared, monkeypatch):
    opened, clock, decode = [], [0.0], captioner.decode

    def takes(seconds, work):
        def slowly(*args, **kwargs):
            clock[0] += seconds
            return work(*args, **kwargs)

        return slowly

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(captioner, "decode", takes(8.0, decode))
    monkeypatch.setattr(FeatureStore, "batch", takes(1000.0, FeatureStore.batch))
    features = type(prepared).features
    monkeypatch.setattr(
        type(prepared), "features", lambda self, key=None: opened.append(key) or features(self, key)
    )
    found = compare(captioner, prepared, "test", ["soft", "argmax"], tokenizer="python", metrics=METRICS)
    assert [row.seconds_per_image for row in found.rows] == [2.0, 2.0]  # four images, one batch
    assert len(opened) == 1


def test_plain_types(comparison):
    result = comparison.to_dict()
    assert set(result) == {"rows", "skipped", "warnings", "versions"}
    assert set(result["rows"][0]) == {"selection", "seeds", "metrics", "seconds_per_image", "runs"}
    assert set(result["rows"][0]["metrics"]["BLEU-1"]) == {"mean", "std"}
    assert result["rows"][0]["seconds_per_image"] > 0


def test_spread_of_one_random_run_is_unknown():
    assert spreads([{"CIDEr": 0.5}], stochastic=True) == {"CIDEr": Spread(0.5, None)}


def test_spread_is_the_sample_standard_deviation():
    assert spreads([{"CIDEr": 0.25}, {"CIDEr": 0.75}], True) == {
        "CIDEr": Spread(0.5, pytest.approx(0.125**0.5))
    }


def test_a_metric_that_some_run_skipped_has_no_spread():
    assert spreads([{"METEOR": 0.2, "CIDEr": 1.0}, {"METEOR": None, "CIDEr": 1.0}], True) == {
        "CIDEr": Spread(1.0, 0.0)
    }


def test_warnings_and_skips_say_where(captioner, prepared, no_java):
    comparison = compare(captioner, prepared, selections=["soft", "argmax"], limit=1, tokenizer="python")
    assert set(comparison.skipped) == {"METEOR", "SPICE"}
    assert [warning.split(" ")[:2] for warning in comparison.warnings] == [
        ["soft:", "CIDEr"],
        ["argmax:", "CIDEr"],
    ]


@pytest.mark.parametrize("nothing", [{"seeds": []}, {"selections": []}])
def test_nothing_to_compare(captioner, prepared, nothing):
    with pytest.raises(UserError, match="nothing to compare"):
        compare(captioner, prepared, **nothing)


def test_a_run_that_names_nothing_with_a_box_leaves_the_pointing_out(captioner, prepared, monkeypatch):
    aims = iter([0.5, None, 0.25])
    monkeypatch.setattr("captioner.evaluation.compare.pointing", lambda *_: next(aims))
    found = compare(
        captioner, prepared, "test", ["sample", "soft"], [1, 2], tokenizer="python", metrics=METRICS
    )
    sample, soft = found.rows
    assert [run["pointing"] for run in sample.runs] == [0.5, None] and "pointing" not in sample.metrics
    assert soft.metrics["pointing"] == Spread(0.25, 0.0)
