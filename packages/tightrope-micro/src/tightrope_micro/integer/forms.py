"""All forms of a row kernel, and the one that costs least on a core."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, Graph, Op, TightropeError, View
from tightrope_micro.integer.costs import CORES, KernelForm, RowOp, check_core, chosen
from tightrope_micro.integer.emit import stack_bytes
from tightrope_micro.integer.floats import FloatRows
from tightrope_micro.integer.kernels import gelu, gelu_polynomial, layer_norm, softmax
from tightrope_micro.integer.program import RowProgram
from tightrope_micro.translator import whole_numbers

RowKernel = RowProgram | FloatRows
_Made = Mapping[KernelForm, Callable[[], RowKernel]]
_USUAL: Final = {
    RowOp.SOFTMAX: KernelForm.POLYNOMIAL,
    RowOp.GELU: KernelForm.TABLE,
    RowOp.LAYER_NORM: KernelForm.POLYNOMIAL,
}


@dataclass(frozen=True)
class KernelForms:
    """Makes kernels in the form that costs least.

    Attributes:
        core: one of `costs.CORES`; empty = always polynomials for softmax and layer norm, tables for GELU.
        floats: whether float kernels may be taken; a net that has them is no longer one of integers alone.

    Example:
        >>> KernelForms("cortex-m4f").softmax(0.05, 64).name
        'softmax_table_64'
    """

    core: str = ""
    floats: bool = False

    def __post_init__(self) -> None:
        if self.core:
            check_core(self.core)
        elif self.floats:
            raise TightropeError(
                "float kernels are chosen by their cost on a core, and no core is given: give one of "
                f"{', '.join(CORES)}."
            )

    def softmax(self, scale: float, length: int) -> RowKernel:
        """Softmax of rows of 8-bit scores; see `kernels.softmax`."""
        return self._take(RowOp.SOFTMAX, length, softmax_forms(scale, length))

    def gelu(self, scale: float, target: float, length: int) -> RowKernel:
        """GELU of 8-bit numbers; see `kernels.gelu`."""
        return self._take(RowOp.GELU, length, gelu_forms(scale, target, length))

    def layer_norm(self, gamma: Sequence[float], beta: Sequence[float], target: float) -> RowKernel:
        """Layer norm of rows of 16-bit numbers; see `kernels.layer_norm`."""
        return self._take(RowOp.LAYER_NORM, len(gamma), norm_forms(gamma, beta, target))

    def _take(self, op: RowOp, length: int, made: _Made) -> RowKernel:
        if not self.core:
            return made[_USUAL[op]]()
        left = [form for form in made if self.floats or form is not KernelForm.FLOAT]
        why: TightropeError | None = None
        while left:
            form = chosen(self.core, op, length, left)
            try:
                return made[form]()
            except TightropeError as error:  # of this form nothing is precise enough in 32 bits
                why = error
                left.remove(form)
        assert why is not None
        raise why


def form_of(kernel: RowKernel) -> KernelForm:
    """Say which form a kernel is.

    >>> form_of(softmax(0.05, 64, table=True)).value
    'table'
    """
    if isinstance(kernel, FloatRows):
        return KernelForm.FLOAT
    return (
        KernelForm.TABLE if any(value.kind == "lookup" for value in kernel.values) else KernelForm.POLYNOMIAL
    )


def rows_on_stack(kernel: RowKernel) -> Bytes:
    """Bytes of the rows that a kernel keeps on the stack.

    >>> rows_on_stack(FloatRows("softmax_float_64", 64, RowOp.SOFTMAX, 0.05))
    256
    """
    if isinstance(kernel, RowProgram):
        return stack_bytes(kernel)
    return 4 * kernel.length if kernel.op is RowOp.SOFTMAX else 0


def windows_on_stack(graph: Graph) -> Bytes:
    """Bytes of the windows that convolutions of integers lay out, two at a time; see ``c/products.h``.

    With less, a layer lays out one window at a time, or none, which takes more instructions.
    """
    kinds = ("micro.q_conv2d", "micro.t_conv2d", "micro.t_depthwise_conv2d")
    return max((_windows(op) for op in graph.ops if op.target.startswith(kinds)), default=0)


def _windows(op: Op) -> Bytes:
    if op.target.startswith("micro.t_"):
        return _windows_with_channels_last(op)
    at = int("_add" in op.target)
    weight, strides, groups = (op.arguments[at + k] for k in (1, 4, 6))
    assert isinstance(weight, View)
    _, planes, height, width = weight.shape
    if planes > 1 or groups == 1:
        return 2 * planes * height * width
    row = (op.results[0].view.shape[3] - 1) * whole_numbers(strides)[1] + width
    return height * ((row + 3) // 4 * 4 + 8)


def _windows_with_channels_last(op: Op) -> Bytes:
    weight, strides, dilation, padding = (op.arguments[k] for k in (1, 5, 6, 7))
    assert isinstance(weight, View)
    _, height, width, *channels = weight.shape
    if channels:
        whole = height * width == 1 and not any(whole_numbers(padding))
        return 0 if whole else 2 * height * width * channels[0]
    row = (op.results[0].view.shape[2] - 1) * whole_numbers(strides)[1] + width
    made = op.results[0].view.shape[2]
    return 0 if max(whole_numbers(dilation)) > 1 else height * ((row + 3) // 4 * 4 + 8) + 4 * made


def softmax_forms(scale: float, length: int) -> _Made:
    """What makes each form of a softmax."""
    return {
        KernelForm.POLYNOMIAL: lambda: softmax(scale, length),
        KernelForm.TABLE: lambda: softmax(scale, length, table=True),
        KernelForm.FLOAT: lambda: FloatRows(f"softmax_float_{length}", length, RowOp.SOFTMAX, scale),
    }


def gelu_forms(scale: float, target: float, length: int) -> _Made:
    """What makes each form of a GELU."""
    return {
        KernelForm.POLYNOMIAL: lambda: gelu_polynomial(scale, target, length),
        KernelForm.TABLE: lambda: gelu(scale, target, length),
        KernelForm.FLOAT: lambda: FloatRows(f"gelu_float_{length}", length, RowOp.GELU, scale, target),
    }


def norm_forms(gamma: Sequence[float], beta: Sequence[float], target: float) -> _Made:
    """What makes each form of a layer norm."""
    length = len(gamma)
    return {
        KernelForm.POLYNOMIAL: lambda: layer_norm(gamma, beta, target),
        KernelForm.TABLE: lambda: layer_norm(gamma, beta, target, table=True),
        KernelForm.FLOAT: lambda: FloatRows(
            f"layer_norm_float_{length}", length, RowOp.LAYER_NORM, 1.0, target, tuple(gamma), tuple(beta)
        ),
    }
