"""Compile a step: capture, plan, judge, write the C library with everything that it begins from."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, TightropeError
from tightrope.core.arguments import check_folder
from tightrope.core.codec import dump_graph
from tightrope.core.executable import ARENA
from tightrope.core.plan import dump_plan
from tightrope_micro.arduino import arduino
from tightrope_micro.emit import CSource, HeldValue, PageCounts, emit
from tightrope_micro.paging.economy import Economy
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES, MicroPlan, plan_step
from tightrope_micro.signs import with_signs
from tightrope_micro.sparse import updates_of

if TYPE_CHECKING:
    from tightrope_micro.step import MicroStep

MANIFEST = "manifest.json"


class NumberFormat(msgspec.Struct, frozen=True):
    """How numbers are held: a real one is ``scale`` times the whole one less ``zero``."""

    dtype: str
    scale: float
    zero: int = 0


class NetPromise(msgspec.Struct, frozen=True):
    """What inference promises beside its RAM.

    Attributes:
        inputs: formats, in the order of the call.
        output: format of what is returned.
        returned: bytes of it.
        constants: bytes in flash.
    """

    inputs: tuple[NumberFormat, ...]
    output: NumberFormat
    returned: Bytes
    constants: Bytes


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a compiled step promises.

    Attributes:
        machine: name of the profile.
        ram: limit on all RAM, bytes.
        arena: bytes of the array.
        static: bytes of RAM beside the array that are allowed for: the counters.
        stack: bytes kept for the stack.
        storage: bytes of the slower tier that the step touches.
        pages: of one step.
        held: what the caller holds in the slower tier.
        joules: of one step, modelled.
        seconds: of one step, modelled.
        num_ops: kernels called per step.
        fingerprint: of what runs.
        schema: version of this layout.
        net: of inference; None for a training step.
        updated: parameters that a training step updates.
        flash: limit on code and constants, bytes; 0 = any.
    """

    machine: str
    ram: Bytes
    arena: Bytes
    static: Bytes
    stack: Bytes
    storage: Bytes
    pages: PageCounts
    held: tuple[HeldValue, ...]
    joules: float
    seconds: float
    num_ops: int
    fingerprint: str
    schema: int = 1
    net: NetPromise | None = None
    updated: tuple[str, ...] = ()
    flash: Bytes = 0

    @property
    def total(self) -> Bytes:
        """RAM that the step takes at most."""
        return self.arena + self.static + self.stack


