"""One HTML file that opens from disk, without a network, and shows a trace.

Everything is inside: style, script, data. A content security policy in the file lets exactly this
script and this style run and forbids every request, so that no name in the data can do anything.
"""

import base64
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from tightrope.core import Trace
from tightrope.view.payload import pack_trace

SCRIPTS: Final = (
    "base.js",
    "decode.js",
    "model.js",
    "levels.js",
    "charts.js",
    "tip.js",
    "details.js",
    "answers.js",
    "peak.js",
    "curve.js",
    "tree.js",
    "tables.js",
    "search.js",
    "link.js",
    "app.js",
)
"""The page's scripts, in the order in which they are joined."""


def page(trace: Trace, *, forecast: Trace | None = None, against: Trace | None = None) -> str:
    """Draw a trace as one self-contained HTML page.

    The page asks for nothing from a network, runs no code but its own, and holds the same numbers as the
    trace: bytes exactly, times to the nanosecond. Names are cut to 300 characters.

    Args:
        trace: what to show, forecast or observed.
        forecast: what the plan said, drawn as a ghost behind an observed trace.
        against: an earlier trace; the page lists what changed since.

    Returns:
        The text of the file.

    Raises:
        TightropeError: the trace contradicts itself, e.g. an event ends before it starts.

    Example:
        >>> from tightrope.core import Buffer
        >>> page(Trace("observed", (Buffer(64, 0, 1),), num_events=2)).startswith("<!doctype html>")
        True
    """
    name = trace.summary.name[:120] or "training step"
    data = base64.b64encode(pack_trace(trace, forecast=forecast, against=against)).decode()
    style, script = _asset("page.css"), _script()
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'"
    return _fill(
        _asset("page.html"),
        (
            ("policy", policy),
            ("title", html.escape(f"{name}: memory of a training step")),
            ("style", style),
            ("data", data),
            ("script", script),
        ),
    )


def _fill(template: str, parts: Sequence[tuple[str, str]]) -> str:
    """Put each part at its mark, each once and in order; what is put in is never searched for marks."""
    done = ""
    for name, text in parts:
        before, template = template.split("{{" + name + "}}", 1)
        done += before + text
    return done + template


@cache
def _asset(name: str) -> str:
    return (files("tightrope.view") / "assets" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()
