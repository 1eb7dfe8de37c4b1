"""Run it: ``python -m benchmarks micro [--only BARS] [--peer PYTHON] [--onnx PYTHON] [--json FILE]``.

The residual net has 77,706 parameters, 37 million multiply-accumulates in a step of batch 1, and plain SGD.

P1: it is compiled for 235,000 bytes of all RAM and trained for some steps on an emulated Cortex-M4F, behind a
fence at the limit, without a heap. *RAM* is static RAM and the most bytes of the stack. Weights are read back
from storage and compared with PyTorch.

P2: the arena in which LeNet-5, a perceptron of 33-20-10-4 and the residual net train, on this computer: first
the least with updates fused and values written over, in which no activation is paged, then with pages and
tiles. With ``--peer``, an interpreter of an environment with executorch, beside what that plans.

P3: the net that POET calls resnet18_cifar, on the emulated board, with all that it holds counted.

P7: an encoder of two blocks of width 128 over 32 words, on the emulated board.

P4: eight limits, evenly from 95 % of what the step takes without activations in storage down to the smallest
that a plan was found for. Bytes of the arena and of pages as forecast, as linked and counted on the board,
and as the judge derives them; two runs have to take the same number of instructions.

P5: modelled energy at equal bytes, see `benchmarks.micro.energy`.

P6: one address in the C of a plan is moved by four bytes, at random; weights or losses have to show it, or
the run has to stop.

D1: AdamW on the device, see `benchmarks.micro.adamw`.

K1: instructions of integer kernels beside strict float on an ARMv7 core, see `benchmarks.micro.neon`.

K2: instructions of all forms of kernels on four cores beside those of the one that is chosen, see
`benchmarks.micro.forms`; ``--fit`` writes the tables of costs anew instead.

K3, K4: integer kernels, see `benchmarks.micro.integer`.

E2: an integer net beside an interpreter, see `benchmarks.micro.interpreter`; with ``--tflm`` and
``--tflm-source``.

T1: choosing what a step updates, beside updating all, see `benchmarks.micro.transfer`.

T2: inference of the residual net, plain and in bands of rows, see `benchmarks.micro.inference`.

M1: the reference nets of MLPerf Tiny as published, in three forms, see `benchmarks.micro.published`; with
``--tflm-source``, their int8 files compared with an interpreter, see `benchmarks.micro.deployed`.

M2: int8 nets of MLPerf Tiny, see `benchmarks.micro.cmsis`; with ``--cmsis``, beside CMSIS-NN.

M3: single ops and drawn nets of them, see `benchmarks.micro.single_ops`; ``--seeds`` says how many nets.

M4: limits to the byte on drawn nets, see `benchmarks.micro.limited`; ``--compilations`` says how many.

M5: nets exported to ONNX, see `benchmarks.micro.exported`; with ``--onnx``, compared with onnxruntime. With
``--tflite``, int8 files beside the reference kernels of that interpreter, see `benchmarks.micro.tflite_bits`.

M6: recurrent nets and convolutions of one dimension, trained and run on the board, see
`benchmarks.micro.sequences`.

K5: whole nets in integers, and K4 of one, see `benchmarks.micro.whole`; with ``--onnx``, an interpreter of an
environment with onnxruntime, beside its static int8.
"""

import argparse
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.micro.adamw import d1
from benchmarks.micro.beside import p2, p3, p7
from benchmarks.micro.cmsis import m2
from benchmarks.micro.deployed import m1_tflm
from benchmarks.micro.energy import p5
from benchmarks.micro.exported import m5
from benchmarks.micro.forms import k2
from benchmarks.micro.inference import t2
from benchmarks.micro.integer import k3, k4
from benchmarks.micro.interpreter import e2
from benchmarks.micro.limited import m4
from benchmarks.micro.neon import k1
from benchmarks.micro.nets import normed, residual
from benchmarks.micro.published import m1
from benchmarks.micro.rows import Row, write
from benchmarks.micro.sequences import m6
from benchmarks.micro.single_ops import FIRST, m3
from benchmarks.micro.tflite_bits import m5_tflite
from benchmarks.micro.trained import State, samples, train, worst
from benchmarks.micro.transfer import t1
from benchmarks.micro.whole import k5
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError, NativeError
from tightrope.judge import judge
from tightrope_micro import CompiledStep, MicroStep, capture_step, compile_step, run_on_board, run_on_host
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK, missing_tools

