import json

import pytest

from captioner.files import replacing, write_json


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
