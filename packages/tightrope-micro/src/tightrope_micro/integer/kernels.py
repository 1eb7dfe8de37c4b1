"""Softmax, GELU and layer norm in 32-bit integers, with the finest formats that can be proved.

Idea        Ranges are constrained so that everything fits 32 bits. Softmax: powers of two by a cubic
            polynomial in 15 bits, held with as many bits as a row's sum leaves room for. Layer norm:
            differences from the mean, times the length of a row and so exact, are shifted by what their
            row needs until their squares add up in 32 bits. An 8-bit GELU is a table. The formats are tried
            from the finest on.
Source      I-BERT (ICML 2021) for integer polynomials; the constraint of the ranges is our own
Guarantee   What is returned has passed `proof`. Results are within one unit in the last place of the float
            function, on the inputs of `tests/test_micro_integer.py`; a row of equal numbers has no
            deviation, and its norm is the bias.
Complexity  At most 31 proofs per kernel.
Gaps        Inputs of 8 bits for softmax and GELU, of 16 bits for layer norm, whose epsilon is 0.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tightrope.core import JudgeError, TightropeError
from tightrope_micro.integer.costs import RowOp
from tightrope_micro.integer.evaluate import evaluate
from tightrope_micro.integer.floats import FloatRows, bump, exact
from tightrope_micro.integer.program import Number, RowKind, RowProgram
from tightrope_micro.integer.proof import proved

_CUBIC = (1.0, -0.69280, 0.23444, -0.04164)
"""Of 2^-f for f from 0 to 1, exact at both ends; its largest error is 1.1e-4."""
_POLYNOMIAL_BITS = 15
_INVERSE_BITS = 9


def finest(make: Callable[[int], RowProgram], name: str, *, least: int) -> RowProgram:
    """Return the program with most bits that can be proved.

    Args:
        make: the program with so many bits.
        name: of the kernel.
        least: bits below which it is not precise.

    Raises:
        TightropeError: none can, with the reason for the coarsest.
    """
    why = ""
    for bits in range(30, least - 1, -1):
        try:
            program = make(bits)
            proved(program)
        except JudgeError as error:
            why = str(error)
            continue
        return program
    raise TightropeError(f"no 32-bit format fits {name}: {why}")


def softmax(scale: float, length: int, *, table: bool = False) -> RowProgram:
    """Make the softmax of rows of 8-bit scores, as ``uint8_t`` in units of 1/255.

    Args:
        scale: of a score of 1.
        length: of a row.
        table: look powers up, in 1 KiB of flash, instead of computing them: fewer instructions on Arm cores.

    Raises:
        TightropeError: the scale is not positive, or no format fits.

    Example:
        >>> from tightrope_micro.integer.evaluate import evaluate
        >>> import numpy as np
        >>> evaluate(softmax(0.1, 4), np.array([[0, 10, 20, 30]])).tolist()
        [[8, 22, 60, 164]]
    """
    if not 0 < scale < 100 or length < 1:
        raise TightropeError(
            f"softmax of rows of {length} scores in units of {scale}: both must be positive."
        )
    make = _softmax_table if table else _softmax
    return finest(lambda bits: make(scale, length, bits), f"softmax of {length} scores", least=16)


def _softmax_table(scale: float, length: int, bits: int) -> RowProgram:
    one = RowProgram(f"softmax_table_{length}", length, "int8_t", "uint8_t")
    x = one.given(-128, 127)
    below = one.add(RowKind.BELOW, one.add(RowKind.LARGEST, x), x)
    table = tuple(min(round(math.exp(-k * scale) * 2**bits), 2**31 - 1) for k in range(256))
    return _shares(one, one.lookup(table, below))


def _softmax(scale: float, length: int, bits: int) -> RowProgram:
    one = RowProgram(f"softmax_{length}", length, "int8_t", "uint8_t")
    rate = scale * math.log2(math.e)
    fraction = max(k for k in range(_POLYNOMIAL_BITS, 31) if k == 15 or 255 * round(rate * 2**k) < 2**31)
    x = one.given(-128, 127)
    below = one.add(RowKind.BELOW, one.add(RowKind.LARGEST, x), x)
    times = one.add(RowKind.MUL, below, one.const(round(rate * 2**fraction)), unsigned=True)
    whole = one.add(RowKind.SHR, times, one.const(fraction), unsigned=True)
    whole = one.add(RowKind.MIN, whole, one.const(31), unsigned=True)
    rest = one.add(RowKind.SHR, times, one.const(fraction - _POLYNOMIAL_BITS), unsigned=True)
    rest = one.add(RowKind.AND, rest, one.const(2**_POLYNOMIAL_BITS - 1), unsigned=True)
    power = _polynomial(one, rest, _CUBIC)
    wide = bits - _POLYNOMIAL_BITS
    power = one.add(RowKind.SHL if wide >= 0 else RowKind.SHR, power, one.const(abs(wide)), unsigned=True)
    return _shares(one, one.add(RowKind.SHR, power, whole, unsigned=True))


def _shares(one: RowProgram, power: Number) -> RowProgram:
    """Divide powers by their sum: one division per row."""
    total = one.add(RowKind.SUM, power, unsigned=True)
    lead = one.add(RowKind.LEAD, total, bits=16)
    divisor = one.add(RowKind.LED, total, lead, bits=16, unsigned=True)
    inverse = one.add(RowKind.DIV, one.const(2**31, unsigned=True), divisor, unsigned=True)
    share = one.add(RowKind.MUL, one.add(RowKind.SHR, power, lead, unsigned=True), inverse, unsigned=True)
    share = one.add(RowKind.SHR, share, one.const(15), unsigned=True)
    share = one.add(RowKind.MUL, share, one.const(255), unsigned=True)
    share = one.add(RowKind.ADD, share, one.const(2**15), unsigned=True)
    one.add(RowKind.SHR, share, one.const(16), unsigned=True)
    return one


def _polynomial(one: RowProgram, at: Number, coefficients: Sequence[float]) -> Number:
    """Evaluate a polynomial of a fraction, all in 15 bits, by Horner's rule with rounding."""
    fixed = [round(c * 2**_POLYNOMIAL_BITS) for c in coefficients]
    found = one.const(fixed[-1])
    for coefficient in reversed(fixed[:-1]):
        found = one.add(RowKind.MUL, found, at)
        found = one.add(RowKind.ADD, found, one.const(2 ** (_POLYNOMIAL_BITS - 1)))
        found = one.add(RowKind.SHR, found, one.const(_POLYNOMIAL_BITS))
        found = one.add(RowKind.ADD, found, one.const(coefficient))
    found = one.add(RowKind.MAX, found, one.const(2 ** (_POLYNOMIAL_BITS - 1)))
    return one.add(RowKind.MIN, found, one.const(2**_POLYNOMIAL_BITS))


