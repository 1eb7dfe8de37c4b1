"""What the layers of a model take: measured here with the allocator that counts, or told from shapes alone.

Idea        `measure_layers` runs one micro-batch through every layer, twice, forward and backward, and reads
            the counters around each. `shape_layers` runs it on stand-ins without values, by the kernels that
            the machine would run, counts what autograd keeps, and times ops by the machine's rates.
Guarantee   Measured bytes are those of torch's allocator. From shapes: kept tensors to the byte, each storage
            once; nothing of what a kernel takes for itself.
Gaps        From shapes, a backward takes twice its forward, without gradients of weights if all are frozen.
            Kernels are those of `kernels`, times those of `prices`.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from tightrope.capture._eager import ops_shown, tensors_in
from tightrope.capture._torch import shapes_only, storage_key
from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes, round_up
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.pipeline.kernels import autocast_to, kernels_of, twin
from tightrope_ranks.pipeline.pool import RunSeen
from tightrope_ranks.pipeline.precision import AS_GIVEN, Precision
from tightrope_ranks.pipeline.prices import is_unpriced, matmul_rate, op_seconds
from tightrope_ranks.pipeline.together import InsideSeen, LayerInside
from tightrope_ranks.values.ranks import StageCost

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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


def trained_bytes(layer: torch.nn.Module, precision: Precision = AS_GIVEN) -> Bytes:
    """Sum the bytes of the gradients of a layer's parameters."""
    return sum(map(precision.gradient_bytes, layer.parameters()))


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
    output = _called(layer, {}, given, position)
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
    cost: StageCost,
    layer: torch.nn.Module,
    states: float,
    precision: Precision = AS_GIVEN,
    *,
    first: bool,
    last: bool,
) -> StageCost:
    size = sum(map(precision.parameter_bytes, layer.parameters()))
    return StageCost(
        forward=cost.forward,
        backward=cost.backward,
        weight=cost.weight if trained_bytes(layer) or not size else 0,
        input=0 if first else cost.input,
        output=0 if last else cost.output,
        saved=cost.saved,
        half=cost.half,
        work=cost.work,
        parameters=size,
        state=sum(precision.state_bytes(one, states) for one in layer.parameters()),
        summed=sum(map(precision.summed_bytes, layer.parameters())),
    )


def shape_layers(
    layers: Sequence[torch.nn.Module],
    example: torch.Tensor,
    machine: Machine,
    *,
    states: float = 0.0,
    unpriced: set[str] | None = None,
    precision: Precision = AS_GIVEN,
    inside: list[LayerInside] | None = None,
) -> tuple[StageCost, ...]:
    """Tell what layers take from shapes alone; nothing is computed, and no memory is taken.

    Args:
        layers: each takes what the one before returns, a tensor.
        example: one micro-batch for the first, on any device.
        machine: whose rates and memory bandwidth give times, and whose kind of device says which kernels run.
        states: what the optimizer keeps, in multiples of the parameters' bytes.
        unpriced: gets the names of ops that may be heavy and are taken to take no time.
        precision: types that layers compute in, and of what is held.
        inside: gets what each layer is made of.

    Raises:
        TightropeError: the machine has no rates.
    """
    matmul_rate(machine, example.dtype)
    found: list[StageCost] = []
    names = set() if unpriced is None else unpriced
    alone = not any(p.requires_grad for layer in layers for p in layer.parameters())
    known: dict[object, tuple[StageCost, torch.Tensor, LayerInside]] = {}
    with shapes_only() as fake, kernels_of(machine.device):
        x = twin(example, fake, precision.computed(example)).detach()
        for position, layer in enumerate(layers):
            given = x.detach().requires_grad_(
                x.requires_grad or (alone and position > 0 and _differentiable(x))
            )
            key = _likeness(layer, given)
            if key not in known:
                with left_alone(layer), autocast_to(precision.autocast):
                    seen = InsideSeen()
                    target = _Target(machine, precision, fake, names, alone, seen)
                    cost, x = _shaped(layer, given, position, target)
                sizes = ((one, precision.parameter_bytes(one)) for one in layer.parameters())
                known[key] = cost, x, seen.found(sizes)
            cost, x, within = known[key]
            if inside is not None:
                inside.append(within)
            last = position + 1 == len(layers)
            found.append(_with_state(cost, layer, states, precision, first=position == 0, last=last))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Target:
    """What layers are told for.

    Attributes:
        fake: takes the values out of tensors.
        alone: whether no layer trains, so that each is taken to have a backward.
        inside: sees the layer's ops.
    """

    machine: Machine
    precision: Precision
    fake: Callable[[Any], Any]
    unpriced: set[str]
    alone: bool
    inside: InsideSeen


