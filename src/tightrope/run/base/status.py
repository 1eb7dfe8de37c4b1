"""Progress on anything that may take over two seconds.

Where standard error is not a terminal a library writes one line per plan, a command one per task that has
taken two seconds. Lines are records of the logger ``tightrope``, at the level INFO; its handler writes them
to standard error. Nothing of this draws a random number: rich does, when it is imported.
"""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from tightrope.core import Bytes, InfeasibleError, format_bytes, format_time
from tightrope.core.cache import cache_folder
from tightrope.native.build import build, unbuilt
from tightrope.plan import Progress as SearchProgress

_INTERVAL = 0.1
_PATIENCE = 2.0
"""Seconds after which a task is named that may be short."""
_BUILT: set[object] = set()
"""Compilers and caches with which `build_native` was called: what fails is not tried at every model."""
NO_LIMIT: Bytes = 2**50
"""Budgets from here on mean that none was asked for."""


LOG: Final = logging.getLogger("tightrope")


class _ToStandardError(logging.Handler):
    """Writes a line to what is standard error by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        sys.stderr.write(f"tightrope: {record.getMessage()}\n")
        sys.stderr.flush()


if not LOG.handlers:
    LOG.addHandler(_ToStandardError())
    LOG.propagate = False
if LOG.level == logging.NOTSET:
    LOG.setLevel(logging.INFO)


class StatusLine:
    """One status line on standard error.

    Args:
        shown: None = only on a terminal; False = nothing at all, not even a line per plan.
        lines: where it is not shown, whether to write a line once a task has taken two seconds.
    """

    def __init__(self, *, shown: bool | None = None, lines: bool = False) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.silent, self.lines = shown is False, lines
        self._planning = False

    @contextmanager
    def _status(self, text: str) -> Iterator[None]:
        if not self.shown:
            with _later(text) if self.lines and not self._planning else nullcontext():
                yield
            return
        self._show(f"tightrope: {text}")
        try:
            yield
        finally:
            self._show("")

    def _show(self, text: str) -> None:
        """Write over the line; the cursor is left at its start, so that a warning takes its place."""
        if self.shown:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{text[:width]:<{width}}\r")
            sys.stderr.flush()

    @contextmanager
    def task(self, text: str, total: int) -> Iterator[Callable[[int, int, str], None]]:
        """Show ``text`` with a count while the block runs; call the result with (done, total, what)."""
        last = time.monotonic()
        with self._status(text + (f" ({total})" if total > 1 else "")):

            def tick(done: int, of: int, what: str) -> None:
                nonlocal last
                if time.monotonic() - last > _INTERVAL:
                    last = time.monotonic()
                    self._show(f"tightrope: {text} {done}/{of} {what}")

            yield tick

    @contextmanager
    def slow(self, text: str) -> Iterator[None]:
        """Show ``text`` while the block runs; elsewhere than on a terminal, once it has taken two seconds."""
        if self.shown or self.silent:
            with self.task(text, 1):
                yield
            return
        with _later(text):
            yield

    def say(self, text: str) -> None:
        """Write one line, unless nothing is to be shown."""
        if not self.silent:
            LOG.info("%s", text)

    @contextmanager
    def planning(self, budget: Bytes, cause: str) -> Iterator[None]:
        """Say in one line that planning begins, why, and when it is over, how long it took.

        It comes when planning is over, and where that is no terminal its beginning after two seconds, too.
        """
        began, result = time.perf_counter(), "stopped, "
        start = f"{_goal(budget)} ({cause})"
        self._planning = True
        try:
            with nullcontext() if self.silent or self.shown else _later(start):
                yield
            result = ""
        except InfeasibleError:
            result = "refused, "
            raise
        finally:
            self._planning = False
            self.say(f"{start} ... {result}{time.perf_counter() - began:.2f} s")

    @contextmanager
    def search(self, budget: Bytes) -> Iterator[Callable[[SearchProgress], None]]:
        """Show the best plan so far while the search runs."""
        with self._status(_goal(budget)):

            def report(now: SearchProgress) -> None:
                found = "" if now.best_ns is None else f"best step {format_time(now.best_ns)}, "
                self._show(f"tightrope: {_goal(budget)}: {found}{now.message}")

            yield report


@contextmanager
def _later(text: str) -> Iterator[None]:
    """Write a line once the block has taken two seconds."""
    timer = threading.Timer(_PATIENCE, LOG.info, ("%s ...", text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _goal(budget: Bytes) -> str:
    return f"planning for {format_bytes(budget)}" if budget < NO_LIMIT else "planning without a limit"


def build_native(status: StatusLine) -> None:
    """Build what a first step needs of the native part, all at once, unless it is there.

    >>> build_native(StatusLine(shown=False))
    """
    where = os.environ.get("CXX"), cache_folder()
    if where in _BUILT:
        return
    _BUILT.add(where)
    if names := unbuilt():
        with status.slow("building the native part (once, 10 to 30 s)"):
            build(names)
