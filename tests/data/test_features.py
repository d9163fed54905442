import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from captioner.data import features as store
from captioner.data.features import FeatureStore, store_key, write_features
from captioner.data.images import Preprocess, read
from captioner.errors import UserError
from captioner.model.encoder import Encoder

PREPROCESS = Preprocess((32, 48))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    noise = np.random.default_rng(0)
    for i in range(10):
        Image.fromarray(noise.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


NAMES = [f"{i}.png" for i in range(10)]


def write(root, photographs, names=NAMES, preprocess=PREPROCESS, **settings):
    settings = {"batch_size": 3, "workers": 0} | settings
    return write_features(root, Encoder("patches"), preprocess, photographs, names, **settings)


def test_features_are_the_encoders(tmp_path, photographs):
    found = write(tmp_path / "features", photographs)
    assert found.grid == (2, 3) and found.size == 706 and len(found) == 10
    pixels, _ = PREPROCESS(read(photographs / "4.png"))
    expected, _ = Encoder("patches")(pixels[None])
    torch.testing.assert_close(found.batch(["4.png"]), expected.half().float())


def test_a_link_to_another_disk_stays_one(tmp_path, photographs):
    elsewhere = tmp_path / "disk" / "features"
    elsewhere.mkdir(parents=True)
    (tmp_path / "features").symlink_to(elsewhere)
    with pytest.raises(UserError, match="is not a feature store and would be replaced"):
        write(tmp_path / "features", photographs)
    elsewhere.rmdir()
    for size in ((32, 48), (16, 16)):  # a new store, and another in its place
        write(tmp_path / "features", photographs, preprocess=Preprocess(size))
        assert (tmp_path / "features").is_symlink()
        assert FeatureStore(tmp_path / "features").key == FeatureStore(elsewhere).key
    assert sorted(path.name for path in elsewhere.parent.iterdir()) == ["features"]


def test_a_killed_writer_goes_on_where_it_stopped(tmp_path, photographs, monkeypatch):
    """Kill -9 in the middle, run again: what was encoded is not encoded again, and the bytes agree."""
    whole = write(tmp_path / "whole", photographs)
    script = f"""
import sys, time
sys.path[:0] = {[os.getcwd(), os.path.dirname(__file__)]!r}
import captioner.model.encoder as encoder
from captioner.data.features import write_features
from captioner.data.images import Preprocess
from pathlib import Path
plain = encoder.Patches.forward
calls = []
def slow(self, pixels):
    if len(pixels) == 3:
        calls.append(1)
        if len(calls) > 2:
            print("stopped", flush=True)
            time.sleep(60)
    return plain(self, pixels)
encoder.Patches.forward = slow
write_features(Path({str(tmp_path / "killed")!r}), encoder.Encoder("patches"), Preprocess((32, 48)),
    Path({str(photographs)!r}), {NAMES!r}, batch_size=3, workers=0)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline().strip() == b"stopped"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed").exists()
    encoded = []
    monkeypatch.setattr(
        store.Pictures,
        "__getitem__",
        lambda self, item, plain=store.Pictures.__getitem__: encoded.append(item) or plain(self, item),
    )
    again = write(tmp_path / "killed", photographs)
    assert len(encoded) == 4
    assert np.array_equal(again.features, whole.features)
    assert not (tmp_path / "killed.partial").exists()


def test_a_stale_store_is_refused_and_says_why(tmp_path, photographs):
    write(tmp_path / "features", photographs)
    key = store_key(Encoder("patches"), Preprocess((64, 48)))
    with pytest.raises(UserError, match=r"made with size \[32, 48\] instead of \[64, 48\]"):
        FeatureStore(tmp_path / "features", key)
    FeatureStore(tmp_path / "features", store_key(Encoder("patches"), PREPROCESS))


def test_a_store_of_another_grid_is_refused_and_says_why(tmp_path, photographs):
    own, coarse = (store_key(Encoder("patches", grid=grid), PREPROCESS) for grid in (None, (1, 3)))
    write(tmp_path / "features", photographs)
    with pytest.raises(UserError, match=r"made with grid None instead of \[1, 3\]"):
        FeatureStore(tmp_path / "features", coarse)
    write_features(tmp_path / "coarse", Encoder("patches", grid=(1, 3)), PREPROCESS, photographs, NAMES, 3, 0)
    assert FeatureStore(tmp_path / "coarse", coarse).grid == (1, 3)
    with pytest.raises(UserError, match=r"made with grid \[1, 3\] instead of None"):
        FeatureStore(tmp_path / "coarse", own)


def test_other_preprocessing_or_photographs_are_written_anew(tmp_path, photographs):
    write(tmp_path / "features", photographs, NAMES[:5])
    assert len(write(tmp_path / "features", photographs)) == 10
    assert write(tmp_path / "features", photographs, preprocess=Preprocess((32, 32))).grid == (2, 2)


def test_a_complete_store_is_not_written_again(tmp_path, photographs):
    write(tmp_path / "features", photographs)
    before = (tmp_path / "features" / "features.f16").stat().st_mtime_ns
    time.sleep(0.02)
    write(tmp_path / "features", photographs)
    assert (tmp_path / "features" / "features.f16").stat().st_mtime_ns == before


def test_a_bad_photograph_stops_or_is_left_out(tmp_path, photographs):
    folder = tmp_path / "photographs"
    shutil.copytree(photographs, folder)
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:100])
    with pytest.raises(UserError, match=r"3\.png"):
        write(tmp_path / "features", folder)
    assert not (tmp_path / "features").exists()
    found = write(tmp_path / "features", folder, on_bad_image="skip")
    assert len(found) == 9 and list(found.bad) == ["3.png"] and "3.png" not in found
    with pytest.raises(UserError, match=r"no features of 3\.png"):
        found["3.png"]
    assert write(tmp_path / "features", folder, on_bad_image="skip").bad == found.bad


def shared(items):
    return store.collate(items)[1].is_shared()


def test_a_worker_stacks_its_batch_in_shared_memory(photographs):
    # Stacked elsewhere and copied there, each batch left a hole in the heap: gigabytes over a data set.
    pictures = store.Pictures(photographs, NAMES, range(10), PREPROCESS)
    assert list(DataLoader(pictures, 4, num_workers=1, collate_fn=shared)) == [True, True, True]


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, photographs, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(UserError, match=r"has 0\.0 MB free, the features need 0\.1 MB"):
        write(tmp_path / "features", photographs)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_at_once_leaves_nothing(tmp_path, photographs, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError) as trouble:
        write(tmp_path / "set" / "features", photographs)
    assert trouble.value.filename == str(tmp_path / "set" / "features")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["skip", "report"])
def test_nothing_but_bad_photographs_leaves_nothing(tmp_path, policy):
    (tmp_path / "photographs").mkdir()
    for name in NAMES:
        (tmp_path / "photographs" / name).write_bytes(b"none")
    with pytest.raises(UserError, match=r"not one of 10 photographs can be read; the first: .*0\.png"):
        write(tmp_path / "set" / "features", tmp_path / "photographs", on_bad_image=policy)
    assert [path.name for path in tmp_path.iterdir()] == ["photographs"]


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_writer_that_is_killed_while_it_replaces_a_store_goes_on(
    tmp_path, photographs, monkeypatch, killed_at
):
    write(tmp_path / "features", photographs)
    renamed, rename = [], Path.rename

    def kill(path, target):
        renamed.append(path)
        if len(renamed) == killed_at:
            raise KeyboardInterrupt
        return rename(path, target)

    other = Preprocess((16, 16))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", kill)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "features", photographs, preprocess=other)
    assert write(tmp_path / "features", photographs, preprocess=other).grid == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["features"]


def test_a_folder_of_that_name_that_is_somebodys_own_stays(tmp_path, photographs):
    mine = tmp_path / "features.partial" / "diary.txt"
    mine.parent.mkdir()
    mine.write_text("dear diary")
    with pytest.raises(UserError, match=r"features\.partial is not an unfinished feature store"):
        write(tmp_path / "features", photographs)
    assert mine.read_text() == "dear diary"


@pytest.mark.parametrize("plan", [b"", b'{"key": ', b"3", b"\xff", b"[" * 100_000])
def test_an_unfinished_store_with_a_damaged_plan_is_started_afresh(tmp_path, photographs, plan):
    partial = tmp_path / "features.partial"
    partial.mkdir()
    (partial / "plan.json").write_bytes(plan)
    (partial / "features.f16").write_bytes(b"cut off")
    assert len(write(tmp_path / "features", photographs)) == 10
    assert not partial.exists()


def test_damaged_and_missing_stores_are_one_clear_line(tmp_path, photographs):
    with pytest.raises(UserError, match="no feature store at"):
        FeatureStore(tmp_path / "absent")
    write(tmp_path / "features", photographs)
    rows = tmp_path / "features" / "features.f16"
    rows.write_bytes(rows.read_bytes()[:-2])
    with pytest.raises(UserError, match="damaged"):
        FeatureStore(tmp_path / "features")
    (tmp_path / "features" / "store.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        FeatureStore(tmp_path / "features")


def test_the_index_is_plain_json(tmp_path, photographs):
    write(tmp_path / "features", photographs)
    index = json.loads((tmp_path / "features" / "store.json").read_text())
    assert index["grid"] == [2, 3] and index["names"] == NAMES
