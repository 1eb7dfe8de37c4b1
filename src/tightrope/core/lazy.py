"""Names of a package that are imported when they are first used, as what they are in needs torch."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Args:
        package: its ``__name__``.
        where: name -> module of the package that has it; ``module:other`` where it has another name there.

    Example:
        >>> lazily("tightrope.core", {"parse_bytes": "units"})("parse_bytes")("1KiB")
        1024
    """

    def found(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = where[name].partition(":")
        return getattr(import_module(f"{package}.{module}"), other or name)

    return found
