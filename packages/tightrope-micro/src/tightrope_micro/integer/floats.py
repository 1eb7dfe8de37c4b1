"""Float kernels of rows of whole numbers: what the integer kernels are weighed against.

Idea        Numbers are converted, computed in float32, clamped, and converted back. Loops have no calls and
            no branches, so that a compiler can use vectors: powers of two by a polynomial and the bits of the
            exponent, GELU as a ramp less a bump that is a polynomial.
Source      the definitions; coefficients fitted at Chebyshev nodes
Guarantee   Results are within one unit of the exact function. Every number is clamped before it becomes
            whole.
Complexity  Linear.
Gaps        Bits differ with the compiler, which may add sums up in another order. What a layer norm adds to
            the variance is 1e-6 of a squared unit of its input, so that rows of equal numbers give the bias.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightrope_micro.integer.costs import RowOp

_TYPES: Final = {
    RowOp.SOFTMAX: ("int8_t", "uint8_t"),
    RowOp.GELU: ("int8_t", "int8_t"),
    RowOp.LAYER_NORM: ("int16_t", "int8_t"),
}
_LARGEST_POWER: Final = 126.0


class Bump(NamedTuple):
    """A polynomial of what GELU lacks to a ramp, a * (1 - cdf(a)) with a = |x|.

    Attributes:
        end: a from which on it is taken to stay as it is there.
        coefficients: of powers of 1 - a / end, the constant first.
    """

    end: float
    coefficients: tuple[float, ...]


@dataclass(frozen=True)
class FloatRows:
    """A kernel over rows in float32.

    Attributes:
        name: of the C function.
        length: elements per row.
        op: what it computes.
        scale: of an input of 1; of no meaning to a layer norm.
        target: of a result of 1; a softmax writes units of 1/255.
        gamma: weights of a layer norm.
        beta: its biases.
    """

    name: str
    length: int
    op: RowOp
    scale: float = 1.0
    target: float = 1.0
    gamma: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()

    @property
    def source(self) -> str:
        """Type of the elements that it reads."""
        return _TYPES[self.op][0]

    @property
    def into(self) -> str:
        """Type of the elements that it writes."""
        return _TYPES[self.op][1]


def bump(target: float) -> Bump:
    """Fit the bump of GELU by a polynomial that errs by less than a third of a unit, where one does.

    Args:
        target: the unit of the result.

    >>> len(bump(0.05).coefficients), len(bump(0.001).coefficients)
    (5, 9)
    """
    degree, end = (4, 3.15) if target > 6e-3 else (8, 3.95)  # they err by 1.7e-3 and 1.3e-4
    nodes = np.cos(np.pi * (np.arange(400) + 0.5) / 400) / 2 + 0.5
    wanted = [0.5 * a * math.erfc(a / math.sqrt(2)) for a in nodes * end]
    found: list[float] = np.polynomial.polynomial.polyfit(1 - nodes, wanted, degree).tolist()
    return Bump(end, tuple(found))


def exact(kernel: FloatRows, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the function in float64, in units of its result, neither rounded nor clamped."""
    x = rows.astype(np.float64)
    if kernel.op is RowOp.SOFTMAX:
        powers = np.exp((x - x.max(axis=1, keepdims=True)) * kernel.scale)
        shares: NDArray[np.float64] = 255 * powers / powers.sum(axis=1, keepdims=True)
        return shares
    if kernel.op is RowOp.GELU:
        x = x * kernel.scale
        below = np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in x.ravel()]).reshape(x.shape)
        return np.asarray(x * below / kernel.target, dtype=np.float64)
    off = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((off**2).mean(axis=1, keepdims=True) + 1e-6)
    found = (off / deviation * np.array(kernel.gamma) + np.array(kernel.beta)) / kernel.target
    return np.asarray(found, dtype=np.float64)


