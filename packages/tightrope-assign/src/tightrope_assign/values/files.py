"""Values as JSON files with a version, read with limits."""

from pathlib import Path
from typing import TypeVar

import msgspec

from tightrope.core import PlanFileError
from tightrope.core.files import naming, read_file
from tightrope.core.json_text import check_values, parse_json, quote
from tightrope.core.toml_text import in_plain_words

SCHEMA = 1
"""Version of the files that this package writes and reads."""

_T = TypeVar("_T", bound=msgspec.Struct)


def read_value(path: str | Path, kind: type[_T], name: str) -> _T:
    """Read a value from a file; loading executes nothing.

    Args:
        path: of the file.
        kind: of the value, with a field ``schema``.
        name: what messages call it, such as ``task graph``.

    Raises:
        PlanFileError: it is not such a value of this version: says what and where.
    """
    data = read_file(path)
    with naming(path):
        return parse_value(data, kind, name)


def parse_value(data: bytes, kind: type[_T], name: str) -> _T:
    """Read a value from JSON text; see `read_value`."""
    tree = parse_json(data, name)
    if not isinstance(tree, dict):
        raise PlanFileError(f"{name}: a file holds one JSON object, and this is {quote(tree)}: give one.")
    if "schema" not in tree:
        raise PlanFileError(
            f'{name}: "schema" is missing: write "schema": {SCHEMA}, the version of the file.'
        )
    if tree["schema"] != SCHEMA or isinstance(tree["schema"], bool):
        raise PlanFileError(
            f"{name}: the file has schema {quote(tree['schema'])}; this version reads {SCHEMA}. Make it anew."
        )
    check_values(tree, name)
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise PlanFileError(f"{name}: {in_plain_words(str(error), tree)}") from error


def write_value(value: msgspec.Struct) -> bytes:
    """Write a value as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
