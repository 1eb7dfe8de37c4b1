"""Read the allocation dump of MindSpore's SOMAS (``Somas EDGE ...`` lines).

Every edge line repeats its tensor: id, size, and the first and last node that need it, both
included. ``lifelong=1`` tensors live through everything. ``Somas CONTIGUOUS`` lines list tensors
that lie one right above the other. SOMAS places at multiples of 512 bytes, and so do we.
"""

import re
from collections.abc import Iterator
from typing import Final

from tightrope.core import TightropeError
from tightrope_planners.place.instance import Instance

_ALIGNMENT: Final = 512
_MAX_TENSORS: Final = 4_000_000
_FIELD: Final = re.compile(r"\b(size|lifelong|tid|start|end)=(\d{1,18})\b")
_FIELDS: Final = frozenset({"size", "lifelong", "tid", "start", "end"})
_EVERYTHING: Final = 1


def parse_somas(data: bytes, name: str) -> Instance:
    """Read a dump.

    Args:
        data: the text.
        name: what it is, for messages.

    Returns:
        One buffer per tensor, in the order of their first lines; the names are tensor ids.

    Raises:
        TightropeError: a line of a kind that is known lacks a field, contradicts an earlier line
            about the same tensor, or names an unknown one.

    Example:
        >>> line = b"Somas EDGE src=n0, srcstm=0, dst=n1, dststm=0, workspace=0, size=64, "
        >>> parse_somas(line + b"lifelong=0, tid=7, start=0, end=1", "dump").buffers
        ((64, 0, 2),)
    """
    tensors: dict[int, tuple[int, int, int, int]] = {}
    groups: list[tuple[int, ...]] = []
    for line, text in _lines(data, name):
        if text.startswith("Somas EDGE"):
            tensor, row = _edge(text, line, name)
            if tensors.setdefault(tensor, row) != row:
                raise TightropeError(f"{name}, line {line}: tensor {tensor} differs from an earlier line.")
        elif text.startswith("Somas CONTIGUOUS"):
            groups.append(_group(text, line, name))
    if not tensors or len(tensors) > _MAX_TENSORS:
        raise TightropeError(f"{name} has {len(tensors)} 'Somas EDGE' tensors; 1 to {_MAX_TENSORS} are read.")
    return _instance(tensors, groups, name)


def _lines(data: bytes, name: str) -> Iterator[tuple[int, str]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TightropeError(f"{name}: not UTF-8 text: {error}.") from error
    for line, words in enumerate(text.splitlines(), start=1):
        yield line, words.strip()


def _edge(text: str, line: int, name: str) -> tuple[int, tuple[int, int, int, int]]:
    found = {key: int(value) for key, value in _FIELD.findall(text)}
    if found.keys() != _FIELDS or found["end"] < found["start"]:
        raise TightropeError(
            f"{name}, line {line}: needs size, lifelong, tid, start and end >= start; it has {text[:120]!r}."
        )
    return found["tid"], (found["size"], found["start"], found["end"] + 1, found["lifelong"])


def _group(text: str, line: int, name: str) -> tuple[int, ...]:
    words = text.split()[2:]
    if not words or not all(word.isdecimal() and len(word) <= 18 for word in words):
        raise TightropeError(f"{name}, line {line}: a contiguous list needs tensor ids, not {text[:80]!r}.")
    return tuple(map(int, words))


def _instance(
    tensors: dict[int, tuple[int, int, int, int]], groups: list[tuple[int, ...]], name: str
) -> Instance:
    first = min(start for _, start, _, _ in tensors.values())
    last = max(end for _, _, end, _ in tensors.values())
    place_of = {tensor: index for index, tensor in enumerate(tensors)}
    members = [tensor for group in groups for tensor in group]
    unknown = [tensor for tensor in members if tensor not in place_of]
    if unknown or len(set(members)) != len(members):
        raise TightropeError(
            f"{name}: contiguous lists need known tensors, each in one list; unknown are {unknown[:5]}."
        )
    return Instance(
        buffers=tuple(
            (size, first, last) if lifelong == _EVERYTHING else (size, start, end)
            for size, start, end, lifelong in tensors.values()
        ),
        names=tuple(map(str, tensors)),
        alignments=(_ALIGNMENT,) * len(tensors),
        offsets=(-1,) * len(tensors),
        groups=tuple(tuple(place_of[tensor] for tensor in group) for group in groups),
    )