def gelu(scale: float, target: float, length: int) -> RowProgram:
    """Make GELU of 8-bit numbers as a table.

    Args:
        scale: of an input of 1.
        target: of a result of 1.
        length: of a row.

    Raises:
        TightropeError: a scale is not positive.
    """
    if not (scale > 0 and target > 0):
        raise TightropeError(f"GELU from units of {scale} to units of {target}: both must be positive.")
    one = RowProgram(f"gelu_{length}", length, "int8_t", "int8_t")
    exact = [0.5 * (k * scale) * (1 + math.erf(k * scale / math.sqrt(2))) / target for k in range(-128, 128)]
    table = tuple(min(127, max(-128, math.floor(value + 0.5))) for value in exact)
    one.lookup(table, one.add(RowKind.ADD, one.given(-128, 127), one.const(128)))
    proved(one)
    return one


def gelu_polynomial(scale: float, target: float, length: int) -> RowProgram:
    """Make GELU of 8-bit numbers without a table: a ramp less a polynomial of the size of the number.

    Args:
        scale: of an input of 1.
        target: of a result of 1.
        length: of a row.

    Raises:
        TightropeError: a scale is not positive, or nothing that is within a unit of the exact function, at
            each of the 256 inputs, fits 32 bits.
    """
    if not (scale > 0 and target > 0):
        raise TightropeError(f"GELU from units of {scale} to units of {target}: both must be positive.")
    name = f"GELU from units of {scale} to units of {target}"
    one = finest(lambda bits: _gelu_polynomial(scale, target, length, bits), name, least=8)
    every = np.arange(-128, 128)[:, None]
    wanted = np.clip(exact(FloatRows("", 1, RowOp.GELU, scale, target), every), -128, 127)
    if np.abs(evaluate(one, every) - wanted).max() > 1:
        raise TightropeError(f"no polynomial is within a unit of {name}: take the table.")
    return one


