"""How every command prints, and its exit codes."""

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tightrope.cli.tables import Console

FITS, ERROR, DOES_NOT_FIT = 0, 2, 3
_WIDE = 400
"""Columns when standard output is not a terminal: lines are for programs then, and never folded."""


def console() -> "Console":
    """Standard output: colours on a terminal only, and never with NO_COLOR."""
    from tightrope.cli.tables import Console

    shown = sys.stdout.isatty()
    return Console(
        no_color=bool(os.environ.get("NO_COLOR")),
        highlight=False,
        soft_wrap=not shown,
        width=None if shown else _WIDE,
    )


def emit_json(value: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")
