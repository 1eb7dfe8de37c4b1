"""M2: instructions of int8 nets beside CMSIS-NN's kernels, on the emulated Cortex-M4F.

Each layer of the quantized net is a call of CMSIS-NN with the same sizes, strides, padding, weights, biases
and multipliers, see `benchmarks.micro.cmsis_calls`, built by the same compiler with the same flags. What the
plan adds for its own formats counts against it. The library has two ways of rounding, once and twice; the
cheaper one is compared. Values of all layers are compared too. Float is the library's own.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.micro.cmsis_calls import Caller, transposed
from benchmarks.micro.rows import Row
from benchmarks.micro.tiny import NETS, made
from tightrope.cli.machines import find_machine
from tightrope.core import NativeError, View
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.emulate import (
    COMPILER,
    CORES,
    FLAGS,
    INSTRUCTIONS_PER_TICK,
    build,
    emulated_ticks,
    missing_tools,
)
from tightrope_micro.host import execute
from tightrope_micro.infer import capture_net, compile_net, ranges_of
from tightrope_micro.infer.compile import CompiledNet
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_MOST, _RAM = 1.3, 4 << 20
_ROUNDING: Final[Mapping[str, Sequence[str]]] = {"once": ("-DCMSIS_NN_USE_SINGLE_ROUNDING",), "twice": ()}
Built = Mapping[str, Sequence[str]]
"""Objects of the library by how it rounds."""


class Peer(NamedTuple):
    """Instructions of CMSIS-NN by how it rounds; how many of how many values differ, and by how much."""

    instructions: dict[str, int]
    differ: int
    compared: int
    most: int


def m2(console: Console, cmsis: str) -> list[Row]:
    """Count every net: own integers, own float and, where a checkout is given, CMSIS-NN."""
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(cmsis).absolute()
        built = _library(library, Path(scratch)) if cmsis else {}
        return [_row(console, name, (library, built)) for name in NETS]


def _row(console: Console, name: str, library: tuple[Path, Built]) -> Row:
    net, samples = made(name)
    plain = capture_net(net, samples[0])
    ranges = ranges_of(plain, samples)
    whole = quantize_within(plain, ranges, samples, STREAM_ERROR, core="cortex-m4f")
    compiled, plainly = (
        compile_net(one, find_machine("stm32h743"), ram=400 * 1024) for one in (whole, plain)
    )
    own = _count(compiled, compiled.sample(*samples[1]))
    try:
        wide = _count(plainly, plainly.sample(*samples[1]))
    except NativeError as error:
        console.print(f"{name}: its float form does not link: {str(error).splitlines()[-2]}")
        wide = 0
    words = f"{own:,} instructions in int8, {f'{wide:,}' if wide else 'not counted'} in float"
    peer = 0
    if library[1]:
        found = _peer(whole, compiled, compiled.sample(*samples[1]), library)
        peer = min(found.instructions.values())
        words += f", {peer:,} in CMSIS-NN: {own / peer:.2f}x ("
        words += ", ".join(f"rounded {how} {n:,}" for how, n in found.instructions.items())
        words += (
            f"); {found.differ:,} of {found.compared:,} values of all layers differ, by at most {found.most}"
        )
    else:
        words += "; CMSIS-NN not given"
    held = own <= (wide or own) and (not peer or own <= _MOST * peer)
    return Row("M2", f"{name}: at most {_MOST} x CMSIS-NN, and never above float", words, held)


def _count(compiled: CompiledNet, sample: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        board = run_on_board(out, [sample], count=True)
        assert board.outputs == run_on_host(out, [sample]).outputs
    return board.ticks * INSTRUCTIONS_PER_TICK


def _peer(net: IntegerNet, compiled: CompiledNet, sample: bytes, library: tuple[Path, Built]) -> Peer:
    (given,), (cmsis, built) = net.graph.parts[0].inputs, library
    assert isinstance(given.view, View)
    whole = np.frombuffer(sample, np.int8).reshape(given.view.shape)
    values = NetEvaluator(net.graph, net.constants, net.programs).values([whole.astype(np.int64)])
    caller = Caller(net, values)
    text = caller.text()
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        out = compiled.write(here / "out")
        (out / "step.c").write_text(text)
        (out / "kernels.c").write_text("int tr_nothing;\n")
        (here / "samples.bin").write_bytes(transposed(whole).tobytes())
        counted = {
            how: _ticks(here, compiled, cmsis, objects) * INSTRUCTIONS_PER_TICK
            for how, objects in built.items()
        }
        _ticks(here, compiled, cmsis, ("-DTR_TELL", *built["once"]))
        told = np.frombuffer((here / "storage.bin").read_bytes(), np.int8).astype(np.int64)
    differ = count = most = 0
    for op in net.graph.ops:
        storage, view = op.creates[0], op.results[0].view
        offset, shape = caller.places[storage]
        ours = transposed(values[storage].reshape(view.shape)) / caller.units[storage]
        apart = np.abs(told[offset : offset + ours.size].reshape(shape) - np.clip(np.rint(ours), -128, 127))
        differ, count, most = differ + int((apart > 0).sum()), count + ours.size, max(most, int(apart.max()))
    return Peer(counted, differ, count, most)


def _library(cmsis: Path, here: Path) -> Built:
    """Compile the library, once for each way of rounding."""
    wanted = ("Convolution", "FullyConnected", "Pooling", "NNSupport", "BasicMath")
    found = [one for part in wanted for one in sorted((cmsis / "Source" / f"{part}Functions").glob("*.c"))]
    sources = [str(one) for one in found if "_f32" not in one.name and "_f16" not in one.name]
    built = {}
    for how, more in _ROUNDING.items():
        (into := here / how).mkdir()
        flags = [one for one in FLAGS if one != "-nostartfiles" and not one.startswith("-Wl")]
        command = [COMPILER, *flags, "-w", *CORES["cortex-m4f"][1], *more, f"-I{cmsis / 'Include'}"]
        for one in sources:
            execute([*command, "-c", one], "building CMSIS-NN", folder=into)
        built[how] = [str(one) for one in sorted(into.glob("*.o"))]
    return built


def _ticks(here: Path, compiled: CompiledNet, cmsis: Path, more: Sequence[str]) -> int:
    flags = ["-DTR_STEPS=1", "-w", f"-I{cmsis / 'Include'}", *more]
    out, ends = here / "out", (_RAM, _RAM)
    program, _ = build(out, here, compiled.manifest, ends, defines=flags, core="cortex-m4f")
    (here / "storage.bin").write_bytes((out / "storage.bin").read_bytes())
    return emulated_ticks(program, here, CORES["cortex-m4f"][0])
