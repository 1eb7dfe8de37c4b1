"""Names of a package that are imported when they are first used, and names that left it for a plug-in."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, where: Mapping[str, str], *, moved: Mapping[str, Collection[str]] | None = None
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Args:
        package: its ``__name__``.
        where: name -> module of the package that has it; ``module:other`` where it has another name there.
        moved: extra that brings a plug-in -> names that are in ``tightrope_EXTRA`` now.

    Example:
        >>> lazily("tightrope.core", {"parse_bytes": "units"})("parse_bytes")("1KiB")
        1024
    """

    def found(name: str) -> Any:
        for extra, names in (moved or {}).items():
            if name in names:
                raise AttributeError(
                    f"{package}.{name} is of tightrope-{extra} now: pip install 'tightrope[{extra}]', and "
                    f"take it from tightrope_{extra}."
                )
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = where[name].partition(":")
        return getattr(import_module(f"{package}.{module}"), other or name)

    return found