def nearest(kernel: FloatRows, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Compute the exact function, rounded and clamped: what the C is within one unit of."""
    limits = np.iinfo(kernel.into.removesuffix("_t"))
    found: NDArray[np.int64] = np.clip(np.floor(exact(kernel, rows) + 0.5), limits.min, limits.max).astype(
        np.int64
    )
    return found


def float_text(kernel: FloatRows) -> str:
    """Write ``void name(const source *x, target *y, uint32_t rows)``; `FLOAT_HEADER` comes first."""
    n = kernel.length
    head = f"void {kernel.name}(const {kernel.source} *x, {kernel.into} *y, uint32_t rows) {{"
    loop = f"  for (uint32_t row = 0; row < rows; ++row, x += {n}, y += {n}) {{"
    body = {RowOp.SOFTMAX: _softmax, RowOp.GELU: _gelu, RowOp.LAYER_NORM: _norm}[kernel.op](kernel)
    return "\n".join([*_arrays(kernel), head, *_scratch(kernel), loop, *body, "  }", "}", ""])


FLOAT_HEADER: Final = """static inline float tr_power(float t) {
  const int32_t whole = (int32_t)(t - 0.5f);
  const float f = t - (float)whole;
  union { float value; int32_t bits; } scale;
  float p = 9.6181291e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  scale.bits = (whole + 127) << 23;
  return p * scale.value;
}

static inline int8_t tr_rounded(float t) {
  t = t > 127.0f ? 127.0f : t;
  t = t < -128.0f ? -128.0f : t;
  return (int8_t)((int32_t)(t + 128.5f) - 128);
}
"""
"""What float kernels share: 2^t for t from -126 to 0, by a polynomial within 4e-5; a clamp and a rounding."""


def number(value: float) -> str:
    """A float32 as C.

    >>> number(2.0)
    '2.00000000e+00f'
    """
    return f"{value:.8e}f"


def _arrays(kernel: FloatRows) -> list[str]:
    if kernel.op is not RowOp.LAYER_NORM:
        return []
    rows = (("g", kernel.gamma), ("b", kernel.beta))
    return [
        f"static const float {kernel.name}_{letter}[{kernel.length}] = "
        f"{{{', '.join(number(one / kernel.target) for one in values)}}};"
        for letter, values in rows
    ]


def _scratch(kernel: FloatRows) -> list[str]:
    return [f"  float e[{kernel.length}];"] if kernel.op is RowOp.SOFTMAX else []


def _softmax(kernel: FloatRows) -> list[str]:
    n, rate = kernel.length, kernel.scale * math.log2(math.e)
    power = f"(float)(x[i] - most) * {number(rate)}"
    if 255 * rate > _LARGEST_POWER:
        least = number(-_LARGEST_POWER)
        power = f"{power} < {least} ? {least} : {power}"
    each = f"    for (uint32_t i = 0; i < {n}; ++i)"
    return [
        "    int32_t most = x[0];",
        f"{each} most = x[i] > most ? x[i] : most;",
        "    float sum = 0.0f;",
        f"{each} sum += e[i] = tr_power({power});",
        "    const float share = 255.0f / sum;",
        f"{each} y[i] = (uint8_t)(int32_t)(e[i] * share + 0.5f);",
    ]


def _gelu(kernel: FloatRows) -> list[str]:
    end, coefficients = bump(kernel.target)
    first, *rest = reversed(coefficients)
    return [
        f"    for (uint32_t i = 0; i < {kernel.length}; ++i) {{",
        f"      const float v = (float)x[i] * {number(kernel.scale)}, ramp = v > 0.0f ? v : 0.0f;",
        f"      const float near = 1.0f - (v > -v ? v : -v) * {number(1 / end)};",
        "      const float w = near > 0.0f ? near : 0.0f;",
        f"      float p = {number(first)};",
        *(f"      p = p * w + {number(one)};" for one in rest),
        f"      y[i] = tr_rounded((ramp - p) * {number(1 / kernel.target)});",
        "    }",
    ]


def _norm(kernel: FloatRows) -> list[str]:
    n, each = kernel.length, f"    for (uint32_t i = 0; i < {kernel.length}; ++i)"
    part = number(1 / n)
    return [
        "    int32_t total = 0;",
        f"{each} total += x[i];",
        f"    const float mean = (float)total * {part};",
        "    float square = 0.0f;",
        f"{each} square += ((float)x[i] - mean) * ((float)x[i] - mean);",
        f"    const float by = 1.0f / __builtin_sqrtf(square * {part} + 1.0e-6f);",
        f"{each} y[i] = tr_rounded(((float)x[i] - mean) * by * {kernel.name}_g[i] + {kernel.name}_b[i]);",
    ]


def float_section(kernels: Iterable[FloatRows]) -> str:
    """Write kernels and what they share, to be compiled for speed: sums may be added up in any order.

    Args:
        kernels: any number; with none, nothing is written.
    """
    texts = [float_text(kernel) for kernel in kernels]
    if not texts:
        return ""
    ours = "#if defined(__GNUC__) && !defined(__clang__)\n#pragma GCC {}\n#endif"
    start = "\n".join(ours.format(words) for words in ("push_options", 'optimize ("Ofast")'))
    return "\n".join([start, FLOAT_HEADER, *texts, ours.format("pop_options"), ""])
