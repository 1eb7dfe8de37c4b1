"""M1: RAM and flash of int8 files, compared with TensorFlow Lite Micro on CMSIS-NN's kernels.

``--tflm-source`` names a checkout of tflite-micro with its downloads; ``--cmsis``, a checkout of CMSIS-NN,
replaces the copy among them. The four nets of MLPerf Tiny are written as .tflite files with random weights,
as they were published: padding within convolutions, softmax. Both sides run the same file on the emulated
Cortex-M4F. Values may differ by one unit: of dense layers the reference kernels of TensorFlow Lite, whose
bits the plug-in has, round a product once, and CMSIS-NN rounds it twice. The interpreter is built twice, see
`benchmarks.micro.tflm`: with kernels and CMSIS-NN at -O2, as its makefile has them, and at -Os. Kernels are
those of int8 alone. Each figure is compared with the smaller one of the two.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.micro.rows import Row
from benchmarks.micro.tflite_bits import inputs_of
from benchmarks.micro.tflite_nets import NETS, persons
from benchmarks.micro.tflite_writer import WrittenNet
from benchmarks.micro.tflm import DOWNLOADS, Kernels, Peer, run_interpreter
from tightrope.cli.machines import find_machine
from tightrope_micro import run_on_board
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK
from tightrope_micro.infer import compile_net
from tightrope_micro.tflite import load_tflite

_INPUTS: Final = 4
_RAM, _STACK = 300 * 1024, 4096
_LEVELS: Final = ("-O2", "-Os")
_PUBLISHED: Final[dict[str, Callable[[int], WrittenNet]]] = {
    **NETS,
    "MobileNetV1 0.25": partial(persons, padded=False),
}
_ADDS: Final = {
    "ADD": "AddAdd(tflite::Register_ADD_INT8())",
    "AVERAGE_POOL_2D": "AddAveragePool2D(tflite::Register_AVERAGE_POOL_2D_INT8())",
    "CONV_2D": "AddConv2D(tflite::Register_CONV_2D_INT8())",
    "DEPTHWISE_CONV_2D": "AddDepthwiseConv2D(tflite::Register_DEPTHWISE_CONV_2D_INT8())",
    "FULLY_CONNECTED": "AddFullyConnected(tflite::Register_FULLY_CONNECTED_INT8())",
    "RESHAPE": "AddReshape()",
    "SOFTMAX": "AddSoftmax(tflite::Register_SOFTMAX_INT8())",
}
_FILES: Final = {
    **{
        kind: (f"cmsis_nn/{name}", f"{name}_common")
        for kind, name in (
            ("ADD", "add"), ("AVERAGE_POOL_2D", "pooling"), ("CONV_2D", "conv"),
            ("DEPTHWISE_CONV_2D", "depthwise_conv"), ("FULLY_CONNECTED", "fully_connected"),
            ("SOFTMAX", "softmax"),
        )
    },
    "RESHAPE": ("reshape", "reshape_common"),
}  # fmt: skip


def m1_tflm(console: Console, source: str, cmsis: str) -> list[Row]:
    """Compare every net; no rows where no source is given."""
    if not source:
        console.print(
            "M1: give --tflm-source to compare RAM and flash with TensorFlow Lite Micro on CMSIS-NN"
        )
        return []
    library = (Path(cmsis) if cmsis else Path(source) / DOWNLOADS / "cmsis_nn").absolute() / "Source"
    return [_row(name, make(1), Path(source).absolute(), library) for name, make in _PUBLISHED.items()]


def _row(name: str, net: WrittenNet, source: Path, library: Path) -> Row:
    kinds = sorted({kind for kind, *_ in net.ops})
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        (here / "net.tflite").write_bytes(net.content())
        loaded = load_tflite(here / "net.tflite")
        compiled = compile_net(loaded, find_machine("stm32h743"), ram=_RAM, stack=_STACK, pages=False)
        given = [one.tobytes() for one in inputs_of(compiled, _INPUTS)]
        ours = run_on_board(compiled.write(here / "out"), given, count=True)
        peers = [run_interpreter(here, _kernels(level, library), kinds, given, source) for level in _LEVELS]
    ram, rom = (min(getattr(one, what) for one in peers) for what in ("ram", "rom"))
    apart = np.stack([_apart(ours.outputs, one.outputs) for one in peers])
    calls = ours.ticks * INSTRUCTIONS_PER_TICK // _INPUTS
    words = f"{name}: RAM {ours.ram:,} B (arena {ours.arena:,}, stack {ours.stack:,}), "
    words += f"{100 - 100 * ours.ram / ram:.1f} % below; flash {ours.rom:,} B, "
    words += f"{100 - 100 * ours.rom / rom:.1f} % below; {calls:,} instructions; "
    words += f"{int((apart > 0).sum())} of {apart.size} values differ, by at most {int(apart.max())}"
    held = ours.ram < ram and ours.rom < rom and int(apart.max()) <= 1
    said = "; ".join(f"{level} {_said(one)}" for level, one in zip(_LEVELS, peers, strict=True))
    claim = "RAM and flash below TensorFlow Lite Micro with CMSIS-NN, values at most one unit apart"
    return Row("M1", claim, words, held, said)


def _apart(ours: tuple[bytes, ...], theirs: tuple[bytes, ...]) -> NDArray[np.int64]:
    one, other = (np.frombuffer(b"".join(found), np.int8).astype(np.int64) for found in (ours, theirs))
    return np.abs(one - other)


def _said(one: Peer) -> str:
    return f"RAM {one.ram:,} B (arena {one.arena:,}), flash {one.rom:,} B, {one.instructions:,} instructions"


def _kernels(level: str, library: Path) -> Kernels:
    return Kernels(_ADDS, _FILES, level, ("-DCMSIS_NN",), library)
