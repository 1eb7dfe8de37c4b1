"""Functions that one kernel has several of, each by its place here; how many dimensions kernels have."""

from typing import Final

DIMENSIONS: Final = 4
"""Most dimensions of a copy, of zeros around a tensor, and of two tensors that are spread."""
CURVES: Final = (
    "line", "clamp", "tanh", "sigmoid", "silu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "exp", "abs",
    "sqrt", "rsqrt", "reciprocal", "log", "softplus", "mish", "gelu_tanh", "erf",
)  # fmt: skip
"""Functions of one number, in the order of the kernel."""
BLENDS: Final = ("add", "sub", "mul", "div", "maximum", "minimum", "prelu")
"""Functions of two numbers, in the order of the kernel."""
REDUCTIONS: Final = ("sum", "mean", "amax", "amin")
