"""Run a compiled loop: two ops of torch, whose sizes a plan knows, and their gradient.

Idea        The forward gives the arrays that its backward reads, which hold its results too. Products that
            left the loop run for a block of steps, then the loop for that block. Sums over steps, such as
            gradients of weights, are one product each after the loop.
Guarantee   Kept for the backward: what these arrays hold, inputs and weights.
Gaps        One thread runs the loop. Gradients of gradients are refused.
"""

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from tightrope.core import Bytes, CaptureError
from tightrope.core.cache import own_folder
from tightrope.native.interface import INTEGER, POINTER, load
from tightrope_forms.loops.body import LoopInputs, Spec, whole
from tightrope_forms.loops.emit import LoopLayout, source
from tightrope_forms.loops.find import Loop
from tightrope_forms.loops.lower import lower
from tightrope_forms.loops.ops import ElementView, Product
from tightrope_forms.loops.order import Ordered, ordered

_LIBRARY: Final = torch.library.Library("tightrope_forms", "FRAGMENT")  # type: ignore[no-untyped-call]
_KERNELS: Final[list["LoopKernels"]] = []


class LoopKernels:
    """A loop that is lowered, ordered, proved and compiled.

    Args:
        loop: as found.
        inputs: of an iteration.
        specs: of these.
        wanted: of which of them gradients are needed.

    Raises:
        CaptureError: it has a part without a kernel, or no legal order.
        NativeError: it does not compile.
    """

    def __init__(self, loop: Loop, inputs: LoopInputs, specs: Sequence[Spec], wanted: Sequence[bool]) -> None:
        if any(0 in shape for shape, _ in specs):
            raise CaptureError("it has tensors without elements")
        self.loop, self.inputs, self.steps = loop, inputs, loop.steps
        self.lowered = lowered = lower(loop, inputs, specs, wanted)
        self.num_stepped = len(inputs.stepped)
        self.itemsize = specs[0][1].itemsize
        lanes, forward = 32 // self.itemsize, lowered.forward
        for at, state in enumerate(inputs.states, self.num_stepped):
            if f"s{at}" not in lowered.needed and not whole(loop, inputs, state.value):
                forward.kept.discard(f"s{at}")  # it shrinks
        self.forward, self.backward = ordered(forward, 1, lanes), None
        directions = {"loop_forward": (self.forward, 1)}
        if lowered.backward and lowered.backward.work:
            self.backward = ordered(lowered.backward, -1, lanes)
            directions["loop_backward"] = (self.backward, -1)
        made = {one.target.array for one in (*forward.work, *forward.before)}
        states = {name for name in self.forward.cells if name[0] == "s"}
        behind = forward.kept.union(lowered.needed, states)
        self.result = [name for name in forward.arrays if name in made & behind]
        self.gradients = [n for n, one in enumerate(lowered.gradients) if one is not None]
        native = load(_written(source(directions, {4: "float", 8: "double"}[self.itemsize], lanes)))
        self.calls = {}
        for name, (one, _) in directions.items():
            call = getattr(native, name)
            call.argtypes, call.restype = [POINTER] * 2, None
            self.calls[name] = (call, LoopLayout(one, lanes))
        self.number = len(_KERNELS)
        _KERNELS.append(self)

    def size(self, name: str, one: Ordered) -> tuple[int, ...]:
        """Say the shape of an array over time, as it is kept."""
        all_steps = self.steps + name.startswith(("s", "ds"))
        return (one.cells.get(name, (0,))[0] or all_steps, *one.lowered.arrays[name])

    def shape(self, n: int) -> tuple[int, ...]:
        """Say the shape of an input over all steps."""
        return (*[self.steps] * (n < self.num_stepped), *self.lowered.specs[n][0])

    def removed(self) -> tuple[Bytes, Bytes]:
        """Say the bytes of all arrays over time that statements write, and of what is there of them."""
        full = there = 0
        for one in (self.forward, self.backward):
            if one is not None:
                for name in {work.target.array for work in (*one.lowered.work, *one.lowered.before)}:
                    shape = (self.steps, *one.lowered.arrays[name])
                    cells = one.cells.get(name, (0,) * len(shape))
                    kept = [cell or extent for cell, extent in zip(cells, shape, strict=True)]
                    full += prod(shape) * self.itemsize
                    there += min(kept[0], self.steps) * prod(kept[1:]) * self.itemsize
        return full, there

    def call(
        self, name: str, arrays: dict[str, Tensor], scratch: Tensor, span: tuple[int, int], *, pack: bool
    ) -> None:
        """Run some steps."""
        run, layout = self.calls[name]
        pointers = [scratch.data_ptr(), *(arrays[one].data_ptr() for one in layout.given)]
        run((INTEGER * 3)(*span, pack), (POINTER * len(pointers))(*pointers))

    def read(self, arrays: dict[str, Tensor], timed: set[str]) -> Callable[[ElementView], Tensor]:
        """Make what reads a view of all steps."""

        def read(view: ElementView) -> Tensor:
            meta, whole_array = view.meta, arrays[view.array]
            start = whole_array.storage_offset() + meta.storage_offset()
            if view.array not in timed:
                return torch.as_strided(whole_array, meta.shape, meta.stride(), start)
            each = prod(whole_array.shape[1:])
            sizes, strides = (self.steps, *meta.shape), (each, *meta.stride())
            return torch.as_strided(whole_array, sizes, strides, start + view.step * each)

        return read


