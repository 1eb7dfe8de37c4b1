"""Unit aliases, and bytes in human form.

Every integer in the package that is not a plain count carries one of these aliases in its
annotation. Lifetimes are half-open everywhere: ``[start, end)``.
"""

import math
import operator
import re
from fractions import Fraction
from numbers import Real
from typing import TypeAlias

from tightrope.core.errors import BudgetSyntaxError, TightropeError

Bytes: TypeAlias = int
Nanoseconds: TypeAlias = int
StepIndex: TypeAlias = int
Offset: TypeAlias = int
OpId: TypeAlias = int
StorageId: TypeAlias = int

ALIGNMENT: Bytes = 64
"""Every allocation is charged and placed in multiples of this (the CPU allocator's own alignment)."""

_SCALE: dict[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z%]*)\s*", re.IGNORECASE)
_LIMIT: Bytes = 2**62
_LONGEST = 60
"""Characters of a value that a message shows."""


def printable(text: str) -> str:
    r"""Escape what a terminal would obey instead of showing: names come from files.

    Example:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """Show any value in one line of at most about 60 characters; a class by its name.

    >>> shown([1, 2]), shown(int), shown("a" * 99)[-5:]
    ('[1, 2]', 'the class int', 'aa...')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = printable(" ".join(repr(value).split()))
    except Exception:  # a value whose own text is broken
        text = f"a value of the class {type(value).__name__}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def is_whole(value: object) -> bool:
    """Tell whether a value is an integer of any kind, numpy's included.

    >>> is_whole(3), is_whole(3.0)
    (True, False)
    """
    if isinstance(value, int):
        return True
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def round_up(size: Bytes, alignment: Bytes = ALIGNMENT) -> Bytes:
    """Round ``size`` up to the next multiple of ``alignment``.

    >>> round_up(65)
    128
    """
    return -(-size // alignment) * alignment


def parse_bytes(text: str | int, *, whole: Bytes | None = None, name: str = "budget") -> Bytes:
    """Read an amount of memory: ``"8GiB"``, ``"300 MB"``, ``314572800`` or ``"90%"``.

    KiB/MiB/GiB/TiB are powers of 1024, and so are K/M/G/T, as for Docker and Slurm; KB/MB/GB/TB are powers
    of 1000. A percentage needs
    ``whole``, the bytes that 100 % stands for, and is rounded up with exact arithmetic; without it no message
    offers one. ``name`` is what messages call the amount.

    Raises:
        BudgetSyntaxError: the text is not an amount, is not positive, is a bare fraction
            such as ``0.9`` (of what?), or is a percentage where no whole is known.

    >>> parse_bytes("300 MB"), parse_bytes("1.5KiB"), parse_bytes("90%", whole=1001)
    (300000000, 1536, 901)
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        why = ": a bare fraction could mean a share of the card, of the free memory or of the step"
        share = "" if whole is None else ' or a percentage ("90%")'
        raise BudgetSyntaxError(
            f"{name} {shown(text)} is not an amount of memory{why * isinstance(text, float)}. "
            f'Write bytes ("8GiB", "300 MB", 314572800){share}.'
        )
    if isinstance(text, int):
        amount, unit, digits = Fraction(text), "b", ""
    else:
        match = _AMOUNT.fullmatch(text) if len(text) <= 64 else None
        if match is None:
            forms = '"300 MB" or 314572800' if whole is None else '"300 MB", 314572800 or "90%"'
            raise BudgetSyntaxError(f'{name} {text[:64]!r} is not an amount: write "8GiB", {forms}.')
        amount, unit, digits = Fraction(match[1]), match[2].lower(), match[1]
        if unit == "" and "." in match[1]:
            share = "" if whole is None else ', or a percentage such as "90%"'
            raise BudgetSyntaxError(f'{name} {text!r} has no unit: write "{match[1]}GiB"{share}.')
    if unit == "%":
        if whole is not None and (not is_whole(whole) or whole < 0):
            raise BudgetSyntaxError(
                f"whole={shown(whole)}: give a whole number of bytes, what 100 % stands for."
            )
        if whole is None:
            raise BudgetSyntaxError(
                f"{name} {text!r} is a percentage, and what 100 % stands for is not known here; "
                f'write bytes, as in {name}="200MiB".'
            )
        amount, unit = amount * whole / 100, "b"
    if unit == "" and whole is not None and amount <= 100:
        raise BudgetSyntaxError(
            f'{name} {text!r} is {text} bytes: did you mean "{digits}%"? Write "{digits}B" for bytes.'
        )
    if unit not in _SCALE:
        raise BudgetSyntaxError(
            f"{name} {text!r}: unknown unit {unit!r}; use B, KB, MB, GB, TB, KiB (or K), MiB, GiB, TiB or %."
        )
    exact = amount * _SCALE[unit]
    size = -(-exact.numerator // exact.denominator)
    if not 0 < size < _LIMIT:
        raise BudgetSyntaxError(f"{name} {text!r} is {size} bytes: it must lie between 1 byte and 4 EiB.")
    return size


def format_bytes(size: float) -> str:
    """Write bytes for people, with a binary unit and four significant digits.

    Raises:
        TightropeError: it is no number.

    >>> format_bytes(300 * 2**20), format_bytes(512)
    ('300.0 MiB', '512 B')
    """
    if not isinstance(size, Real) or not math.isfinite(size):
        raise TightropeError(f"size={shown(size)}: give a number of bytes.")
    sign, value, power = ("-" if size < 0 else ""), float(abs(size)), 0
    while value >= 1024 and power < 4:
        value, power = value / 1024, power + 1
    digits = 0 if power == 0 else 2 if value < 100 else 1
    return f"{sign}{value:.{digits}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def format_time(ns: float) -> str:
    """Write nanoseconds for people.

    >>> format_time(1_500_000)
    '1.50 ms'
    """
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.2f} {unit}"
    return f"{ns:.0f} ns"


def format_price(ns: Nanoseconds) -> str:
    """Write the time of an op for people; 0 stands for one that was neither measured nor estimated.

    >>> format_price(1500), format_price(0)
    ('1.50 us', 'an unknown time')
    """
    return format_time(ns) if ns else "an unknown time"
