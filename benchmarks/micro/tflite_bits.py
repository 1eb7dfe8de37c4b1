"""M5: int8 files of TensorFlow Lite, compared with the reference kernels of an interpreter to the bit.

``--tflite`` names an interpreter that has ai-edge-litert. `benchmarks.micro.tflite_nets` makes the nets: the
four of MLPerf Tiny, every op alone, and drawn ones. ``--tflite-files`` names a folder with more, such as a
checkout of mlcommons/tiny; files that are not in int8 are refused. One input runs on the emulated board. Nets
are also cut behind every op, so that whole maps are compared and not a few scores alone.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.micro.rows import Row
from benchmarks.micro.tflite_nets import NETS, SINGLE, drawn
from tightrope.cli.machines import find_machine
from tightrope.core import TightropeError
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK, missing_tools
from tightrope_micro.infer import CompiledNet, compile_net
from tightrope_micro.tflite import load_tflite

_INPUTS: Final = 1000
_INPUTS_OF_CUTS: Final = 20
_RAM: Final = 300 * 1024
_STACK: Final = 4096
_PEER: Final = """
import sys
import numpy
from ai_edge_litert.interpreter import Interpreter, OpResolverType
one = Interpreter(sys.argv[1], experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
one.allocate_tensors()
(given,), (made,) = one.get_input_details(), one.get_output_details()
found = []
for x in numpy.load(sys.argv[2]):
    one.set_tensor(given["index"], x)
    one.invoke()
    found.append(one.get_tensor(made["index"]).ravel().copy())
numpy.save(sys.argv[3], found)
"""


def m5_tflite(console: Console, peer: str, folder: Path | None, seeds: int) -> list[Row]:
    """Write files, compile, run, and compare."""
    rows = []
    for name, content in (*_files(folder), *((name, net(0).content()) for name, net in NETS.items())):
        found = _compared(console, name, content, peer, _INPUTS)
        if found is None:
            continue
        cut = [_compared(console, name, one, peer, _INPUTS_OF_CUTS, board=False) for one in _cut(content)]
        equal = sum(one is not None and one[2] for one in cut)
        words = f"{found[1]}; {equal} of {len(cut)} maps inside equal"
        rows.append(
            Row("M5", f"{name}: bits of the reference kernels", words, found[2] and equal == len(cut))
        )
    small = [_compared(console, name, make(1).content(), peer, _INPUTS) for name, make in SINGLE.items()]
    small += [
        _compared(console, f"drawn {seed}", drawn(seed).content(), peer, _INPUTS) for seed in range(seeds)
    ]
    right = sum(one is not None and one[2] for one in small)
    words = f"{right} of {len(small)}: {len(SINGLE)} ops and {seeds} drawn nets, {_INPUTS} inputs each"
    return [*rows, Row("M5", "single ops and drawn nets: the same", words, right == len(small))]


def _files(folder: Path | None) -> Iterator[tuple[str, bytes]]:
    seen = set()
    for path in sorted(folder.rglob("*.tflite")) if folder is not None else []:
        if (content := path.read_bytes()) not in seen:
            seen.add(content)
            yield path.name, content


def _cut(content: bytes) -> Iterator[bytes]:
    """The file with the result of each op but the last as what it returns."""
    import tflite

    graph = tflite.Model.GetRootAs(content, 0).Subgraphs(0)
    at = graph._tab.Vector(graph._tab.Offset(8))  # of its outputs
    for k in range(graph.OperatorsLength() - 1):
        made = int(graph.Operators(k).Outputs(0)).to_bytes(4, "little")
        yield content[:at] + made + content[at + 4 :]


def _compared(
    console: Console, name: str, content: bytes, peer: str, num: int, *, board: bool = True
) -> tuple[str, str, bool] | None:
    """What was found of a file, in words, and whether all bits are equal; None = it is refused."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        path = here / "net.tflite"
        path.write_bytes(content)
        try:
            compiled = compile_net(
                load_tflite(path), find_machine("stm32h743"), ram=_RAM, stack=_STACK, pages=False
            )
        except TightropeError as error:
            console.print(f"{name}: {str(error)[:160]}")
            return None
        given = inputs_of(compiled, num)
        np.save(here / "x.npy", given)
        command = [peer, "-c", _PEER, str(path), str(here / "x.npy"), str(here / "y.npy")]
        subprocess.run(command, check=True, capture_output=True)
        want = np.load(here / "y.npy")
        out = compiled.write(here / "out")
        found = run_on_host(out, [one.tobytes() for one in given]).outputs
        equal = sum(one == other.tobytes() for one, other in zip(found, want, strict=True))
        kinds = len({one.tobytes() for one in want})
        words = f"{equal} of {num} inputs equal ({kinds} different results)"
        if not board or missing_tools():
            return name, f"{words}; {missing_tools()}", equal == num
        there = run_on_board(out, [given[0].tobytes()], count=True)
    same = there.outputs[0] == found[0] and there.ram <= compiled.manifest.total
    words += f"; the board's bits {'are equal' if same else 'DIFFER'}, RAM {there.ram:,} B, "
    words += f"flash {there.rom:,} B, {there.ticks * INSTRUCTIONS_PER_TICK:,} instructions"
    if not same or equal != num:
        console.print(f"{name}: {words}")
    return name, words, equal == num and same


def inputs_of(compiled: CompiledNet, num: int, seed: int = 0) -> NDArray[Any]:
    """Draw inputs: half of them noise, half of them noise around a number."""
    draw = np.random.default_rng(seed)
    (one,) = compiled.net.graph.parts[0].inputs
    assert one.view is not None
    shape = (num, *one.view.shape)
    middle = draw.uniform(-100, 100, (num, *[1] * len(one.view.shape)))
    found = draw.uniform(-128, 128, shape)
    found[::2] = (middle + found / 6)[::2]
    if one.view.dtype == "float32":
        return found.astype(np.float32)
    limits = np.iinfo(one.view.dtype)
    moved = np.rint(found) + (limits.min + 128)
    return np.clip(moved, limits.min, limits.max).astype(one.view.dtype)
