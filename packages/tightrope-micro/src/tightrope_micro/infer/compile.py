"""Compile inference: plan, place, judge, and write the C library with its constants."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, PageOut, View
from tightrope.core.codec import dump_graph
from tightrope.core.executable import ARENA
from tightrope.core.plan import dump_plan
from tightrope.core.values import ITEM_BYTES
from tightrope_micro.arduino import arduino
from tightrope_micro.compile import MANIFEST, Manifest, NetPromise, NumberFormat, sample_of, write_folder
from tightrope_micro.emit import CSource, NetText, emit
from tightrope_micro.forward.capture import FloatNet
from tightrope_micro.infer.bands import BandedGraph, banded_forms
from tightrope_micro.infer.text import net_texts
from tightrope_micro.integer.forms import rows_on_stack, windows_on_stack
from tightrope_micro.integer.net import Format, IntegerNet
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.resident import floor_bytes
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES, MicroPlan, num_macs, plan_step

Net = FloatNet | IntegerNet
_FRAMES: Final[Bytes] = 700
"""Bytes of stack for the bench and the frames of kernels, at most 500 on the emulated board."""
_FRAMES_OF_CONVOLUTIONS: Final[Bytes] = 800
"""The same with convolutions of integers, at most 740."""


@dataclass(frozen=True)
class CompiledNet:
    """Inference as C, in memory.

    Attributes:
        net: as captured, or quantized.
        planned: its plan, judged.
        source: the texts.
        manifest: what they promise.
        machine: that it was planned for.
        fast_stack: bytes of stack with which all convolutions of integers take their fast form; 0 = none.
    """

    net: Net
    planned: MicroPlan
    source: CSource
    manifest: Manifest
    machine: Machine
    fast_stack: Bytes = 0

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything to a folder: all of it, or nothing.

        Raises:
            TightropeError: the folder holds something else, or cannot be written.
        """
        image = bytes(self.source.storage)
        code = {**self.source.texts, **arduino(self.source.texts, step=False)}
        texts: dict[str, bytes] = {name: text.encode() for name, text in code.items()}
        texts["storage.bin"] = image
        texts["sample.bin"] = sample_of(self.manifest, image)
        texts["step.plan.json"] = dump_plan(self.planned.plan)
        texts["step.graph.json"] = dump_graph(self.planned.tiled.graph)
        texts[MANIFEST] = msgspec.json.format(msgspec.json.encode(self.manifest), indent=1)
        return write_folder(Path(folder), texts)

    def sample(self, *inputs: torch.Tensor) -> bytes:
        """The bytes of one call's inputs, in the order in which the device reads them."""
        assert self.manifest.net is not None
        order = [int(o.name.removeprefix("input_")) for o in self.manifest.held if o.kind == "input"]
        return b"".join(as_numbers(inputs[k], self.manifest.net.inputs[k]).tobytes() for k in order)

    def scores(self, returned: bytes) -> NDArray[np.float32]:
        """What the device returned, as real numbers."""
        assert self.manifest.net is not None
        form = self.manifest.net.output
        whole = np.frombuffer(returned, form.dtype)
        real = (whole.astype(np.int32) - form.zero if form.zero else whole) * np.float32(form.scale)
        found: NDArray[np.float32] = real.astype(np.float32)
        return found


def as_numbers(value: torch.Tensor, form: NumberFormat) -> NDArray[Any]:
    """A tensor as the device holds it: whole numbers of its format, or floats."""
    array = value.detach().cpu().float().numpy()
    if form.dtype == "float32":
        return array
    limits = np.iinfo(np.dtype(form.dtype))
    whole: NDArray[Any] = np.clip(np.rint(array / form.scale) + form.zero, limits.min, limits.max)
    return whole.astype(form.dtype)


