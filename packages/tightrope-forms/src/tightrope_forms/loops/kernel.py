"""Run a compiled loop, and its gradient.

Idea        The forward gives the arrays that its backward reads, which hold its results too. Products that
            left the loop run for a block of steps, then the loop for that block. Sums over steps, such as
            gradients of weights, are one product each after the loop.
Guarantee   Kept for the backward: what these arrays hold, inputs and weights.
Gaps        One thread runs the loop. Gradients of gradients are refused.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tightrope.core import Bytes, CaptureError
from tightrope.core.cache import own_folder
from tightrope.native.interface import INTEGER, POINTER, load
from tightrope_forms.loops.emit import LoopLayout, source
from tightrope_forms.loops.find import Loop
from tightrope_forms.loops.lower import Spec, lower
from tightrope_forms.loops.ops import ElementView, Product
from tightrope_forms.loops.order import Ordered, ordered

Arrays = dict[str, Tensor]


class LoopKernels:
    """A loop that is lowered, ordered, proved and compiled.

    Args:
        loop: as found.
        specs: of what an iteration reads.
        wanted: of which of these gradients are needed.

    Raises:
        CaptureError: it has a part without a kernel, or no legal order.
        NativeError: it does not compile.
    """

    def __init__(self, loop: Loop, specs: Sequence[Spec], wanted: Sequence[bool]) -> None:
        if any(0 in shape for shape, _ in specs):
            raise CaptureError("it has tensors without elements")
        self.loop, self.steps, self.lowered = loop, loop.steps, lower(loop, specs, wanted)
        forward, backward, needed = self.lowered.forward, self.lowered.backward, self.lowered.needed
        self.itemsize = specs[0][1].itemsize
        lanes = 32 // self.itemsize
        for name, state in loop.states.items():
            if name not in needed and state.value not in loop.whole:
                forward.kept.discard(name)  # it shrinks
        self.forward = ordered(forward, 1, lanes)
        self.backward = ordered(backward, -1, lanes) if backward and backward.work else None
        behind = {*forward.kept, *needed, *(name for name in self.forward.cells if name[0] == "s")}
        self.result = [name for name in forward.arrays if name in forward.made & behind]
        ways = {"loop_forward": self.forward} | ({"loop_backward": self.backward} if self.backward else {})
        native = load(_written(source(ways, {4: "float", 8: "double"}[self.itemsize], lanes)))
        self.calls = {name: (getattr(native, name), LoopLayout(one, lanes)) for name, one in ways.items()}
        for call, _ in self.calls.values():
            call.argtypes, call.restype = [POINTER] * 2, None

    def size(self, name: str, one: Ordered) -> tuple[int, ...]:
        """Say the shape of an array over time, as it is kept."""
        all_steps = self.steps + name.startswith(("s", "ds"))
        return (one.cells.get(name, (0,))[0] or all_steps, *one.lowered.arrays[name])

    def removed(self) -> tuple[Bytes, Bytes]:
        """Say the bytes of all arrays over time that statements write, and of what is there of them."""
        full = there = 0
        for one in filter(None, (self.forward, self.backward)):
            for name in one.lowered.made:
                shape = (self.steps, *one.lowered.arrays[name])
                cells = one.cells.get(name, (0,) * len(shape))
                kept = [min(cell or extent, extent) for cell, extent in zip(cells, shape, strict=True)]
                full, there = full + prod(shape) * self.itemsize, there + prod(kept) * self.itemsize
        return full, there

    def call(self, name: str, arrays: Arrays, start: int, end: int) -> None:
        """Run some steps; the first call makes scratch memory and packs weights there."""
        run, layout = self.calls[name]
        if pack := "scratch" not in arrays:
            arrays["scratch"] = next(iter(arrays.values())).new_empty(max(layout.size, 1))
        pointers = [arrays[one].data_ptr() for one in ("scratch", *layout.given)]
        run((INTEGER * 3)(start, end, pack), (POINTER * len(pointers))(*pointers))

    def read(self, arrays: Arrays, view: ElementView) -> Tensor:
        """Read a view of all steps."""
        meta, array = view.meta, arrays[view.array]
        start = array.storage_offset() + int(meta.storage_offset())
        if not any(view.array in way.timed for way in (self.lowered.forward, self.lowered.backward) if way):
            return torch.as_strided(array, meta.shape, meta.stride(), start)
        each = prod(array.shape[1:])
        sizes, strides = (self.steps, *meta.shape), (each, *meta.stride())
        return torch.as_strided(array, sizes, strides, start + view.step * each)

    def run_forward(self, given: Sequence[Tensor]) -> Arrays:
        """Return inputs, and the arrays that something behind the loop reads."""
        one = self.forward
        arrays = {name: x.contiguous() for name, x in zip(self.loop.inputs, given, strict=True)}
        for name in {*self.result, *(product.target.array for product in one.lowered.before)}:
            made = given[0].new_empty(self.size(name, one))
            if name[0] == "s":
                made[0] = arrays[name]
            arrays[name] = made
        block = one.block if one.lowered.before else self.steps
        for start in range(0, self.steps, block):
            end = min(start + block, self.steps)
            for product in one.lowered.before:
                self._run_before(product, arrays, start, end)
            self.call("loop_forward", arrays, start, end)
        return arrays

    def _run_before(self, product: Product, arrays: Arrays, start: int, end: int) -> None:
        """Run a product for a block of steps."""
        array, left = arrays[product.target.array], self.read(arrays, product.left)[start:end].flatten(0, 1)
        shrunk, right = product.target.array in self.forward.cells, self.read(arrays, product.right)
        out = (array[: end - start] if shrunk else array[start:end]).flatten(0, 1)
        if product.bias is None:
            torch.mm(left, right, out=out)
        else:
            bias = self.read(arrays, product.bias).expand(end - start, -1, -1)
            torch.addmm(bias.flatten(0, 1), left, right, out=out)

    def run_backward(self, arrays: Arrays, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Return gradients of inputs, given the arrays that the backward reads, and gradients of results."""
        if (one := self.backward) is not None:
            self._put_gradients(one, arrays, grads)
            for name in one.lowered.arrays:
                if name not in arrays and (name in one.lowered.kept or one.cells.get(name, (0,))[0] == 2):
                    arrays[name] = grads[0].new_empty(self.size(name, one))
            self.call("loop_backward", arrays, 0, self.steps)
        found: list[Tensor | None] = []
        for name, (shape, _), how in zip(
            self.loop.inputs, self.lowered.specs, self.lowered.gradients, strict=True
        ):
            over = (self.steps, *shape) if name[0] == "x" else shape
            made = arrays[how][0].clone() if isinstance(how, str) else how and how(partial(self.read, arrays))
            found.append(None if made is None else made.reshape(over).contiguous())
        return found

    def _put_gradients(self, one: Ordered, arrays: Arrays, grads: Sequence[Tensor]) -> None:
        """Put gradients of results where the loop reads them: of all steps, or behind the last."""
        left, last = iter(grads), dict[Any, Tensor]()
        for number, ref in enumerate(self.loop.outputs):
            if ref in self.loop.whole:
                arrays[f"dy{number}"] = next(left).contiguous()
            elif ref in self.loop.used:
                last[ref] = next(left)
        for name, state in self.loop.states.items():
            if f"d{name}" in one.lowered.arrays:
                arrays[f"d{name}"] = made = grads[0].new_empty(self.size(f"d{name}", one))
                start = made[self.steps % len(made)]  # of all steps, it is the last
                start.copy_(last.pop(state.value)) if state.value in last else start.zero_()


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


class LoopFunction(torch.autograd.Function):
    """The loop with its gradient."""

    @staticmethod
    def forward(ctx: Any, kernels: LoopKernels, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the values that are needed outside: of all steps, or of the last."""
        arrays, found = kernels.run_forward(given), list[Tensor]()
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*(arrays[name] for name in kernels.lowered.needed))
            ctx.kernels = kernels
        for ref, view in zip(kernels.loop.outputs, kernels.lowered.outputs, strict=True):
            if ref in kernels.loop.whole:
                found.append(kernels.read(arrays, view))
            elif ref in kernels.loop.used:
                found.append(arrays[view.array][kernels.steps % len(arrays[view.array])].clone())
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of the inputs."""
        arrays = dict(zip(ctx.kernels.lowered.needed, ctx.saved_tensors, strict=True))
        every = zip(ctx.kernels.run_backward(arrays, grads), ctx.needs_input_grad[1:], strict=True)
        return None, *(one if needs else None for one, needs in every)


class LoopReport(NamedTuple):
    """What became of one loop."""

    steps: int
    calls: int  # of one iteration, as Python made them
    bytes_full: Bytes  # of all arrays over time
    bytes_there: Bytes  # of what is left of them
