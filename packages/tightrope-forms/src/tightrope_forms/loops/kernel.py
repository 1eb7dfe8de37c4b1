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
from tightrope_forms.loops.lower import LoweredLoop, lower
from tightrope_forms.loops.ops import ElementView, Product
from tightrope_forms.loops.order import Ordered, ordered

_LIBRARY: Final = torch.library.Library("tightrope_forms", "FRAGMENT")  # type: ignore[no-untyped-call]
_KERNELS: Final[list["LoopKernels"]] = []


class LoopKernels:
    """A loop that is lowered, ordered, proved and compiled.

    Args:
        loop: as found.
        lowered: its statements.

    Attributes:
        forward: order and cells of the forward.
        backward: of the backward, or None where no gradient is wanted.
        number: of it, for ops.

    Raises:
        CaptureError: no legal order.
        NativeError: it does not compile.
    """

    def __init__(self, loop: Loop, lowered: LoweredLoop) -> None:
        self.loop, self.lowered, self.steps = loop, lowered, loop.steps
        self.dtype = lowered.specs[0][1]
        self.lanes = 32 // self.dtype.itemsize
        forward, num_stepped = lowered.forward, len(lowered.inputs.stepped)
        for at, state in enumerate(lowered.inputs.states):
            name = f"s{num_stepped + at}"
            if name not in lowered.needed and not whole(loop, lowered.inputs, state.value):
                forward.kept.discard(name)  # it shrinks
        self.forward = ordered(forward, 1, self.lanes)
        self.backward = (
            ordered(lowered.backward, -1, self.lanes) if lowered.backward and lowered.backward.work else None
        )
        self.result = [name for name in forward.arrays if self._made(name)]
        directions = {"loop_forward": (self.forward, 1)}
        if self.backward is not None:
            directions["loop_backward"] = (self.backward, -1)
        text = source(directions, {4: "float", 8: "double"}[self.dtype.itemsize], self.lanes)
        native = load(_written(text))
        self.calls = {}
        for name, (one, _) in directions.items():
            call = getattr(native, name)
            call.argtypes, call.restype = [POINTER] * 2, None
            self.calls[name] = (call, LoopLayout(one, self.lanes))
        self.number = len(_KERNELS)
        _KERNELS.append(self)

    def _made(self, name: str) -> bool:
        """Tell whether the forward makes an array that is looked at behind it."""
        forward, states = self.lowered.forward, self.forward.cells
        made = {one.target.array for one in (*forward.work, *forward.before)}
        return name in made and (
            name in forward.kept or name in self.lowered.needed or (name[0] == "s" and name in states)
        )

    def size(self, name: str, one: Ordered) -> tuple[int, ...]:
        """Say the shape of an array over time, as it is kept."""
        cells = one.cells.get(name, ())
        steps = cells[0] if cells and cells[0] else self.steps + (name[0] == "s" or name[:2] == "ds")
        return (steps, *one.lowered.arrays[name])

    def removed(self) -> tuple[Bytes, Bytes]:
        """Say the bytes of all arrays over time that statements write, and of what is there of them."""
        full = there = 0
        for one in (self.forward, self.backward):
            if one is not None:
                written = {work.target.array for work in (*one.lowered.work, *one.lowered.before)}
                for name in written:
                    shape, cells = one.lowered.arrays[name], one.cells.get(name, ())
                    kept = (
                        [cell or extent for cell, extent in zip(cells[1:], shape, strict=True)]
                        if cells
                        else shape
                    )
                    full += self.steps * prod(shape) * self.dtype.itemsize
                    steps = min(cells[0] or self.steps, self.steps) if cells else self.steps
                    there += steps * prod(kept) * self.dtype.itemsize
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
            size = prod(whole_array.shape[1:])
            return torch.as_strided(
                whole_array,
                (self.steps, *meta.shape),
                (size, *meta.stride()),
                start + view.step * size,
            )

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


def compiled(loop: Loop, inputs: LoopInputs, specs: Sequence[Spec], wanted: Sequence[bool]) -> LoopKernels:
    """Lower, order, prove and compile a loop.

    Raises:
        CaptureError: it has a part without a kernel.
        NativeError: it does not compile.
    """
    if any(0 in shape for shape, _ in specs):
        raise CaptureError("it has tensors without elements")
    return LoopKernels(loop, lower(loop, inputs, specs, wanted))


def _named(kernels: LoopKernels, given: Sequence[Tensor]) -> dict[str, Tensor]:
    inputs = kernels.lowered.inputs
    ends = len(inputs.stepped), len(inputs.stepped) + len(inputs.states)
    kinds = ["x" if n < ends[0] else "s" if n < ends[1] else "w" for n in range(len(given))]
    return {f"{kind}{n}": one.contiguous() for n, (kind, one) in enumerate(zip(kinds, given, strict=True))}


def _forward(number: int, given: Sequence[Tensor]) -> list[Tensor]:
    kernels = _KERNELS[number]
    one, arrays = kernels.forward, _named(kernels, given)
    like = given[0]
    for name in kernels.result + [
        p.target.array for p in one.lowered.before if p.target.array not in kernels.result
    ]:
        made = like.new_empty(kernels.size(name, one))
        if name[0] == "s":
            made[0] = arrays[name]
        arrays[name] = made
    scratch = like.new_empty(max(kernels.calls["loop_forward"][1].size, 1))
    block = one.block if one.lowered.before else kernels.steps
    read = kernels.read(arrays, one.lowered.timed)
    for start in range(0, kernels.steps, block):
        end = min(start + block, kernels.steps)
        for product in one.lowered.before:
            _before(product, read, arrays, one, (start, end))
        kernels.call("loop_forward", arrays, scratch, (start, end), pack=not start)
    return [arrays[name] for name in kernels.result]


