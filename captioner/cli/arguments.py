"""Arguments that several commands have, and checks that find a mistake before the work."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from captioner.bounds import Bounds
from captioner.errors import UserError, printable


def add_on_bad_image(parser: argparse.ArgumentParser) -> None:
    """What to do about photographs that cannot be read."""
    parser.add_argument(
        "--on-bad-image",
        choices=("raise", "skip", "report"),
        default="raise",
        help="a photograph that cannot be read: stop; leave it out; or leave it out, list them all "
        "at the end and exit with 1 (%(default)s)",
    )


def check_at_least(args: argparse.Namespace, **least: int) -> None:
    """Numbers that must not be smaller."""
    for name, smallest in least.items():
        if (value := getattr(args, name)) is not None:
            Bounds(smallest).check(f"--{name.replace('_', '-')}", value)


def check_json(target: str | None) -> None:
    """`--json`: a file that can be written, or - for standard output."""
    if target is not None and target != "-":
        check_writable("--json", Path(target))


def check_writable(option: str, path: Path) -> None:
    """A file that is there or can be made."""
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{option} {path} cannot be written: give a file in a folder that exists")
    try:
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise UserError(f"{option} {path} cannot be written ({error.strerror}): give another file") from None
    if path.is_file() and is_standard_output(path):
        raise UserError(f"{option} {path} is where standard output goes: give another file, or {option} -")


def check_folder(option: str, path: Path) -> None:
    """A folder that is there or can be made, where files can be written."""
    place = path.resolve()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        reason = error.strerror
        raise UserError(f"{option} {path} cannot be written ({reason}): give another folder") from None


def is_standard_output(path: Path) -> bool:
    """Whether the shell sent standard output to this file, which would be lost when it is replaced."""
    try:
        output = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # not a file of the system's
        return False
    return stat.S_ISREG(output.st_mode) and os.path.samestat(output, path.stat())


def check_spares(option: str, path: str | Path | None, inputs: Iterable[str | Path]) -> None:
    """What is written must not replace what is read."""
    if path is None or path == "-":
        return
    place = Path(path).resolve()
    if any(Path(source).resolve() == place for source in inputs):
        raise UserError(f"{option} {path} would replace a file that is read: give another file")


def show(line: str) -> None:
    """Print a line of the result at once."""
    try:
        print(line, flush=True)
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


def note(message: str) -> None:
    """Something to know beside the result."""
    print("captioner:", printable(message), file=sys.stderr)


def report_bad(bad: dict[str, str], policy: str, total: int) -> int:
    """Say under the policy `report` which of the photographs could not be read; the exit code."""
    if not bad or policy != "report":
        return 0
    note(f"{len(bad)} of {total} photographs could not be read:")
    print(*map(printable, bad.values()), sep="\n", file=sys.stderr)
    return 1
