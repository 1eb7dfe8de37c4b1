"""What the layers of a model take: measured here with the allocator that counts, or told from shapes alone.

Idea        `measure_layers` runs one micro-batch through every layer, twice, forward and backward, and reads
            the counters around each. `shape_layers` runs it on the meta device, where nothing is computed,
            and counts what autograd keeps, and floating-point operations for a machine's rates.
Guarantee   Measured bytes are those of torch's allocator. From shapes: kept tensors to the byte, each storage
            once; nothing of what a kernel takes for itself.
Gaps        From shapes, a backward takes twice its forward, without gradients of weights if all are frozen.
            Dropout's masks are those of the meta device. Ops without a count of operations take none; those
            that may be heavy are named to the caller.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tightrope.capture._eager import ops_shown
from tightrope.capture._torch import is_overload
from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes, round_up
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.values.ranks import StageCost

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_HEAVY: Final = (
    "mv", "addmv", "dot", "vdot", "addr", "ger", "_trilinear", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_addmm_activation", "_int_mm",
    "cholesky", "triangular_solve", "_pdist_forward", "_cdist_forward",
)  # fmt: skip
_HEAVY_STARTS: Final = ("_fft_", "linalg_", "_linalg_", "_sparse_", "_weight_int")
"""Ops of ATen that compute sums of products, or as much."""


def is_unpriced(op: Any) -> bool:
    """Tell whether an op that may be heavy has no count of operations: some of ATen, and all from elsewhere.

    >>> is_unpriced(torch.ops.aten.mv.default), is_unpriced(torch.ops.aten.mm.default)
    (True, False)
    """
    if not is_overload(op) or op.overloadpacket in flop_registry:
        return not is_overload(op)
    name = op._schema.name.partition("::")[2]
    return op.namespace not in ("aten", "prim", "prims") or name in _HEAVY or name.startswith(_HEAVY_STARTS)


@contextmanager
def left_alone(model: torch.nn.Module) -> Iterator[None]:
    """Put back what a forward writes to attributes of modules, and to lists, dicts and sets in them."""
    before = [
        (module, dict(vars(module)), [(one, copy.copy(one)) for one in vars(module).values() if _plain(one)])
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for module, attributes, holders in before:
            vars(module).clear()
            vars(module).update(attributes)
            for holder, content in holders:
                holder.clear()
                holder.extend(content) if isinstance(holder, list) else holder.update(content)


@contextmanager
def buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Put back what a forward writes to buffers, such as running averages."""
    before = [(one, one.detach().clone()) for one in model.buffers()]
    try:
        yield
    finally:
        for one, value in before:
            one.data.copy_(value)


def _plain(value: object) -> bool:
    return type(value) in (list, dict, set)


def trained_bytes(layer: torch.nn.Module) -> Bytes:
    """Sum the bytes of the parameters that get gradients."""
    return sum(round_up(p.numel() * p.element_size()) for p in layer.parameters() if p.requires_grad)


def measure_layers(
    layers: Sequence[torch.nn.Module],
    example: torch.Tensor,
    target: torch.Tensor,
    loss: Loss,
    *,
    states: float = 0.0,
) -> tuple[StageCost, ...]:
    """Measure every layer on one micro-batch.

    Args:
        layers: each takes what the one before returns, a tensor.
        example: one micro-batch for the first.
        target: for the loss.
        loss: of the last layer's output and the target.
        states: what the optimizer keeps, in multiples of the parameters' bytes: 2 for Adam.

    Returns:
        Costs per layer; one without anything to train before or in it has no backward.

    Raises:
        TightropeError: a layer fails, returns something else than a tensor, or stops the gradients of those
            before; or nothing is trained.
    """
    found: list[StageCost] = []
    x = example.detach()
    for position, layer in enumerate(layers):
        last = position + 1 == len(layers)
        before = [p.grad for p in layer.parameters()]
        for _ in range(2):  # the first run makes the gradients that the second one adds to
            given = x.detach().clone().requires_grad_(x.requires_grad)
            with buffers_kept(layer):
                cost, output = _measured(layer, given, position, target if last else None, loss)
        for parameter, grad in zip(layer.parameters(), before, strict=True):
            parameter.grad = grad
        found.append(_with_state(cost, layer, states, first=position == 0, last=last))
        x = output
    return tuple(found)


def _measured(
    layer: torch.nn.Module, given: torch.Tensor, position: int, target: torch.Tensor | None, loss: Loss
) -> tuple[StageCost, torch.Tensor]:
    hook = allocator()
    start = hook.stats().heap_live
    hook.reset_peaks()
    begin = time.thread_time_ns()
    output = _called(layer, given, position)
    result = output if target is None else loss(output, target)
    forward = time.thread_time_ns() - begin
    kept = hook.stats().heap_live - start
    spare = hook.stats().heap_peak - start - kept
    along = torch.ones_like(result)
    before = hook.stats().heap_live
    hook.reset_peaks()
    begin = time.thread_time_ns()
    if target is not None and not result.requires_grad:
        raise TightropeError("the loss needs no gradient: nothing is trained. Give parameters that need one.")
    backward = 0
    if result.requires_grad:
        result.backward(along)  # type: ignore[no-untyped-call]
        backward = max(2, time.thread_time_ns() - begin)
    came = _size(given) if given.requires_grad else 0
    spare = max(spare, hook.stats().heap_peak - before - came)
    own = _size(output) if target is None else 0
    saved = max(0, kept - own)
    cost = StageCost(
        max(1, forward),
        backward // 2,
        backward - backward // 2,
        _size(given),
        own,
        saved,
        saved,
        max(0, spare),
    )
    return cost, output.detach().requires_grad_(output.requires_grad)


