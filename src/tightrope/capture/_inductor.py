"""Torch's compiler for loops under its private names; the third such module, beside `_torch`, `_eager`."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tightrope.capture._torch import real_tensors
from tightrope.core import TightropeError

PROBES: dict[str, str] = {
    "inner compile": "torch._inductor.compile_fx.compile_fx_inner",
    "decompositions for loops": "torch._inductor.decomposition.select_decomp_table",
    "compiler settings": "torch._inductor.config.patch",
    "virtual state": "torch._inductor.virtualized.V",
    "tracing context": "torch._guards.TracingContext",
    "compiler in use": "torch._inductor.cpp_builder.get_cpp_compiler",
}

_SETTINGS: dict[str, Any] = {"size_asserts": False, "keep_output_stride": True, "fx_graph_cache": True}


def compiler_missing() -> str:
    """Say why nothing can be compiled here, or nothing."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # torch raises its own classes, by version
        return f"torch finds no C++ compiler ({str(error).splitlines()[0][:200]})"
    return ""


def compile_loops(
    function: Callable[..., Any], layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Compile a function of tensors into loops, for inputs of exactly these layouts.

    Args:
        function: takes one list, gives a tuple; without random numbers and without changes in place.
        layouts: shape, strides and dtype of each.

    Returns:
        What takes a list, which it empties, and gives the outputs.

    Raises:
        TightropeError: the compiler refuses it; says why.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, in the modules that it imports
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.virtualized import V
        from torch._subclasses.fake_tensor import FakeTensorMode

    def flat(*values: torch.Tensor) -> Any:
        return function(list(values))

    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(real_tensors())
            stack.enter_context(torch.no_grad())
            mode = FakeTensorMode()
            with mode:
                fake = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in layouts]
                traced = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*fake)
            stack.enter_context(tracing(TracingContext(mode)))
            stack.enter_context(V.set_fake_mode(mode))
            stack.enter_context(config.patch(_SETTINGS))
            compiled: Any = compile_fx_inner(traced, fake)
    except Exception as error:  # whatever a compiler trips over: the caller runs op by op instead
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise TightropeError(
            f"torch's compiler refuses it ({type(error).__name__}: {reason[0][:200]})."
        ) from error
    found: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] = (
        getattr(compiled, "current_callable", None) or compiled
    )
    return found
