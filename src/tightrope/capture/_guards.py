"""Private names of torch for what neither its traces nor its guards see."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.fx

_MATRIX_DIMS: Final = 2


def overlapping(tensors: Sequence[torch.Tensor], symbolic: bool = False) -> set[int]:
    """Positions of tensors of one memory that overlap another one: those that AOTAutograd finds, and more.

    AOTAutograd misses matrices whose rows lie equally far apart, where one begins whole rows below the other.
    """
    from torch._C._dynamo.guards import compute_overlapping_tensors

    found: set[int] = compute_overlapping_tensors(list(tensors), symbolic=symbolic)
    matrices = [(at, one) for at, one in enumerate(tensors) if one.dim() == _MATRIX_DIMS]
    for number, (at, one) in enumerate(matrices):
        for other_at, other in matrices[:number]:
            if not {at, other_at} <= found and _rows_meet(one, other):
                found |= {at, other_at}
    return found


def lies_apart(value: Any, written: Sequence[torch.Tensor]) -> bool:
    """Tell whether a tensor shares its memory with tensors that were written, and overlaps none of them."""
    if not isinstance(value, torch.Tensor):
        return False
    memory = value.untyped_storage().data_ptr()
    same = [one for one in written if one.untyped_storage().data_ptr() == memory]
    return bool(same) and not any(overlapping([value, one]) for one in same)


def _rows_meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether rows of two matrices of one memory meet: rows lie equally far apart in both."""
    first, second = sorted((one, other), key=lambda tensor: tensor.storage_offset())
    apart = first.stride(0)
    if apart != second.stride(0) or not first.stride(1) == second.stride(1) == 1:
        return False
    below = second.storage_offset() - first.storage_offset()
    if not (apart and first.numel() and second.numel()):
        return False
    return bool(below // apart < first.size(0) and below % apart < first.size(1))


@contextmanager
def overlaps_are_seen() -> Iterator[None]:
    """Let AOTAutograd know of all inputs of a trace that overlap."""
    from torch._functorch._aot_autograd import input_output_analysis

    with patch.object(input_output_analysis, "compute_overlapping_tensors", overlapping):
        yield


@contextmanager
def functions_keep_their_derivatives() -> Iterator[None]:
    """Refuse to trace an `autograd.Function` inside of a transform of `torch.func`.

    Dynamo traces the ops of its forward, which the transform then differentiates: its own backward is lost.
    """
    from torch._C._functorch import peek_interpreter_stack
    from torch._dynamo import exc
    from torch._dynamo.variables.misc import AutogradFunctionVariable

    apply = AutogradFunctionVariable.call_apply

    def traced(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if peek_interpreter_stack() is not None:
            raise exc.Unsupported(
                f"{variable.fn_cls.__name__} is a torch.autograd.Function inside of a transform of "
                "torch.func (grad, vmap, jvp ...); a trace would lose its own derivative"
            )
        return apply(variable, tx, args, kwargs)

    with patch.object(AutogradFunctionVariable, "call_apply", traced):
        yield


def lost_derivative(module: torch.fx.GraphModule, codes: Collection[CodeType]) -> str:
    """Name an `autograd.Function` that a trace of others followed inside of a transform of `torch.func`.

    Args:
        module: as traced.
        codes: of the functions that the trace looked into.
    """
    from torch._C._functorch import peek_interpreter_stack

    called = (str(getattr(node.target, "__name__", node.target)) for node in module.graph.nodes)
    inside = any(name.endswith("_increment_nesting") or name == "_enter_dual_level" for name in called)
    if not inside and peek_interpreter_stack() is None:
        return ""
    waiting, known = [torch.autograd.Function], set(codes)
    while waiting:
        one = waiting.pop()
        if getattr(one.forward, "__code__", None) in known:
            return one.__name__
        waiting += one.__subclasses__()
    return ""


_TRANSFORMED: Final = tuple(
    ask
    for name in ("is_functorch_wrapped_tensor", "is_legacy_batchedtensor")
    if (ask := getattr(torch._C._functorch, name, None)) is not None
)


def is_transformed(value: Any) -> bool:
    """Tell whether a value is a tensor of a transform of `torch.func`, which stands for others.

    Where torch has no such names none is told; `tightrope doctor` says that they are gone.
    """
    return isinstance(value, torch.Tensor) and any(ask(value) for ask in _TRANSFORMED)


def run_as_it_is(reason: str) -> BaseException:
    """Make what a backend raises so that Dynamo runs the code that it traced as it is."""
    from torch._dynamo.exc import SkipFrame

    return SkipFrame(reason)


_DEFAULT = [torch.float32]
"""The default dtype of the last trace."""


def forget_other_dtypes() -> None:
    """Let shape functions run again where the default dtype changed: torch remembers what they gave."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if torch.get_default_dtype() is not _DEFAULT[0]:
        _DEFAULT[0] = torch.get_default_dtype()
        FakeTensorMode.cache_clear()