def _gelu_polynomial(scale: float, target: float, length: int, bits: int) -> RowProgram:
    one, (end, coefficients) = (
        RowProgram(f"gelu_polynomial_{length}", length, "int8_t", "int8_t"),
        bump(target),
    )
    rate, near = scale / end * 2**bits, one.const(2**bits)
    x = one.given(-128, 127)
    ramp = one.add(RowKind.MAX, x, one.const(0))
    size = one.add(RowKind.MAX, ramp, one.add(RowKind.SUB, one.const(0), x))
    shift = max(0, min(20, math.floor(math.log2(2**30 / (128 * rate)))))
    far = one.add(
        RowKind.SHR, one.add(RowKind.MUL, size, one.const(round(rate * 2**shift))), one.const(shift)
    )
    left = one.add(RowKind.MAX, one.add(RowKind.SUB, near, far), one.const(0))
    fixed = [round(value * 2**bits) for value in coefficients]
    found = one.const(fixed[-1])
    for coefficient in reversed(fixed[:-1]):
        found = one.add(RowKind.SHR, one.add(RowKind.MUL, found, left), one.const(bits))
        found = one.add(RowKind.ADD, found, one.const(coefficient))
    found = one.add(RowKind.MIN, one.add(RowKind.MAX, found, one.const(0)), one.const(2 ** (bits - 2)))
    by = min(24, math.floor(math.log2(2**29 / max(128 * scale / target, 0.25 / target, 1))))
    bumped = one.add(RowKind.MUL, found, one.const(round(2.0 ** (by - bits) / target)))
    whole = one.add(RowKind.MUL, ramp, one.const(round(scale / target * 2**by)))
    whole = one.add(RowKind.SUB, one.add(RowKind.ADD, whole, one.const((1 << by) >> 1)), bumped)
    whole = one.add(RowKind.SHR, whole, one.const(by))
    one.add(RowKind.MIN, one.add(RowKind.MAX, whole, one.const(-128)), one.const(127))
    return one


def layer_norm(
    gamma: Iterable[float], beta: Iterable[float], target: float, *, table: bool = False
) -> RowProgram:
    """Make layer norm of rows of 16-bit numbers, as ``int8_t``.

    Args:
        gamma: weight, one per element of a row.
        beta: bias, likewise.
        target: of a result of 1.
        table: look the inverse of a deviation up, in 768 B of flash, instead of a root and a division.

    Raises:
        TightropeError: the lengths differ, the scale is not positive, or no format fits.
    """
    weights, biases = [float(value) for value in gamma], [float(value) for value in beta]
    if len(weights) != len(biases) or not weights or not target > 0:
        raise TightropeError(
            f"layer norm with {len(weights)} weights and {len(biases)} biases in units of {target}: as many "
            "of both, and a positive unit."
        )
    name = f"layer norm of {len(weights)} numbers"
    return finest(lambda bits: _layer_norm(weights, biases, target, bits, table=table), name, least=9)


