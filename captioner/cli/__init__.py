"""The program `captioner`: one module a command, imported only when that command runs.

A command's module has SUMMARY, one line for `captioner --help`, and `run`, which returns the exit
code. `add_arguments` gives it a parser; without that, `run` gets the command line as it is.
No command imports anything heavy before it runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from captioner import __version__
from captioner.cli.memory import keep_freed_memory
from captioner.errors import UserError, printable

COMMANDS = ("caption", "prepare", "fit", "evaluate", "compare")
USER_ERROR, INTERRUPTED, BROKEN_PIPE, TERMINATED = 2, 130, 141, 143  # all but the first as a shell gives them


class Terminated(SystemExit):
    """SIGTERM came: what was half written is cleared away on the way out, as after an interrupt."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (`{self.prog} --help` says more)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0 done, 1 done in part, 2 a mistake that the user can mend."""
    open_closed_streams()
    unwind_on_sigterm()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # any file name can be printed anywhere
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except UserError as error:
        return complain(str(error))
    except KeyboardInterrupt:
        print("captioner: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Terminated:
        print("captioner: terminated", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:
        # The reader has gone, as in `captioner ... | head`: nothing can be said there, nor at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.strerror is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"{where}{error.strerror}")


def complain(message: str) -> int:
    print("captioner: error:", printable(" ".join(message.split())), file=sys.stderr)
    return USER_ERROR


def open_closed_streams() -> None:
    """Give a program that was started with `>&-` somewhere to print to.

    Left closed, the number of standard output would go to the next file that is opened.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it lives as long as the program)


def unwind_on_sigterm() -> None:
    """Without this, SIGTERM would leave temporary files behind."""

    def terminate(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break off the clearing away
        raise Terminated(TERMINATED)

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def dispatch(argv: list[str]) -> int:
    """Hand the command line to the command that it names."""
    if not argv:
        print(overview(), file=sys.stderr)
        return USER_ERROR
    command, *rest = argv
    if command in ("-h", "--help"):
        print(overview())
        return 0
    if command == "--version":
        print(f"captioner {__version__}")
        return 0
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}: choose one of {', '.join(COMMANDS)}")
    keep_freed_memory()
    module = import_module(f"captioner.cli.{command}")
    refuse_empty(command, rest)
    if not hasattr(module, "add_arguments"):
        return module.run(rest)
    parser = Parser(prog=f"captioner {command}", description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


def refuse_empty(command: str, arguments: Sequence[str]) -> None:
    """An empty path would mean the current folder: more likely a variable of the shell is not set."""
    for before, argument in zip((command, *arguments), arguments, strict=False):
        if argument == "" or (argument.startswith("--") and argument.endswith("=")):
            raise UserError(f"there is nothing after {argument.rstrip('=') or before}: give it a value")


def overview() -> str:
    """What `captioner --help` says."""
    modules = {command: import_module(f"captioner.cli.{command}") for command in COMMANDS}
    width = max(map(len, COMMANDS))
    lines = [f"  {command:{width}}  {module.SUMMARY}" for command, module in modules.items()]
    return "\n".join(
        [
            "usage: captioner COMMAND ...",
            "",
            "Caption photographs with soft or hard attention, and see where the model looked.",
            "",
            "commands:",
            *lines,
            "",
            "`captioner COMMAND --help` says more; `captioner --version` tells the version.",
        ]
    )
