"""What is wrong with the settings of a run, in a user's words: jsonargparse's own speak of its parts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from captioner.errors import UserError

SECTIONS = ("data", "model", "trainer")
REQUIRED = "data.prepared"
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
}


def check_recipes(arguments: Sequence[str]) -> None:
    """Refuse files of settings that are no YAML or hold no settings, by name.

    Raises:
        UserError: one is.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", nargs="?", action="append", default=[])
    given = parser.parse_known_args(arguments)[0].config
    for path in (Path(path) for path in given if path is not None):
        if path.is_file():  # jsonargparse says what else it is
            check_recipe(path, read_recipe(path))


def read_recipe(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a YAML file ({error}): give another") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}," if error.problem_mark else ""
        raise UserError(f"{path}{line} is not YAML ({error.problem}): mend it") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML ({error}): mend it") from None


def check_recipe(path: Path, content: Any) -> None:
    """Settings come in sections; what else stands in a section's place would be passed over."""
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no settings: give a file such as those in configs/")
    for section in SECTIONS:
        if not isinstance(content.get(section), dict | None):
            raise UserError(f"{path}: {section} is not {content[section]!r}, but a section of settings")


def explain(complaint: str, known: Iterable[str]) -> str:
    """One line of what jsonargparse complains of.

    Args:
        known: names of all settings.
    """
    complaint = " ".join(complaint.split())
    if match := re.search(r"does not accept option '(.+?)'|unrecognized arguments: --([^\s=]+)", complaint):
        name = match[1] or match[2]
        return f"unknown setting {name}{suggestion(name, list(known))} (`captioner fit --help` lists all)"
    if match := re.fullmatch(r'Parser key "(.+?)": Expected an? (.+)\. Got value: (.*)', complaint):
        name, wanted, value = match.groups()
        if (name, value) == (REQUIRED, "None"):
            return f"{name} is missing: give a recipe with --config configs/X.yaml, or --{name}"
        return f"{name} must be {plain(wanted)}, not {value}"
    union = r'Parser key "(.+?)": Does not validate .* Subtypes: \[([^\[\]]+)\] Errors: .* Given value: (.*)'
    if match := re.fullmatch(union, complaint):
        name, wanted, value = match.groups()
        return f"{name} must be {' or '.join(map(plain, wanted.split(', ')))}, not {value}"
    return f"{complaint} (`captioner fit --help` says more)"


def suggestion(name: str, known: list[str]) -> str:
    """The setting that was meant: one of that name in a section, or of a like name."""
    meant = [other for other in known if other.endswith(f".{name}")] or get_close_matches(name, known, 1, 0.7)
    return f": did you mean {meant[0]}?" if meant else ""


def plain(kind: str) -> str:
    """The name of a type, or its values."""
    kind = re.sub(r"<class '(.+)'>", r"\1", kind)
    return KINDS.get(kind) or re.sub(r"typing\.Literal\[(.+)\]", r"one of \1", kind)