def _shaped(
    layer: torch.nn.Module, given: torch.Tensor, position: int, target: _Target
) -> tuple[StageCost, torch.Tensor]:
    """Run one layer on stand-ins; return what it takes, and its output."""
    named = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    twins = {name: twin(one, target.fake, target.precision.computed(one)) for name, one in named.items()}
    kept: dict[int, Bytes] = {}
    made: set[int] = set()  # storages; others are the model's own
    seconds, largest, run = 0.0, _size(given), RunSeen((given, *twins.values()))

    def see(op: Any, args: Any, result: Any) -> None:
        nonlocal seconds, largest
        taken = op_seconds(target.machine, op, args, result)
        seconds += taken
        target.inside.see(op, args, taken)
        made.update(map(storage_key, tensors_in(result)))
        run.see(tensors_in(result))
        largest = max([largest, *map(_size, tensors_in(result))])
        if is_unpriced(op):
            target.unpriced.add(str(op))

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[storage_key(tensor)] = _size(tensor)
        target.inside.experts.keep(storage_key(tensor), tensor.shape[0] if tensor.dim() else 0, _size(tensor))
        return tensor

    with ops_shown(see), torch.autograd.graph.saved_tensors_hooks(keep, _same):
        output = _called(layer, twins, given, position)
    for tensor in (given, *twins.values(), output):
        kept.pop(storage_key(tensor), None)
    saved, ns = sum(size for key, size in kept.items() if key in made), max(1, round(1e9 * seconds))
    work = 2 * largest + trained_bytes(layer, target.precision)
    back = ns if output.requires_grad or target.alone else 0
    more = target.inside.backward_more_ns if back else 0
    target.inside.run = run.ran(output)
    return StageCost(ns, back + more, back, _size(given), _size(output), saved, saved, work), output


def _likeness(layer: torch.nn.Module, given: torch.Tensor) -> object:
    """Return a key that is equal for layers of which the same is known: same classes, attributes and shapes.

    Objects that an attribute holds are alike if they are the same. A layer with hooks is like no other.
    """

    def tensor(one: torch.Tensor | None) -> object:
        if one is None:
            return None
        shape = (one.dtype, *one.shape, one.stride(), one.requires_grad)
        return shape, one.untyped_storage().nbytes(), type(one)

    def attribute(one: object) -> object:
        if isinstance(one, tuple):
            return tuple(map(attribute, one))
        if isinstance(one, int | float | str | torch.dtype | None):
            return type(one), one
        empty = isinstance(one, dict | list | set) and not one
        return type(one) if empty else id(one)

    parts: list[object] = [tensor(given)]
    shared: dict[int, int] = {}  # within the layer: where the same parameter was first seen
    for name, module in layer.named_modules(remove_duplicate=False):
        parts += [name, type(module)]
        for word, value in vars(module).items():
            if word in ("_parameters", "_buffers"):
                for key, one in value.items():
                    parts += [key, tensor(one), shared.setdefault(id(one), len(shared))]
            elif word.endswith("hooks") and value:
                return object()
            elif word != "_modules":
                parts += [word, attribute(value)]
    return tuple(parts)


def _called(
    layer: torch.nn.Module, twins: dict[str, torch.Tensor], given: torch.Tensor, position: int
) -> torch.Tensor:
    """Call a layer on what the one before returned.

    Raises:
        TightropeError: it fails, or returns no tensor.
    """
    name = f"layer {position} ({type(layer).__name__})"
    try:
        output = functional_call(layer, twins, (given,))
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