def _size(tensor: torch.Tensor) -> Bytes:
    return round_up(tensor.untyped_storage().nbytes())


def _with_state(
    cost: StageCost, layer: torch.nn.Module, states: float, *, first: bool, last: bool
) -> StageCost:
    size = sum(round_up(p.numel() * p.element_size()) for p in layer.parameters())
    trained = trained_bytes(layer)
    return StageCost(
        forward=cost.forward,
        backward=cost.backward,
        weight=cost.weight if trained or not size else 0,
        input=0 if first else cost.input,
        output=0 if last else cost.output,
        saved=cost.saved,
        half=cost.half,
        work=cost.work,
        parameters=size,
        state=math.ceil(trained * (1 + states)),
    )


def matmul_rate(machine: Machine, dtype: torch.dtype) -> float:
    """Operations per second of products in a dtype, or else in any.

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


def shape_layers(
    layers: Sequence[torch.nn.Module],
    example: torch.Tensor,
    machine: Machine,
    *,
    states: float = 0.0,
    unpriced: set[str] | None = None,
) -> tuple[StageCost, ...]:
    """Tell what layers take from shapes alone; nothing is computed, and no memory is taken.

    Args:
        layers: each takes what the one before returns, a tensor.
        example: one micro-batch for the first, on any device.
        machine: whose ``flops.matmul``, or that of the dtype of a layer's output, and memory bandwidth give
            times.
        states: what the optimizer keeps, in multiples of the parameters' bytes.
        unpriced: gets the names of ops that may be heavy and are taken to take no time.

    Raises:
        TightropeError: the machine has no rates.
    """
    matmul_rate(machine, example.dtype)
    found: list[StageCost] = []
    names = set() if unpriced is None else unpriced

    def note(op: Any, given: Any, result: Any) -> None:
        del given, result
        if is_unpriced(op):
            names.add(str(op))

    alone = not any(p.requires_grad for layer in layers for p in layer.parameters())
    x = example.detach().to("meta")
    for position, layer in enumerate(layers):
        meta = layer if all(p.is_meta for p in layer.parameters()) else copy.deepcopy(layer).to("meta")
        given = x.detach().requires_grad_(x.requires_grad or (alone and position > 0 and _differentiable(x)))
        kept: dict[int, Bytes] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, Bytes] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage()._cdata] = _size(tensor)
            return tensor

        skip = [given, *meta.parameters(), *meta.buffers()]
        with (
            left_alone(meta),
            FlopCounterMode(display=False) as count,
            ops_shown(note),
            torch.autograd.graph.saved_tensors_hooks(keep, _same),
        ):
            output = _called(meta, given, position)
        for tensor in (*skip, output):
            kept.pop(tensor.untyped_storage()._cdata, None)
        saved = sum(kept.values())
        moved = (saved + _size(given) + _size(output)) / machine.tiers[0].read
        rate = matmul_rate(machine, output.dtype)
        ns = max(1, round(1e9 * (count.get_total_flops() / rate + moved)))
        size = trained_bytes(meta)
        back = ns if output.requires_grad or alone else 0
        cost = StageCost(ns, back, back, _size(given), _size(output), saved, saved, 2 * _size(output) + size)
        last = position + 1 == len(layers)
        found.append(_with_state(cost, meta, states, first=position == 0, last=last))
        x = output
    return tuple(found)


def _called(layer: torch.nn.Module, given: torch.Tensor, position: int) -> torch.Tensor:
    """Call a layer on what the one before returned.

    Raises:
        TightropeError: it fails, or returns no tensor.
    """
    name = f"layer {position} ({type(layer).__name__})"
    try:
        output = layer(given)
    except Exception as error:
        first = str(error).strip().partition("\n")[0][:300]
        raise TightropeError(
            f"{name} fails on a tensor of shape {tuple(given.shape)}: {type(error).__name__}: {first}. Each "
            f"layer must take the tensor that the one before returns{', on shapes alone' * given.is_meta}."
        ) from error
    if not isinstance(output, torch.Tensor):
        raise TightropeError(f"{name} returns {type(output).__name__}: a layer must return one tensor.")
    if given.requires_grad and not output.requires_grad:
        raise TightropeError(
            f"{name} returns a tensor without a gradient: the layers before it would not be trained. Freeze "
            "them with requires_grad_(False), or let the gradient through."
        )
    return output


def _differentiable(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def _same(tensor: Any) -> Any:
    return tensor
