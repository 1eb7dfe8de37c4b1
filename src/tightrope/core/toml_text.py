"""Read TOML into typed values, and say what is wrong in the words of the file."""

import re
import tomllib
from typing import Any, Final, TypeVar

import msgspec

from tightrope.core.errors import TightropeError
from tightrope.core.units import printable

_T = TypeVar("_T", bound=msgspec.Struct)
_AT: Final = re.compile(r" - at `(?:key in )?\$?(.*)`$")
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.+)`")
_OTHER: Final = re.compile(r"Expected `(.+)`, got `(.+)`")
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def from_toml(text: str, kind: type[_T], name: str) -> _T:
    """Read a value.

    Args:
        text: of the file.
        kind: what it holds.
        name: what messages call the file.

    Raises:
        TightropeError: it is not TOML, or a field is missing, unknown or of another kind: names it.

    Example:
        >>> class Box(msgspec.Struct, forbid_unknown_fields=True):
        ...     bytes: int
        >>> from_toml("bytes = 'many'", Box, "box.toml")
        Traceback (most recent call last):
        ...
        tightrope.core.errors.TightropeError: box.toml: bytes is text in quotes: give a whole number.
    """
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TightropeError(f"{name} is not TOML: {error}.") from error
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise TightropeError(f"{name}: {in_plain_words(str(error), tree)}") from error


def in_plain_words(said: str, tree: Any) -> str:
    """Say what a conversion of ``tree`` said, by the names of tables and without the words of types."""
    place = _AT.search(said)
    what = said[: place.start()] if place else said
    where, there = _place(place[1] if place else "", tree)
    if found := _MISSING.fullmatch(what):
        known = f"; it has {', '.join(map(printable, there))}" if isinstance(there, dict) and there else ""
        return f"{where or 'the file'} has no {found[1]}{known[:200]}: add {found[1]} = ..."
    if found := _UNKNOWN.fullmatch(what):
        return f"{where or 'the file'} has {printable(found[1])!r:.60}, which is not known: leave it out."
    if found := _OTHER.fullmatch(what):
        wanted = " or ".join(_KINDS.get(one, one) for one in found[1].split(" | ") if one != "null")
        return f"{where or 'the file'} is {_KINDS.get(found[2], found[2])}: give {wanted}."
    return f"{where}{': ' * bool(where)}{what[0].lower()}{what[1:].replace('`', '')}."


def _place(path: str, tree: Any) -> tuple[str, Any]:
    """Words for a place in the file, with the name of each table that has one, and what is there."""
    words: list[str] = []
    for field, index in _STEP.findall(path):
        if index:
            number = int(index) if index.isdigit() else -1
            tree = tree[number] if isinstance(tree, (list, tuple)) and 0 <= number < len(tree) else None
            if number < 0 and words and words[-1] != "in one of its tables":
                words.append("in one of its tables")
            if number >= 0 and words:
                name = tree.get("name") if isinstance(tree, dict) else None
                shown = f" {printable(name)!r:.60}" if isinstance(name, str) else f" number {number + 1}"
                words[-1] += shown
        else:
            tree = tree.get(field) if isinstance(tree, dict) else None
            words.append(field)
    return ", ".join(words), tree