def _written(text: str) -> Path:
    """Write code where a compiler reads it."""
    name, folder = f"loops-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp", own_folder()
    if folder is None:
        path = Path(mkdtemp()) / name
        path.write_text(text, "utf-8")
        return path
    inside = folder / "loops"
    if inside.find(name) is None:
        inside.write(name, text.encode())
    return inside.path / name


def _named(kernels: LoopKernels, given: Sequence[Tensor]) -> dict[str, Tensor]:
    inputs = kernels.inputs
    kinds = "x" * len(inputs.stepped) + "s" * len(inputs.states) + "w" * len(inputs.fixed)
    return {f"{kind}{n}": one.contiguous() for n, (kind, one) in enumerate(zip(kinds, given, strict=True))}


def _forward(number: int, given: Sequence[Tensor]) -> list[Tensor]:
    kernels = _KERNELS[number]
    one, arrays = kernels.forward, _named(kernels, given)
    for name in {*kernels.result, *(p.target.array for p in one.lowered.before)}:
        made = given[0].new_empty(kernels.size(name, one))
        if name[0] == "s":
            made[0] = arrays[name]
        arrays[name] = made
    scratch = given[0].new_empty(max(kernels.calls["loop_forward"][1].size, 1))
    block = one.block if one.lowered.before else kernels.steps
    read = kernels.read(arrays, one.lowered.timed)
    for start in range(0, kernels.steps, block):
        end = min(start + block, kernels.steps)
        for product in one.lowered.before:
            name = product.target.array
            _before(product, read, arrays[name], slice(start, end), shrunk=name in one.cells)
        kernels.call("loop_forward", arrays, scratch, (start, end), pack=not start)
    return [arrays[name] for name in kernels.result]


def _before(
    product: Product, read: Callable[[ElementView], Tensor], array: Tensor, span: slice, *, shrunk: bool
) -> None:
    """Run a product for a block of steps."""
    where = array[: span.stop - span.start] if shrunk else array[span]
    left, out, bias = read(product.left)[span].flatten(0, 1), where.flatten(0, 1), product.bias
    if bias is not None and bias.meta.stride(0) == 0:
        torch.addmm(read(bias)[0], left, read(product.right), out=out)
        return
    torch.mm(left, read(product.right), out=out)
    if bias is not None:
        where += read(bias)


