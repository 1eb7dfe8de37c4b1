"""JSON text from outside, read with limits.

Text is parsed into plain values and nothing else: repeated keys, ``NaN``, integers beyond 2^62, long
texts, deep nesting and text that is not UTF-8 raise `PlanFileError`, which quotes what it refuses.
"""

import json
import math
from typing import Any, Final, NoReturn

from tightrope.core.errors import PlanFileError
from tightrope.core.recognize import recognized
from tightrope.core.units import Bytes

MAX_FILE_BYTES: Final[Bytes] = 256 * 2**20
MAX_INT: Final = 2**62
_MAX_VALUES: Final = 30_000_000  # numbers, texts, arrays and objects in a file: about 2 GiB once parsed
_MAX_TEXT: Final = 10_000
_MAX_DEPTH: Final = 16


def parse_json(data: bytes, name: str) -> Any:
    """Parse one JSON value of at most 256 MiB.

    Args:
        data: the text, UTF-8.
        name: what it is, for messages.

    Raises:
        PlanFileError: it is not JSON, or too large.

    Example:
        >>> parse_json(b'{"a": [1]}', "graph")
        {'a': [1]}
    """
    check_size(data, name)
    cause: Exception
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        cause, why = error, f"not UTF-8 text: byte {data[error.start]:#04x} at {error.start}"
    except json.JSONDecodeError as error:
        near = error.doc[max(error.pos - 20, 0) : error.pos + 20]
        cause, why = error, f"not JSON: {error.msg} at line {error.lineno}, near {near!r}"
    except (ValueError, RecursionError, MemoryError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error) or "too large"
        cause, why = error, f"not readable as JSON: {what}"
    raise PlanFileError(
        f"{name}: {why}. {recognized(data) or f'Give a {name} as it was written.'}"
    ) from cause


def check_size(data: bytes, name: str) -> None:
    """Refuse text that would take too much memory once it is parsed.

    Raises:
        PlanFileError: says how much there is and how much is read.
    """
    values = sum(map(data.count, (b",", b"[", b"{")))
    if len(data) > MAX_FILE_BYTES or values > _MAX_VALUES:
        most = f"the most that is read is {MAX_FILE_BYTES} bytes with {_MAX_VALUES} values"
        raise PlanFileError(f"{name}: {len(data)} bytes with {values} values; {most}.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise PlanFileError(f"field {quote(twice)} is given twice in one object: keep one of them.")
    return fields


def _constant(text: str) -> NoReturn:
    raise PlanFileError(f"{text} is not a number that a file may hold: use a finite one.")


def check_values(tree: Any, name: str) -> None:
    """Refuse integers, numbers, texts and nesting beyond the limits, wherever they stand.

    Raises:
        PlanFileError: names the path and quotes the value.
    """
    waiting: list[tuple[Any, str, int]] = [(tree, "$", 0)]
    while waiting:
        value, path, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise PlanFileError(f"{name}: {path[:80]}: nested more than {_MAX_DEPTH} levels deep.")
        keyed = isinstance(value, dict)
        for key, item in value.items() if keyed else enumerate(value):
            if keyed and (problem := _scalar_problem(key)):
                raise PlanFileError(f"{name}: {path}: field name {quote(key)}: {problem}.")
            if isinstance(item, dict | list | tuple):
                waiting.append((item, f"{path}.{key}" if keyed else f"{path}[{key}]", depth + 1))
            elif problem := _scalar_problem(item):
                where = f"{path}.{key}" if keyed else f"{path}[{key}]"
                raise PlanFileError(f"{name}: {where} = {quote(item)}: {problem}.")


def _scalar_problem(value: object) -> str:
    if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        return "integers must lie between -2^62 and 2^62"
    if isinstance(value, float) and not math.isfinite(value):
        return "numbers are finite"
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            return f"texts have at most {_MAX_TEXT} characters"
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            return "texts hold no unpaired surrogate"
    return ""


def quote(value: object) -> str:
    """Show a value that was read, in at most 90 characters."""
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)} items"
    if isinstance(value, int) and abs(value) > 2**80:
        return "an integer beyond 2^80"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 90 else text[:80] + "..."
