"""Paths, and writing a file whole: readers never see half of it, a writer that fails leaves the old one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captioner.errors import UserError, kind_of


def path_of(path: object, wanted: str) -> Path:
    """What somebody gave for a path.

    Args:
        wanted: what it is to be, such as "a model is a name or a folder".

    Raises:
        UserError: it is something else, or empty, which would be this folder.
    """
    if not isinstance(path, str | os.PathLike) or path == "":
        raise UserError(f"{wanted}, not {'empty' if path == '' else kind_of(path)}")
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end; after an error it is gone.

    Where `path` is a link, what it points to is replaced. A pipe or a device is written to as it is.
    """
    path = Path(path)
    in_place = path.exists() and not path.is_file()
    place = Path(os.path.realpath(path))
    # The end of the name keeps its suffix, for writers that go by it; 50 letters always fit a file system.
    partial = path if in_place else place.with_name(f".{secrets.token_hex(4)}.{place.name[-50:]}")
    try:
        yield partial
        if not in_place:
            partial.replace(place)
    except OSError as error:
        if error.filename in (None, str(partial)):  # a full disk gives no name
            error.filename = str(path)
        raise
    finally:
        if not in_place:
            partial.unlink(missing_ok=True)


def read_json(path: str | Path) -> Any:
    """Read plain values; NaN and infinity, which JSON does not know, are read as None.

    Raises:
        ValueError: it is not JSON, or not in UTF-8.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"), parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_json(value: Any, path: str | Path, indent: int | None = 2) -> None:
    """Write plain values; NaN and infinity, which JSON does not know, are refused."""
    with replacing(path) as partial:
        text = json.dumps(value, indent=indent, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8")
