import errno
import json
import os

import pytest

from captioner.files import read_json, replacing, write_json


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": object()}])
def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path, value):
    path = tmp_path / "scores.json"
    write_json({"a": 1}, path)
    with pytest.raises((ValueError, TypeError)):
        write_json(value, path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("old")
    with replacing(path) as partial:
        assert partial.suffix == path.suffix and partial.parent == path.parent
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "scores.json", tmp_path / "link.json"
    link.symlink_to(target)
    for value in (1, 2):  # at first the link dangles
        write_json(value, link)
        assert link.is_symlink() and json.loads(target.read_text()) == value
    assert sorted(tmp_path.rglob("*.json")) == [link, target]


def test_a_pipe_is_written_into_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json([1], pipe, indent=None)
        assert os.read(reader, 100) == b"[1]\n"
    finally:
        os.close(reader)
    with pytest.raises(OSError) as full, replacing(pipe) as file:
        assert file == pipe
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["a" * 250 + ".json", "ü" * 125 + ".json"])
def test_names_may_be_as_long_as_the_file_system_has_them(tmp_path, name):
    write_json(1, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_trouble_is_named_after_the_file_that_was_asked_for(tmp_path):
    absent = tmp_path / "none" / "scores.json"
    with pytest.raises(FileNotFoundError) as missing:
        write_json(1, absent)
    with pytest.raises(OSError) as full, replacing(tmp_path / "scores.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert missing.value.filename == str(absent)
    assert full.value.filename == str(tmp_path / "scores.json")
    assert list(tmp_path.iterdir()) == []


def test_what_python_writes_and_json_does_not_know_is_read_as_none(tmp_path):
    (tmp_path / "nan.json").write_text('\ufeff{"a": NaN, "b": [Infinity, 1.5]}', encoding="utf-8")
    assert read_json(tmp_path / "nan.json") == {"a": None, "b": [None, 1.5]}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_whatever_is_no_json_is_a_value_error(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_json(tmp_path / "bad.json")
