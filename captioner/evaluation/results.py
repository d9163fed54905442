"""What evaluation leaves on disk: captions and scores, each file complete or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from captioner.caption import Caption


def save_captions(captions: Mapping[int | str, Caption], path: Path) -> None:
    """Write captions by image id in COCO's results layout, which other programs score too."""
    write_json([{"image_id": image, "caption": c.text} for image, c in captions.items()], path)


def write_json(value: Any, path: Path) -> None:
    """Write plain values; a file that exists stays whole until the new one is."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
