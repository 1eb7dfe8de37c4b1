"""How long a thread waited for a processor that others had, while something was measured.

Source      Linux's ``/proc/thread-self/schedstat``: nanoseconds on a processor, and ready but without one.
Gaps        Elsewhere nothing is known. What slows a thread that runs, such as a shared cache, does not count,
            nor does what a hypervisor takes.
"""

from pathlib import Path
from types import TracebackType
from typing import Final, Self

_FILE: Final = Path("/proc/thread-self/schedstat")
_LEAST: Final = 10_000_000
"""Nanoseconds below which a share says nothing."""
MUCH: Final = 0.1
"""Share from which measured times are doubted."""


class Waiting:
    """Measure the share of a block in which its thread was ready and had no processor.

    Attributes:
        share: 0 where nothing is known.

    Example:
        >>> with Waiting() as waiting:
        ...     _ = sum(range(1000))
        >>> 0 <= waiting.share < 1
        True
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._before = (0, 0)

    def __enter__(self) -> Self:
        self._before = read_times()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ran, waited = (now - before for now, before in zip(read_times(), self._before, strict=True))
        if ran + waited >= _LEAST:
            self.share = waited / (ran + waited)


def read_times() -> tuple[int, int]:
    """Nanoseconds in which this thread ran, and was ready and did not; zeros where nothing is known."""
    try:
        ran, waited, *_ = _FILE.read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran), int(waited)