def _layer_norm(
    gamma: Sequence[float], beta: Sequence[float], target: float, bits: int, *, table: bool = False
) -> RowProgram:
    length = len(gamma)
    one = RowProgram(f"layer_norm{'_table' * table}_{length}", length, "int16_t", "int8_t")
    x = one.given(-(2**15), 2**15 - 1)
    off = one.add(
        RowKind.SUB, one.add(RowKind.MUL, x, one.const(length)), one.add(RowKind.SUM, x)
    )  # times length
    fitted = one.add(RowKind.FITTED, off, one.add(RowKind.FIT, off, bits=bits), bits=bits)
    squares = one.add(RowKind.SUM, one.add(RowKind.MUL, fitted, fitted), unsigned=True)
    even = one.add(RowKind.EVEN, squares, bits=30)
    level = one.add(RowKind.LEVEL, squares, even, bits=30, unsigned=True)
    inverse = _inverse_looked_up(one, level) if table else _inverse(one, level)
    part = one.add(RowKind.MUL, fitted, inverse)
    part = one.add(RowKind.SHR, part, one.add(RowKind.SUB, one.const(16), even))
    part = one.add(RowKind.MIN, one.add(RowKind.MAX, part, one.const(-(2**15))), one.const(2**15))
    scaled = [value * math.sqrt(length) / target for value in gamma]
    most = max(max(map(abs, scaled), default=0.0), 1e-6)
    shift = min(15 + math.floor(math.log2(2**14 / most)), 30)
    shift = min(shift, math.floor(math.log2(2**29 / max(max(abs(b / target) for b in beta), 1e-6))))
    weights = one.parameter(tuple(round(value * 2.0 ** (shift - 15)) for value in scaled))
    biases = one.parameter(tuple(round(b / target * 2.0**shift) + (1 << (shift - 1)) for b in beta))
    found = one.add(RowKind.ADD, one.add(RowKind.MUL, part, weights), biases)
    found = one.add(RowKind.SHR, found, one.const(shift))
    one.add(RowKind.MIN, one.add(RowKind.MAX, found, one.const(-128)), one.const(127))
    return one


def _inverse(one: RowProgram, level: Number) -> Number:
    """2^31 over the root of a level of 30 bits."""
    root = one.add(RowKind.MAX, one.add(RowKind.ROOT, level, unsigned=True), one.const(2**14), unsigned=True)
    return one.add(RowKind.DIV, one.const(2**31, unsigned=True), root, unsigned=True)


def _inverse_looked_up(one: RowProgram, level: Number) -> Number:
    """The same from the first 9 bits of the level, within one part in 512."""
    first, middle = 2 ** (_INVERSE_BITS - 2), 3 * 2**15
    level = one.add(RowKind.MAX, level, one.const(2**28), unsigned=True)
    at = one.add(RowKind.SHR, level, one.const(30 - _INVERSE_BITS), unsigned=True)
    at = one.add(RowKind.SUB, at, one.const(first), unsigned=True)
    steps = range(first, 2**_INVERSE_BITS)
    table = tuple(round(2**31 / math.sqrt((k + 0.5) * 2 ** (30 - _INVERSE_BITS))) - middle for k in steps)
    return one.add(RowKind.ADD, one.lookup(table, at), one.const(middle))


def i_exp_softmax(scale: float, length: int, *, bits: int = 30) -> RowProgram:
    """Make I-BERT's softmax, as published with 2^bits for 1: a control that 32 bits do not hold.

    Args:
        scale: of a score of 1.
        length: of a row.
        bits: left shift of the exponential; 30 in the publication.
    """
    one = RowProgram(f"i_exp_{length}", length, "int8_t", "uint8_t")
    x = one.given(-128, 127)
    below = one.add(RowKind.BELOW, one.add(RowKind.LARGEST, x), x)
    unit = max(1, math.floor(math.log(2) / scale))
    whole = one.add(RowKind.MIN, one.add(RowKind.DIV, below, one.const(unit)), one.const(bits))
    rest = one.add(RowKind.SUB, one.add(RowKind.MUL, whole, one.const(unit)), below)
    rest = one.add(RowKind.ADD, rest, one.const(math.floor(1.353 / scale)))
    square = one.add(RowKind.MUL, rest, rest)
    square = one.add(RowKind.ADD, square, one.const(math.floor(0.344 / (0.3585 * scale**2))))
    power = one.add(RowKind.SHL, square, one.add(RowKind.SUB, one.const(bits), whole))
    total = one.add(
        RowKind.MAX, one.add(RowKind.SHR, one.add(RowKind.SUM, power), one.const(8)), one.const(1)
    )
    share = one.add(RowKind.DIV, power, total)
    one.add(RowKind.MIN, one.add(RowKind.MAX, share, one.const(0)), one.const(255))
    return one


def plain_layer_norm(gamma: Sequence[float], beta: Sequence[float], target: float) -> RowProgram:
    """Make layer norm without the shift of differences: a control that 32 bits do not hold."""
    return _layer_norm(gamma, beta, target, 18)