def _backward(
    number: int, given: Sequence[Tensor], made: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    kernels = _KERNELS[number]
    lowered, one = kernels.lowered, kernels.backward
    arrays = _named(kernels, given)
    arrays |= dict(zip((name for name in kernels.result if name in lowered.needed), made, strict=True))
    timed = set(lowered.forward.timed)
    if one is not None:
        timed |= one.lowered.timed
        _given_gradients(kernels, one, arrays, grads)
        for name in one.lowered.arrays:
            if name not in arrays and (name in one.lowered.kept or one.cells.get(name, (0,))[0] == 2):
                arrays[name] = given[0].new_empty(kernels.size(name, one))
        scratch = given[0].new_empty(max(kernels.calls["loop_backward"][1].size, 1))
        kernels.call("loop_backward", arrays, scratch, (0, kernels.steps), pack=True)
    read, found = kernels.read(arrays, timed), []
    for n in kernels.gradients:
        how = lowered.gradients[n]
        result = arrays[how][0].clone() if isinstance(how, str) else cast(Any, how)(read)
        found.append(result.reshape(kernels.shape(n)).contiguous())
    return found


def _given_gradients(
    kernels: LoopKernels, one: Ordered, arrays: dict[str, Tensor], grads: Sequence[Tensor]
) -> None:
    """Put gradients of results where the loop reads them: of all steps, or behind the last."""
    inputs, left, last = kernels.inputs, iter(grads), dict[Any, Tensor]()
    for number, ref in enumerate(inputs.outputs):
        if whole(kernels.loop, inputs, ref):
            arrays[f"dy{number}"] = next(left).contiguous()
        elif ref in kernels.loop.used:
            last[ref] = next(left)
    for at, state in enumerate(inputs.states, kernels.num_stepped):
        if (name := f"ds{at}") in one.lowered.arrays:
            arrays[name] = made = next(iter(arrays.values())).new_empty(kernels.size(name, one))
            start = made[kernels.steps % len(made)]  # of all steps, it is the last
            start.copy_(last.pop(state.value)) if state.value in last else start.zero_()


def _define(name: str, takes: str, call: Any, sizes: Callable[[LoopKernels], list[tuple[int, ...]]]) -> Any:
    def fake(number: int, given: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        return [given[0].new_empty(size) for size in sizes(_KERNELS[number])]

    _LIBRARY.define(f"{name}(int number, {takes}) -> Tensor[]")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tightrope_forms::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tightrope_forms, name).default


_FORWARD: Final = _define(
    "loop", "Tensor[] given", _forward, lambda it: [it.size(name, it.forward) for name in it.result]
)
_BACKWARD: Final = _define(
    "loop_backward", "Tensor[] given, Tensor[] made, Tensor[] grads", _backward,
    lambda it: [it.shape(n) for n in it.gradients],
)  # fmt: skip


class LoopFunction(torch.autograd.Function):
    """The loop with its gradient."""

    @staticmethod
    def forward(ctx: Any, kernels: LoopKernels, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the values that are needed outside: of all steps, or of the last."""
        made = _FORWARD(kernels.number, list(given))
        if any(ctx.needs_input_grad):
            needed, named = kernels.lowered.needed, _named(kernels, given).items()
            saved = [one if name in needed else one.new_empty(0) for name, one in named]
            pairs = zip(kernels.result, made, strict=True)
            ctx.save_for_backward(*saved, *(one for name, one in pairs if name in needed))
            ctx.kernels = kernels
        arrays = dict(zip(kernels.result, made, strict=True))
        read, found = kernels.read(arrays, kernels.lowered.forward.timed), list[Tensor]()
        for ref, view in zip(kernels.inputs.outputs, kernels.lowered.outputs, strict=True):
            if whole(kernels.loop, kernels.inputs, ref):
                found.append(read(view))
            elif ref in kernels.loop.used:
                found.append(arrays[view.array][kernels.steps % len(arrays[view.array])].clone())
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of the inputs."""
        kernels, count = ctx.kernels, len(ctx.kernels.lowered.specs)
        given, made = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        every = _BACKWARD(kernels.number, given, made, list(grads))
        found = dict(zip(kernels.gradients, every, strict=True))
        return None, *(found.get(n) if ctx.needs_input_grad[n + 1] else None for n in range(count))


class LoopReport(NamedTuple):
    """What became of one loop."""

    steps: int
    calls: int  # of one iteration, as Python made them
    bytes_full: Bytes  # of all arrays over time
    bytes_there: Bytes  # of what is left of them
