"""What an op takes on a machine that is described by rates.

Idea        The roofline: an op takes the longer of its operations at the rate of its kind and dtype, and of
            the bytes that it reads and writes at the bandwidth of the memory.
Source      Williams et al. 2009; operations by torch's own counts.
Guarantee   Rates are those of the profile, and the shares of them that its ``efficiency`` says.
Complexity  Constant per op.
Gaps        Ops are priced one by one, as eager runs them: compiled ones that are fused move fewer bytes. Ops
            without a count of operations are taken to move bytes alone; those that may be heavy are named.
"""

from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from tightrope.capture._eager import tensors_in
from tightrope.capture._torch import is_overload
from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes

_HEAVY: Final = (
    "mv", "addmv", "dot", "vdot", "addr", "ger", "_trilinear", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_addmm_activation", "_int_mm",
    "cholesky", "triangular_solve", "_pdist_forward", "_cdist_forward",
)  # fmt: skip
_HEAVY_STARTS: Final = ("_fft_", "linalg_", "_linalg_", "_sparse_", "_weight_int")
"""Ops of ATen that compute sums of products, or as much."""
_PICKS: Final = frozenset(("aten::embedding", "aten::index", "aten::index_select", "aten::gather"))
"""Ops that read of their first argument what they return alone."""


def is_unpriced(op: Any) -> bool:
    """Tell whether an op that may be heavy has no count of operations: some of ATen, and all from elsewhere.

    >>> is_unpriced(torch.ops.aten.mv.default), is_unpriced(torch.ops.aten.mm.default)
    (True, False)
    """
    if not is_overload(op) or op.overloadpacket in flop_registry:
        return not is_overload(op)
    name = op._schema.name.partition("::")[2]
    return op.namespace not in ("aten", "prim", "prims") or name in _HEAVY or name.startswith(_HEAVY_STARTS)


def matmul_rate(machine: Machine, dtype: torch.dtype) -> float:
    """Operations per second of products in a dtype, or else in any, if all of the rate is reached.

    Raises:
        TightropeError: the machine has no such rate.
    """
    rate = machine.flops.get("matmul", 0.0)
    if not rate:
        raise TightropeError(
            f"machine {machine.name!r} has no flops.matmul: times of layers follow from it. Add [flops] with "
            "matmul = operations per second."
        )
    return machine.flops.get(f"matmul-{str(dtype).removeprefix('torch.')}", rate)


def op_seconds(machine: Machine, op: Any, given: Any, result: Any) -> float:
    r"""Time an op, given its (arguments, keywords) and its result; views take nothing.

    >>> machine = Machine.parse('name="m"\nflops={matmul=1e3}\ntiers=[{name="ram",bytes=1024,read=1e6}]')
    >>> x = torch.empty(5, 10)
    >>> op_seconds(machine, torch.ops.aten.mm.default, ((x, x.T), {}), torch.empty(5, 5))
    0.5
    """
    made = tensors_in(result)
    if not made or op.is_view:
        return 0.0
    share = machine.efficiency.get
    moving = _moved(op, tensors_in(given), made) / (machine.tiers[0].read * share("memory", 1.0))
    flops = _flops(op, given, result)
    kind = "attention" if is_attention(op) else "matmul"
    return max(moving, flops / (matmul_rate(machine, made[0].dtype) * share(kind, 1.0)))


def is_attention(op: Any) -> bool:
    """Tell whether an op is a fused kernel of attention."""
    return str(op._schema.name).startswith("aten::_scaled_dot_product_")


def _moved(op: Any, reads: list[torch.Tensor], made: list[torch.Tensor]) -> Bytes:
    written = sum(map(_extent, made))
    if op._schema.name in _PICKS:
        return 2 * written
    return written + sum(map(_extent, reads))


def _extent(tensor: torch.Tensor) -> Bytes:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _flops(op: Any, given: Any, result: Any) -> float:
    args, kwargs = given
    if is_attention(op):
        query, key = tensors_in(args)[:2]
        words = dict(zip((one.name for one in op._schema.arguments), args, strict=False)) | (kwargs or {})
        return (2.0 if words.get("is_causal") else 4.0) * query.numel() * key.shape[-2]
    if op._schema.name == "aten::_grouped_mm":
        rows, stacks = tensors_in(args)[:2]
        return 2.0 * rows.numel() * stacks.shape[-1]
    count = flop_registry.get(op.overloadpacket)
    return float(count(*args, **(kwargs or {}), out_val=result)) if count else 0.0