_LIMIT = 235_000
_EQUAL = 1e-6
_LOSS_EQUAL = 1e-5


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks micro")
    parser.add_argument(
        "--only", default="P1,P2,P3,P4,P5,P6,P7,D1,K1,K2,K3,K4,K5,M1,M2,M3,M4,M5,M6,T1,T2", help="bars to run"
    )
    parser.add_argument(
        "--steps", type=int, default=4, help="training steps of P1, P2, P3 and P7; M6 takes 30 times"
    )
    parser.add_argument("--trials", type=int, default=100, help="moved addresses of P6")
    parser.add_argument("--compilations", type=int, default=100, help="of M4")
    parser.add_argument("--seeds", type=int, default=60, help="drawn nets of M3")
    parser.add_argument("--first", type=int, default=FIRST, help="first seed of M3; another one: nets alone")
    parser.add_argument("--solver", type=float, default=60.0, help="seconds per program of P5")
    parser.add_argument("--peer", default="", help="a Python interpreter that has torch and executorch")
    parser.add_argument("--onnx", default="", help="a Python interpreter that has torch and onnxruntime")
    parser.add_argument("--tflite", default="", help="a Python interpreter that has ai-edge-litert")
    parser.add_argument("--tflite-files", type=Path, help="a folder with more .tflite files for M5")
    parser.add_argument("--tflm", default="", help="a Python interpreter that has tflite-micro")
    parser.add_argument("--cmsis", default="", help="a checkout of CMSIS-NN")
    parser.add_argument(
        "--tflm-source", default="", help="a checkout of tflite-micro with its downloads; for E2 and M1"
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="with K2: count anew and write the tables of costs; with T1: print what other rates give",
    )
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    wanted = asked.only.split(",")
    if {"P1", "P3", "P4", "P7", "D1"} & set(wanted) and missing_tools():
        console.print(f"P1, P3, P4, P7, D1 not run: {missing_tools()}")
        return 1
    bars: dict[str, Callable[[], list[Row]]] = {
        "P1": lambda: [_p1(asked.steps)],
        "P2": lambda: p2(asked.peer, asked.steps),
        "P3": lambda: p3(asked.steps),
        "P4": lambda: [_p4(console)],
        "P5": lambda: p5(console, asked.solver),
        "P6": lambda: [_p6(console, asked.trials)],
        "P7": lambda: p7(asked.steps),
        "D1": lambda: d1(asked.steps),
        "K3": lambda: [Row("K3", "error of at most one unit", "as above", k3(console))],
        "K4": lambda: [Row("K4", "proof of 32 bits, controls refused", "as above", k4(console))],
        "K1": k1,
        "K2": lambda: k2(console, fit=asked.fit),
        "T1": lambda: t1(console, fit=asked.fit),
        "E2": lambda: e2(asked.tflm, asked.tflm_source),
        "T2": lambda: t2(asked.peer),
        "K5": lambda: k5(console, asked.onnx),
        "M1": lambda: [*m1(console), *m1_tflm(console, asked.tflm_source, asked.cmsis)],
        "M2": lambda: m2(console, asked.cmsis),
        "M3": lambda: m3(console, asked.seeds, asked.first),
        "M4": lambda: m4(console, asked.compilations),
        "M5": lambda: (
            m5_tflite(console, asked.tflite, asked.tflite_files, asked.seeds)
            if asked.tflite
            else m5(console, asked.onnx)
        ),
        "M6": lambda: m6(console, 30 * asked.steps),
    }
    rows: list[Row] = []
    for bar in wanted:
        found = bars[bar]()
        for row in found:
            row.say(console)
        rows += found
    if asked.json:
        write(rows, asked.json)
    return 0 if all(row.held for row in rows if "stretch" not in row.bar) else 1


def _captured() -> MicroStep:
    model, args, optimizer = residual()
    return capture_step(model, args, optimizer)


def _p1(num_steps: int) -> Row:
    compiled = compile_step(_captured(), find_machine("nrf52840"), ram=_LIMIT)
    _, state, batches = train(residual, num_steps)
    with tempfile.TemporaryDirectory() as folder:
        found = run_on_board(compiled.write(Path(folder) / "out"), samples(compiled, batches), count=True)
    apart = worst(found, compiled, state)
    held = found.ram <= _LIMIT and apart <= _EQUAL and found.arena == compiled.manifest.arena
    ours = (
        f"RAM {found.ram} B (arena {found.arena}, beside it {found.static - found.arena}, "
        f"stack {found.stack}), "
        f"code and constants {found.rom} B; "
        f"largest difference of a weight after {num_steps} steps {apart:.1e}; "
        f"{found.ticks * INSTRUCTIONS_PER_TICK // num_steps:,} instructions per step; modelled: "
        f"{compiled.manifest.seconds:.1f} s, {compiled.manifest.joules:.3f} J per step"
    )
    return Row("P1", f"all RAM <= {_LIMIT} B behind the fence, weights within {_EQUAL:g}", ours, held)


