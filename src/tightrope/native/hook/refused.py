"""The error of a request above the limit: torch's own class and one of this package's at once.

Torch makes the exception from the text that the allocator throws, by calling ``torch.OutOfMemoryError``. A
text of ours gives `OutOfBudgetError`, a subclass; every other text gives what it always did.
"""

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch

from tightrope.core import Bytes, TightropeError

_OURS: Final = re.compile(
    r"tightrope: asked (\d+) bytes; (\d+) are charged now and the limit is (-?\d+) bytes"
)
_LATER: Final = re.compile(r"tightrope: error (\d+):")
_EVICT: Final = re.compile(r"tightrope: evict was asked for (\d+) bytes")


class OutOfBudgetError(TightropeError, torch.OutOfMemoryError):
    """A request for memory that the budget does not allow; nothing was allocated.

    Attributes:
        asked: bytes of the request.
        budget_to_try: a budget that allows this request as far as can be told, and may refuse a later one;
            None = none is known.
    """

    advise: ClassVar[Callable[[Bytes, Bytes, Bytes], tuple[str, Bytes | None]]] = lambda *_: ("", None)
    """Says what to do, with a budget: given the bytes of a request, those charged, and the limit."""

    def __init__(self, message: str = "") -> None:
        if hasattr(self, "asked"):  # it was made before, and raised by C++
            return
        found = _OURS.match(message)
        asked = found or _EVICT.match(message)
        self.asked = int(asked[1]) if asked else 0
        told = type(self).advise(self.asked, int(found[2]), int(found[3])) if found else ("", None)
        advice, self.budget_to_try = told
        super().__init__(f"{message} {advice}".strip())


_later: Final[dict[int, BaseException]] = {}
_MOST_LATER: Final = 16


def told_later(error: BaseException) -> int:
    """Keep an error that C++ is about to raise by the number that this returns."""
    number = max(_later, default=0) + 1
    _later[number] = error
    while len(_later) > _MOST_LATER:  # something in C++ caught those
        del _later[min(_later)]
    return number


_plain: Final = torch.OutOfMemoryError.__new__


def _made(kind: type[BaseException], *args: Any) -> Any:
    later = kind is torch.OutOfMemoryError and args and _LATER.match(str(args[0]))
    if later and int(later[1]) in _later:
        return _later.pop(int(later[1]))
    ours = (
        kind is torch.OutOfMemoryError and args and (_OURS.match(str(args[0])) or _EVICT.match(str(args[0])))
    )
    return _plain(OutOfBudgetError if ours else kind, *args)


def install_error() -> None:
    """Let torch raise `OutOfBudgetError` for what the allocator refuses."""
    torch.OutOfMemoryError.__new__ = staticmethod(_made)  # type: ignore[method-assign]