@dataclass(frozen=True)
class CompiledStep:
    """A step as C, in memory.

    Attributes:
        step: as captured.
        planned: its plan, judged.
        source: the texts.
        manifest: what they promise.
        image: bytes of the slower tier before the first step.
        machine: that it was planned for.
    """

    step: "MicroStep"
    planned: MicroPlan
    source: CSource
    manifest: Manifest
    image: bytes
    machine: Machine

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything to a folder: all of it, or nothing.

        Raises:
            TightropeError: the folder holds something else, or cannot be written.
        """
        graph = self.planned.tiled.graph
        code = {**self.source.texts, **arduino(self.source.texts, step=True)}
        texts: dict[str, bytes] = {name: text.encode() for name, text in code.items()}
        texts["storage.bin"] = self.image
        texts["sample.bin"] = sample_of(self.manifest, self.image)
        texts["step.plan.json"] = dump_plan(self.planned.plan)
        texts["step.graph.json"] = dump_graph(graph)
        texts[MANIFEST] = msgspec.json.format(msgspec.json.encode(self.manifest), indent=1)
        return write_folder(Path(folder), texts)


def compile_step(
    step: "MicroStep",
    machine: Machine,
    *,
    ram: Bytes,
    stack: Bytes = STACK_RESERVE,
    tiles: bool = True,
    maps: bool = True,
    signs: bool = True,
    economy: Economy | None = None,
) -> CompiledStep:
    """Plan a captured step within ``ram`` bytes and write it as C.

    Args:
        step: captured.
        machine: with a slower tier.
        ram: bytes of all RAM: arena, counters and stack.
        stack: bytes of it for the stack.
        tiles: whether weights may be cut into rows where no plan of whole ones fits.
        maps: whether maps may be cut into groups of channels where that does not do.
        signs: whether one bit per element may be kept of what gradients of ReLUs alone read later.
        economy: what ops run again for, limits of modelled time and energy; None = the least time.

    Raises:
        InfeasibleError: an op needs more, named with its bytes and the next limit to try; or the best
            step that was found takes more time or energy than it may.
    """
    plans = partial(plan_step, machine=machine, ram=ram, stack=stack, tiles=tiles, maps=maps, economy=economy)
    planned = _with_signs(step.graph, plans) if signs else plans(step.graph)
    source = emit(planned.tiled, planned.executable)
    forecast = planned.plan.forecast
    manifest = Manifest(
        machine.name, ram, planned.executable.spaces[ARENA].capacity, STATIC_BYTES, stack, source.storage,
        source.pages, source.held, forecast.joules, forecast.ns / 1e9, planned.executable.num_runs,
        planned.executable.fingerprint, updated=tuple(updates_of(step.graph)), flash=machine.flash,
    )  # fmt: skip
    image = bytearray(source.storage)
    by_name = {name: storage for storage, name in step.names.items()}
    for one in source.held:
        value = step.values[by_name[one.name]]
        image[one.offset : one.offset + one.bytes] = value[one.first : one.first + one.bytes]
    return CompiledStep(step, planned, source, manifest, bytes(image), machine)


def _with_signs(graph: Graph, plans: Callable[[Graph], MicroPlan]) -> MicroPlan:
    """Plan a step with signs; without, where those do not fit: to take them needs some bytes too.

    Raises:
        InfeasibleError: neither fits; that of the smaller plan.
    """
    signed = with_signs(graph)
    try:
        return plans(signed)
    except InfeasibleError as error:
        if signed is graph or not error.op:
            raise
        refused = error
    try:
        return plans(graph)
    except InfeasibleError as error:
        raise min(refused, error, key=lambda one: one.smallest_found or one.lower_bound) from None


def sample_of(manifest: Manifest, image: bytes) -> bytes:
    """The inputs as they lie in a storage image, one behind the other, as the benches read them."""
    inputs = [one for one in manifest.held if one.kind == "input"]
    return b"".join(image[one.offset : one.offset + one.bytes] for one in inputs)


def check_samples(manifest: Manifest, samples: Sequence[object]) -> None:
    """Refuse samples that are not the bytes of the inputs of one call each.

    Raises:
        TightropeError: says how many bytes of which inputs are expected.
    """
    inputs = [one for one in manifest.held if one.kind == "input"]
    size = sum(one.bytes for one in inputs)
    for at, sample in enumerate(samples):
        if not isinstance(sample, bytes) or len(sample) != size:
            there = f"{len(sample)} bytes" if isinstance(sample, bytes) else f"a {type(sample).__name__}"
            forms = ", ".join(f"{one.name} as {one.label} ({one.bytes} B)" for one in inputs)
            raise TightropeError(
                f"sample {at} is {there}; a call reads {size} B: {forms}, one behind the other. Of a net, "
                "CompiledNet.sample(*inputs) makes them; of a step, value_bytes of each input."
            )


def values_of(manifest: Manifest, image: bytes) -> dict[str, bytes]:
    """What the caller holds, by name, as it lies in a storage image; tiles are put together."""
    found: dict[str, bytes] = {}
    for one in sorted(manifest.held, key=lambda one: (one.name, one.first)):
        found[one.name] = found.get(one.name, b"") + image[one.offset : one.offset + one.bytes]
    return found


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a compiled step.

    Raises:
        TightropeError: there is none, or it is not one.
    """
    path = Path(folder) / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise TightropeError(
            f"{str(folder)!r} holds no {MANIFEST}: give the folder that tightrope micro compile wrote."
        ) from error
    except msgspec.DecodeError as error:
        raise TightropeError(f"{str(path)!r} is not a manifest: {error}. Compile the step again.") from error


def write_folder(folder: Path, texts: Mapping[str, bytes]) -> Path:
    """Write files to a folder, all or none; a folder of an earlier compilation is replaced.

    Raises:
        TightropeError: the folder holds something else, or cannot be written.
    """
    check_new(folder)
    made = None
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.resolve().parent))
        for name, data in texts.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(data)
        made.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise TightropeError(f"{str(folder)!r} cannot be written: {error}. Give another folder.") from error
    return folder


def check_new(folder: Path) -> None:
    """Refuse a folder that `write_folder` could not write, before any work.

    Raises:
        TightropeError: the folder holds something else, or nothing can be written there.
    """
    if not folder.is_dir():
        check_folder(folder)
    if folder.exists() and not _is_ours(folder):
        raise TightropeError(
            f"{str(folder)!r} exists, and tightrope micro compile did not write it: give another folder."
        )


def _is_ours(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    names: Sequence[str] = os.listdir(folder)
    return not names or MANIFEST in names