def _limits(step: MicroStep) -> list[int]:
    board = find_machine("stm32h743")
    try:
        compile_step(step, board, ram=10_000)
    except InfeasibleError as error:
        least = error.smallest_found or error.lower_bound
    most = 0.95 * compile_step(step, find_machine("poet-cortex-m4f"), ram=2**20).manifest.total
    return [round(most + k / 7 * (least - most)) for k in range(8)]


def _p4(console: Console) -> Row:
    step, machine = _captured(), find_machine("poet-cortex-m4f")
    console.print("P4 limit, arena, pages in, out, bytes in, out, instructions; forecast = linked = counted")
    good = 0
    for ram in _limits(step):
        compiled = compile_step(step, machine, ram=ram)
        planned, manifest = compiled.planned, compiled.manifest
        verdict = judge(planned.tiled.graph, planned.executable, planned.plan, machine)
        with tempfile.TemporaryDirectory() as folder:
            out = compiled.write(Path(folder) / "out")
            sample = [(out / "sample.bin").read_bytes()]
            first, second = (run_on_board(out, sample, count=True) for _ in range(2))
        same = first.arena == manifest.arena == planned.plan.forecast.arena == verdict.arena
        same = same and first.pages == manifest.pages and first.ticks == second.ticks and verdict.ok
        same = same and first.ram <= ram
        pages, verdict_text = manifest.pages, "ok" if same else "MISSED"
        console.print(
            f"{verdict_text} {ram:>7} {first.arena:>7} {pages.pages_in:>3} {pages.pages_out:>3} "
            f"{pages.bytes_in:>8} {pages.bytes_out:>8} {first.ticks * INSTRUCTIONS_PER_TICK:,}"
        )
        good += same
    claim = "forecast = linked = counted = judged, instructions of two runs equal, at 8 limits"
    return Row("P4", claim, f"at {good} limits", good == 8)


def _p6(console: Console, num_trials: int) -> Row:
    model, args, optimizer = normed()
    compiled = compile_step(capture_step(model, args, optimizer), find_machine("poet-cortex-m4f"), ram=20_000)
    losses, state, batches = train(normed, 2)
    draw, caught = random.Random(0), 0
    body = compiled.source.texts["step.c"].partition("float tightrope_")[2]
    places = list(re.finditer(r"[FI]\((\d+)\)", body))
    chosen = [draw.choice(places) for _ in range(num_trials)]
    with tempfile.TemporaryDirectory() as folder:
        for number, place in enumerate(chosen):
            moved = _moved(compiled, Path(folder) / str(number), place)
            shown = _shows(compiled, moved, samples(compiled, batches), state, losses)
            caught += shown
            if not shown:
                line = body[body.rfind("\n", 0, place.start()) + 1 : body.find("\n", place.end())].strip()
                console.print(f"not shown: {place.group(0)} in {line[:90]}")
    ours = f"{caught} of {num_trials} moved addresses"
    return Row("P6", "every address that is moved by 4 B shows", ours, caught == num_trials)


def _moved(compiled: CompiledStep, folder: Path, place: re.Match[str]) -> Path:
    """Write the C with one address moved by four bytes."""
    out: Path = compiled.write(folder)
    head, mark, tail = compiled.source.texts["step.c"].partition("float tightrope_")
    at = int(place.group(1))
    moved = at - 4 if at >= 4 else at + 4
    (out / "step.c").write_text(head + mark + tail[: place.start(1)] + str(moved) + tail[place.end(1) :])
    return out


def _shows(compiled: CompiledStep, out: Path, data: list[bytes], state: State, losses: list[float]) -> bool:
    """Tell whether weights or losses differ, or the run stops."""
    try:
        found = run_on_host(out, data)
    except NativeError:
        return True
    off = max(abs(one - other) for one, other in zip(found.losses, losses, strict=True))
    return worst(found, compiled, state) > _EQUAL or off > _LOSS_EQUAL
