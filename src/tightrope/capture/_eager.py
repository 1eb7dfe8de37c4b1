"""Let what is captured call the kernels that eager calls; private names of torch for that.

While it traces, torch takes other ways in some places: it computes some ops by decompositions written in
Python, leaves out fast paths of modules, and indexes tensors that are unpacked. The values differ in
their last bits, or the bytes differ. All of this is put back when the trace is over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Final
from unittest.mock import patch

import torch

from tightrope.core import CaptureError

_DECOMPOSED: Final = frozenset(
    f"aten.{name}" for name in ("native_batch_norm.default", "cudnn_batch_norm.default", "one_hot.default")
)
"""Batch norm is recorded in a form that says what it changes; eager checks one-hot against its values."""

_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_NARROW: Final = (torch.bfloat16, torch.float16)
"""Types for which oneDNN has a kernel of an LSTM layer on some processors; it has one for float32 on all."""
_MOST_CELLS: Final = 64
"""Of one call of plain recurrent layers: every one is some ten ops, and ten more in the backward."""


@contextmanager
def traced_as_eager() -> Iterator[None]:
    """Let Dynamo call what eager calls.

    Attention in evaluation mode has a kernel of its own, which torch leaves out where it is told of a
    trace. A tensor that is unpacked is unbound, not indexed once per row: the gradient of an index is as
    large as the tensor.
    """
    import torch._dynamo.variables.torch as variables
    from torch._dynamo.variables.tensor import TensorVariable
    from torch.nn.modules.activation import _is_make_fx_tracing

    states, unpack = variables.tracing_state_functions, TensorVariable.unpack_var_sequence

    def rows(tensor: Any, tx: Any, idxes: Any = None) -> Any:
        if idxes is not None or not tensor.valid_size():
            return unpack(tensor, tx, idxes)
        return tensor.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    with (
        patch.object(variables, "tracing_state_functions", lambda: states() | {_is_make_fx_tracing: False}),
        patch.object(TensorVariable, "unpack_var_sequence", rows),
    ):
        yield


@contextmanager
def eager_kernels() -> Iterator[None]:
    """Let AOTAutograd record kernels and no decompositions: torch enters those for traces, under two keys."""
    import torch._decomp.decompositions
    import torch._refs.nn.functional
    from torch._C import DispatchKey
    from torch._dispatch.python import all_py_loaded_overloads

    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    taken = [
        (op, {key: op.py_kernels[key] for key in keys if key in op.py_kernels})
        for op in all_py_loaded_overloads()
        if op.namespace == "aten" and str(op) not in _DECOMPOSED
    ]
    taken = [(op, kernels) for op, kernels in taken if kernels]
    try:
        for op, kernels in taken:
            for key in kernels:
                del op.py_kernels[key]
            op._dispatch_cache.clear()
        dropout = torch.ops.aten.dropout.default
        dropout.py_kernels.update(dict.fromkeys(keys, _dropout))
        for name in _RECURRENT:
            op = getattr(torch.ops.aten, name).input
            op.py_kernels.update(dict.fromkeys(keys, partial(_recurrent, op)))
        yield
    finally:
        for op, kernels in taken:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _dropout(given: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Record a dropout as one op that returns its mask; see `tightrope.capture.variants`."""
    aten = torch.ops.aten
    if train and 0 < p < 1 and given.numel() and given.is_floating_point():
        found: torch.Tensor = aten.native_dropout.default(given, p, train)[0]
        return found
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return aten.dropout.default._op_dk(composite, given, p, train)  # type: ignore[no-any-return]


def _recurrent(op: Any, given: torch.Tensor, *args: Any) -> Any:
    """Record what eager calls for recurrent layers: one op per LSTM layer, or every step of a plain one.

    Raises:
        CaptureError: they are too many steps, or eager computes in place on parts of tensors: a trace does
            so beside them, in another layout, in which sums round otherwise.
    """
    state, _, _, num_layers, _, _, both_ways, batch_first = args
    plain = op in (torch.ops.aten.rnn_tanh.input, torch.ops.aten.rnn_relu.input)
    fused = op is torch.ops.aten.lstm.input and _has_kernel(given) and state[0].shape == state[1].shape
    cells = given.shape[int(batch_first)] * num_layers * (1 + both_ways)
    if not plain and not fused:
        raise CaptureError(f"{op} for {given.dtype} computes in place on parts of its gates")
    if plain and cells > _MOST_CELLS:
        raise CaptureError(
            f"{op} computes {cells} cells one by one, one per step, layer and direction: more than "
            f"{_MOST_CELLS} are not planned."
        )
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, given, *args)


def _has_kernel(given: torch.Tensor) -> bool:
    """Tell whether oneDNN computes a layer of an LSTM here, in this type."""
    if given.device.type != "cpu" or not torch._C._has_mkldnn or not torch._C._get_mkldnn_enabled():
        return False
    narrow = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return given.dtype == torch.float32 or (narrow and given.dtype in _NARROW)


@contextmanager
def ops_shown(see: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Show every op that runs inside, below autograd: the op, what it was given, and its result.

    Some derivatives are computed by other ops while this looks on: compare no bits of what runs inside.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Showing(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = func(*args, **(kwargs or {}))
            see(func, (args, kwargs), result)
            return result

    with Showing():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def kernels_called() -> Iterator[set[str]]:
    """Note the names of the ops that run inside; see `ops_shown`."""
    found: set[str] = set()
    with ops_shown(lambda op, *_: found.add(str(op))):
        yield found


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """List the tensors in nested lists, tuples, dicts and what torch knows to be like them."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def with_tensors(tree: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Replace the tensors in nested lists, tuples, dicts and what torch knows to be like them."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, make, tree)


def without_shared_hooks(model: torch.nn.Module) -> None:
    """Take away from a copied module the hooks that are functions: a copy shares them with its original."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, FunctionType | partial)]:
                del hooks[key]


@contextmanager
def uncompiled(model: torch.nn.Module) -> Iterator[None]:
    """Let a module and those inside it run as they are."""
    compiled = [(module, module._compiled_call_impl) for module in model.modules()]
    compiled = [(module, call) for module, call in compiled if call is not None]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call