def _before(
    product: Product,
    read: Callable[[ElementView], Tensor],
    arrays: dict[str, Tensor],
    one: Ordered,
    span: tuple[int, int],
) -> None:
    """Run a product for a block of steps."""
    start, end = span
    columns = product.target.meta.shape[1]
    name = product.target.array
    where = arrays[name][: end - start] if name in one.cells else arrays[name][start:end]
    left, out = read(product.left)[start:end].reshape(-1, product.left.meta.shape[1]), where.view(-1, columns)
    if product.bias is None:
        torch.mm(left, read(product.right), out=out)
    elif product.bias.meta.stride(0) == 0:
        torch.addmm(read(product.bias)[0], left, read(product.right), out=out)
    else:
        torch.mm(left, read(product.right), out=out)
        where += read(product.bias)


def _forward_sizes(number: int, given: Sequence[Tensor]) -> list[Tensor]:
    kernels = _KERNELS[number]
    return [given[0].new_empty(kernels.size(name, kernels.forward)) for name in kernels.result]


def _gradient_names(kernels: LoopKernels) -> list[int]:
    return [n for n, one in enumerate(kernels.lowered.gradients) if one is not None]


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
    for n in _gradient_names(kernels):
        how = lowered.gradients[n]
        result = arrays[how][0].clone() if isinstance(how, str) else cast(Any, how)(read)
        shape = lowered.specs[n][0]
        found.append(
            result.reshape((kernels.steps, *shape) if n < len(lowered.inputs.stepped) else shape).contiguous()
        )
    return found


def _given_gradients(
    kernels: LoopKernels, one: Ordered, arrays: dict[str, Tensor], grads: Sequence[Tensor]
) -> None:
    """Put gradients of results where the loop reads them: of all steps, or behind the last."""
    inputs, left = kernels.lowered.inputs, list(grads)
    last: dict[Any, Tensor] = {}
    for number, ref in enumerate(inputs.outputs):
        if ref in kernels.loop.used:
            grad = left.pop(0)
            if whole(kernels.loop, inputs, ref):
                arrays[f"dy{number}"] = grad.contiguous()
            else:
                last[ref] = grad
    for at, state in enumerate(inputs.states):
        name = f"ds{len(inputs.stepped) + at}"
        if name in one.lowered.arrays:
            shape = kernels.size(name, one)
            arrays[name] = made = (grads[0] if grads else next(iter(arrays.values()))).new_empty(shape)
            start = made[kernels.steps % shape[0]] if name in one.cells else made[kernels.steps]
            start.copy_(last.pop(state.value)) if state.value in last else start.zero_()


def _backward_sizes(number: int, given: Sequence[Tensor], made: Any, grads: Any) -> list[Tensor]:
    kernels = _KERNELS[number]
    num_stepped = len(kernels.lowered.inputs.stepped)
    return [
        given[n].new_empty(
            (kernels.steps, *kernels.lowered.specs[n][0]) if n < num_stepped else kernels.lowered.specs[n][0]
        )
        for n in _gradient_names(kernels)
    ]


def _define(schema: str, call: Any, fake: Any) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tightrope_forms::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tightrope_forms, name).default


_FORWARD: Final = _define("loop(int number, Tensor[] given) -> Tensor[]", _forward, _forward_sizes)
_BACKWARD: Final = _define(
    "loop_backward(int number, Tensor[] given, Tensor[] made, Tensor[] grads) -> Tensor[]",
    _backward,
    _backward_sizes,
)


class LoopFunction(torch.autograd.Function):
    """The loop with its gradient."""

    @staticmethod
    def forward(ctx: Any, kernels: LoopKernels, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the values that are needed outside: of all steps, or of the last."""
        made = _FORWARD(kernels.number, list(given))
        if any(ctx.needs_input_grad):
            needed = [
                one for name, one in zip(kernels.result, made, strict=True) if name in kernels.lowered.needed
            ]
            read = [
                one if name in kernels.lowered.needed else one.new_empty(0)
                for name, one in _named(kernels, given).items()
            ]
            ctx.save_for_backward(*read, *needed)
            ctx.kernels = kernels
        return results(kernels, made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of the inputs."""
        kernels, count = ctx.kernels, len(ctx.kernels.lowered.specs)
        given, made = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        found = dict(
            zip(_gradient_names(kernels), _BACKWARD(kernels.number, given, made, list(grads)), strict=True)
        )
        return None, *(found.get(n) if ctx.needs_input_grad[n + 1] else None for n in range(count))


def results(kernels: LoopKernels, made: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Read what is needed outside from the arrays of a forward."""
    arrays = dict(zip(kernels.result, made, strict=True))
    read, found = kernels.read(arrays, kernels.lowered.forward.timed), []
    for ref, view in zip(kernels.lowered.inputs.outputs, kernels.lowered.outputs, strict=True):
        if ref not in kernels.loop.used:
            continue
        if whole(kernels.loop, kernels.lowered.inputs, ref):
            found.append(read(view))
        else:
            array = arrays[view.array]
            found.append(
                array[
                    kernels.steps % len(array) if view.array in kernels.forward.cells else kernels.steps
                ].clone()
            )
    return tuple(found)


class LoopReport(NamedTuple):
    """What became of one loop.

    Attributes:
        steps: iterations.
        calls: of one iteration, as Python made them.
        bytes_full: of all arrays over time.
        bytes_there: of what is left of them.
    """

    steps: int
    calls: int
    bytes_full: Bytes
    bytes_there: Bytes
