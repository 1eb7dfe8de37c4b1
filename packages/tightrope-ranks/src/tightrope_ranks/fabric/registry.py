"""Functions that other nodes may call: by their names, which every process registers for itself."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from tightrope.core import TightropeError

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)
_FUNCTIONS: Final[dict[str, Function]] = {}


def register(name: str) -> Callable[[_F], _F]:
    """Let other nodes call a function by a name; nothing else can be called, and no code is sent.

    A function takes what the caller gave: tensors, `RemoteTensor` handles, and plain values (numbers, text,
    bytes, lists, dicts). It returns one of these, a tuple or list of them, or None.

    Args:
        name: unique; every process that serves it imports the module that registers it.

    Example:
        >>> @register("example.double")
        ... def double(x):
        ...     return 2 * x
        >>> function_of("example.double")(4)
        8
    """

    def keep(function: _F) -> _F:
        before = _FUNCTIONS.get(name)
        if before is not None and (before.__module__, before.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise TightropeError(
                f"{name!r} is registered by {before.__module__}.{before.__qualname__}: take another name."
            )
        _FUNCTIONS[name] = function
        return function

    return keep


def function_of(name: str) -> Function:
    """Return a registered function.

    Raises:
        TightropeError: there is none of this name.
    """
    if name not in _FUNCTIONS:
        raise TightropeError(
            f"no function is registered as {name!r}; there are {', '.join(sorted(_FUNCTIONS)) or 'none'}. "
            "Import "
            "the module that registers it, on every node (modules=[...])."
        )
    return _FUNCTIONS[name]