def compile_net(
    net: Net,
    machine: Machine,
    *,
    ram: Bytes,
    stack: Bytes = STACK_RESERVE,
    bands: bool = True,
    pages: bool = True,
) -> CompiledNet:
    """Plan inference within ``ram`` bytes and write it as C; weights are read where they lie, in flash.

    Args:
        net: captured, or quantized.
        machine: with a slower tier, from which inputs come, and to which activations go where RAM is short.
        ram: bytes of all RAM: arena, counters and stack.
        stack: bytes of it for the stack.
        bands: whether the first layers may be computed in bands of rows where no plan of whole maps fits.
        pages: whether activations may go to the slower tier; if not, bands are tried where they would.

    Raises:
        InfeasibleError: an op needs more RAM, named with its bytes and the next limit to try; or calls need
            more of the stack, or the constants more flash than the machine has.
    """
    size = len(net.constants.data)
    if machine.flash and size > machine.flash:
        raise InfeasibleError(
            f"the constants of the net take {size} B of flash; the limit is {machine.flash} B with the code. "
            "Quantize the net, take a smaller model, or give more by --flash or the machine's profile.",
            asked=machine.flash, lower_bound=size,
        )  # fmt: skip
    programs = net.programs if isinstance(net, IntegerNet) else ()
    kept = max((rows_on_stack(one) for one in programs), default=0)
    windows = windows_on_stack(net.graph)
    frames = _FRAMES_OF_CONVOLUTIONS if windows else _FRAMES
    if kept + frames > stack:
        raise InfeasibleError(
            f"the stack has {stack} B; rows of a softmax or layer norm take {kept} B, and calls "
            f"{frames} B. Ask for a stack of {kept + frames} B.",
            asked=stack, smallest_found=kept + frames, lower_bound=kept + frames,
        )  # fmt: skip
    try:
        planned = _planned(net.graph, machine, ram, stack, pages=pages)
    except InfeasibleError as error:
        found = _in_bands(net, machine, ram, stack, pages=pages) if bands else None
        if found is None and stack >= ram:
            raise InfeasibleError(
                f"the stack of {stack} B leaves nothing of {ram} B of RAM. Give a stack of {kept + frames} B "
                f"or more, and less than the RAM. {error}",
                asked=ram, smallest_found=error.smallest_found, lower_bound=error.lower_bound, op=error.op,
            ) from error  # fmt: skip
        if found is None:
            raise
        planned = found
    inputs, output = _formats(net)
    (returned,) = net.graph.parts[0].outputs
    assert isinstance(returned, View)
    num_bytes = prod(returned.shape) * ITEM_BYTES[returned.dtype]
    text = NetText(
        net_texts(bytes(net.constants.data), programs),
        f"{prod(returned.shape)} numbers of {_units(output)}",
        _header(inputs, num_bytes), stack - frames,
    )  # fmt: skip
    source = emit(planned.tiled, planned.executable, text)
    forecast = planned.plan.forecast
    promise = NetPromise(tuple(NumberFormat(*one) for one in inputs), NumberFormat(*output), num_bytes, size)
    manifest = Manifest(
        machine.name, ram, planned.executable.spaces[ARENA].capacity, STATIC_BYTES, stack, source.storage,
        source.pages, source.held, forecast.joules, forecast.ns / 1e9, planned.executable.num_runs,
        planned.executable.fingerprint, net=promise, flash=machine.flash,
    )  # fmt: skip
    return CompiledNet(net, planned, source, manifest, machine, windows + frames if windows else 0)


def _planned(graph: Graph, machine: Machine, ram: Bytes, stack: Bytes, *, pages: bool) -> MicroPlan:
    """Plan with ops run once; search re-runs where activations have to be paged.

    Raises:
        InfeasibleError: an op needs more, or activations would have to be paged and may not.
    """
    once = Economy(reruns=False)
    planned = plan_step(graph, machine, ram=ram, stack=stack, tiles=False, economy=once)
    if any(isinstance(step, PageOut) for step in planned.plan.schedule.steps):
        if not pages:
            raise InfeasibleError(
                f"activations do not fit into {ram} B of RAM, {stack} B of them for the stack. Allow pages "
                "to the slower tier, or ask for more RAM.",
                asked=ram,
            )
        return plan_step(graph, machine, ram=ram, stack=stack, tiles=False)
    return planned


def _in_bands(net: Net, machine: Machine, ram: Bytes, stack: Bytes, *, pages: bool) -> MicroPlan | None:
    """The first form in bands that fits, of those that compute little twice first."""

    def work(form: BandedGraph) -> int:
        return sum(num_macs(form.graph, op) for op in form.graph.ops)

    for form in sorted(banded_forms(net.graph), key=work):
        if floor_bytes(form.graph)[0] + stack + STATIC_BYTES > ram:
            continue
        try:
            planned = _planned(form.graph, machine, ram, stack, pages=pages)
        except InfeasibleError:
            continue
        if isinstance(net, IntegerNet):
            prove_net(form.graph, net.constants, net.programs)
        return planned
    return None


def _formats(net: Net) -> tuple[tuple[Format, ...], Format]:
    if isinstance(net, IntegerNet):
        return net.inputs, net.output
    (returned,) = (one for one in net.graph.parts[0].outputs if isinstance(one, View))
    return tuple(Format("float32", 1.0) for _ in net.inputs), Format(returned.dtype, 1.0)


def _header(inputs: Sequence[Format], num_bytes: Bytes) -> str:
    lines = [f"/* Input {k}: {_units(one)}. */" for k, one in enumerate(inputs)]
    return "\n".join([*lines, f"#define TR_OUTPUT_BYTES {num_bytes}u", "", ""])


def _units(one: Format) -> str:
    """A format in words."""
    zero = f", which stand for 0 at {one.zero}" if one.zero else ""
    return f"{one.dtype}, in units of {one.scale:.9g}{zero}"
