"""The console that commands print tables on."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    """Rich's own would exit with 1 when the reader has gone; that is for `main` to deal with."""

    def on_broken_pipe(self) -> None:
        raise
