"""Writing a file whole: readers never see half of it, and a writer that fails leaves the old one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end; after an error it is gone.

    It has the same suffix, for writers that go by it, and a name of this process's own.
    """
    path = Path(path)
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(value: Any, path: str | Path, indent: int | None = 2) -> None:
    """Write plain values; NaN and infinity, which JSON does not know, are refused."""
    with replacing(path) as partial:
        text = json.dumps(value, indent=indent, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8")
