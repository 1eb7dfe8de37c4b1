"""K2: instructions of every form of every row kernel on four cores, beside those of the form that is chosen.

Forms: a polynomial in integers, a table, and float32 that the compiler may turn into vectors. Cores: ARMv7
with NEON, Cortex-M4F, Cortex-M3, and x86-64 with AVX2; the first and the last are counted by a plugin of QEMU
over programs for Linux, the others by the timer of the emulated board. Rows are drawn.
``--fit`` counts rows of 1 to 64 elements and of 512 and writes the tables of `costs`; the bar is on usual and
drawn lengths: those up to 64 elements are in the tables with other scales, the others follow from them.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.micro.rows import Row
from tightrope_micro.emit import resource
from tightrope_micro.emulate import (
    COMPILER,
    CORES,
    EMULATOR,
    FLAGS,
    INSTRUCTIONS_PER_TICK,
    Core,
    missing_tools,
)
from tightrope_micro.host import execute
from tightrope_micro.integer import HEADER, costs, emitted
from tightrope_micro.integer.costs import COUNTED, Cost, KernelForm, RowOp, chosen
from tightrope_micro.integer.floats import FloatRows, float_section
from tightrope_micro.integer.forms import RowKernel, gelu_forms, norm_forms, softmax_forms
from tightrope_micro.sensor.measure import STACK

FITTED: Final = (*range(1, COUNTED + 1), 512)
_SEED = 18
_ROWS, _TIMES, _RAM, _BAR = 12, 10, 1 << 20, 1.05
_LINUX: Final = {
    "armv7-neon": (
        "arm-linux-gnueabihf-gcc", ("-mcpu=cortex-a7", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"), ("qemu-arm",),
    ),
    "x86-64-v3": ("gcc", ("-march=x86-64-v3",), ("qemu-x86_64", "-cpu", "max")),
}  # fmt: skip
_BOARDS: Final[dict[str, Core]] = {"cortex-m4f": "cortex-m4f", "cortex-m3": "cortex-m3"}
_PACKAGES: Final = "qemu-user gcc-arm-linux-gnueabihf"


def lengths_of_bar() -> tuple[int, ...]:
    """Lengths of the bar: usual ones, and drawn ones, short and long ones alike."""
    drawn = np.exp(np.random.default_rng(_SEED).uniform(np.log(5), np.log(900), 12)).astype(int).tolist()
    return tuple(sorted({17, 49, 128, 192, 577, *drawn}))


class Case(NamedTuple):
    """One kernel of the table."""

    op: RowOp
    form: KernelForm
    length: int


Counts = Mapping[Case, float]


def k2(console: Console, *, fit: bool = False) -> list[Row]:
    """Count all forms, and compare the chosen one with the best."""
    found = [_core(name, console, fit=fit) for name in (*_LINUX, *_BOARDS)]
    return [row for row in found if row is not None]


def _core(name: str, console: Console, *, fit: bool) -> Row | None:
    claim = (
        f"on {name}, the form that is chosen takes at most {_BAR} times the best of polynomial, table, float"
    )
    if missing := _missing(name):
        return Row("K2", claim, f"not run: {missing}", False)
    with tempfile.TemporaryDirectory() as scratch:
        cases = _cases(FITTED, 0) if fit else _cases(lengths_of_bar(), _SEED)
        counts = _counted(name, cases, Path(scratch))
    if fit:
        found = {op: {form: _fitted(counts, op, form) for form in KernelForm} for op in RowOp}
        path = Path(costs.__file__).with_name("counted") / f"{name}.json"
        path.write_bytes(msgspec.json.encode(found) + b"\n")
        console.print(f"K2 written: {path}")
        return None
    worst, said = 1.0, []
    for op in RowOp:
        for length in lengths_of_bar():
            taken = chosen(name, op, length, tuple(KernelForm))
            each = {form: counts[Case(op, form, length)] for form in KernelForm}
            ratio = each[taken] / min(each.values())
            worst = max(worst, ratio)
            console.print(
                f"K2   {name:<10} {op:<10} {length:>4} "
                + " ".join(f"{form} {each[form] / length:8.2f}" for form in KernelForm)
                + f"  chosen {taken}, {ratio:.3f} times the best"
            )
        kinds = {chosen(name, op, length, tuple(KernelForm)) for length in lengths_of_bar()}
        said.append(f"{op} {' or '.join(sorted(kinds))}")
    lengths = f"over {len(lengths_of_bar())} lengths"
    ours = f"{name}: {', '.join(said)}; at worst {worst:.3f} times the best, {lengths}"
    return Row("K2", claim, ours, worst <= _BAR)


def _fitted(counts: Counts, op: RowOp, form: KernelForm) -> Cost:
    rows = [counts[Case(op, form, n)] for n in FITTED]
    element = (rows[-1] - rows[-2]) / (FITTED[-1] - FITTED[-2])
    return Cost(tuple(round(one, 1) for one in rows[:-1]), round(element, 3))


def _missing(name: str) -> str:
    if name in _BOARDS:
        return str(missing_tools())
    compiler, _, emulator = _LINUX[name]
    gone = [one for one in (compiler, emulator[0], "gcc") if shutil.which(one) is None]
    return f"{', '.join(gone)} not found: apt-get install {_PACKAGES}" if gone else ""


def _cases(lengths: Sequence[int], seed: int) -> dict[Case, RowKernel]:
    rng = np.random.default_rng(seed)
    scores, given, made = np.exp(rng.uniform(np.log(0.02), np.log(0.1), 3)).tolist()
    found: dict[Case, RowKernel] = {}
    for length in lengths:
        gamma, beta = rng.normal(1, 0.2, length).tolist(), rng.normal(0, 0.2, length).tolist()
        for op, forms in (
            (RowOp.SOFTMAX, softmax_forms(scores, length)),
            (RowOp.GELU, gelu_forms(given, made, length)),
            (RowOp.LAYER_NORM, norm_forms(gamma, beta, 0.03)),
        ):
            found |= {Case(op, form, length): make() for form, make in forms.items()}
    return found


def _counted(name: str, cases: Mapping[Case, RowKernel], here: Path) -> Counts:
    """Instructions of one row of every kernel."""
    _write(cases, here)
    counted = _on_board(_BOARDS[name], here) if name in _BOARDS else _on_linux(name, len(cases), here)
    return {case: count / _ROWS for case, count in zip(cases, counted, strict=True)}


def _write(cases: Mapping[Case, RowKernel], here: Path) -> None:
    kernels = list(cases.values())
    calls = []
    for number, kernel in enumerate(kernels):
        read = "x8" if kernel.source == "int8_t" else "x16"
        wrote = (
            "u8" if (kernel.into if isinstance(kernel, FloatRows) else kernel.target) == "uint8_t" else "y8"
        )
        calls.append(f"case {number}: {kernel.name}({read}, {wrote}, {_ROWS}); break;")
    text = [
        HEADER, *(emitted(one) for one in kernels if not isinstance(one, FloatRows)),
        float_section(one for one in kernels if isinstance(one, FloatRows)),
        f"#define ELEMENTS {_ROWS * max(case.length for case in cases)}", f"#define KERNELS {len(kernels)}",
        f"#define ALL_CASES {' '.join(calls)}", "",
    ]  # fmt: skip
    (here / "made.h").write_text("\n".join(text))
    shutil.copy(Path(__file__).with_name("c") / "forms_main.c", here)


def _on_linux(name: str, num_kernels: int, here: Path) -> list[float]:
    compiler, flags, emulator = _LINUX[name]
    command = [compiler, "-O3", *flags, "-static", "-Wall", "-Wextra", "-o", str(here / "forms")]
    execute([*command, str(here / "forms_main.c"), "-lm"], "building the kernels")
    source = Path(__file__).with_name("c") / "count.c"
    plugin = str(here / "count.so")
    execute(["gcc", "-shared", "-fPIC", "-O2", "-o", plugin, str(source)], "building the plugin")
    found = []
    for kernel in range(num_kernels):
        each = []
        for times in ("1", "3"):
            command = [*emulator, "-d", "plugin", "-plugin", plugin, str(here / "forms"), str(kernel), times]
            lines = execute(command, "running a kernel").splitlines()
            each.append(next(int(line.split()[1]) for line in lines if line.startswith("instructions")))
        found.append((each[1] - each[0]) / 2)
    return found


def _on_board(core: Core, here: Path) -> list[float]:
    board, flags = CORES[core]
    (here / "tightrope_micro.h").write_text(_HEADER)
    (here / "board.c").write_text(resource("board/board.c"))
    script = resource("board/link.ld").replace("LENGTH = TR_RAM", f"LENGTH = {_RAM}")
    (here / "link.ld").write_text(script.replace("TR_STACK", str(4 * STACK)))
    for name in ("storage.bin", "samples.bin"):
        (here / name).write_bytes(bytes(16))
    program = here / "forms.elf"
    command = [
        COMPILER,
        *FLAGS,
        *flags,
        "-DTR_STEPS=1",
        f"-DTR_TIMES={_TIMES}",
        f"-DTR_RAM={_RAM}u",
        f"-I{here}",
    ]
    command += [f"-Wl,-T,{here / 'link.ld'}", "-o", str(program), str(here / "forms_main.c"), "-lm"]
    execute(command, "building the kernels for the board")
    command = [EMULATOR, "-M", board, "-kernel", str(program), "-display", "none", "-serial", "none"]
    command += ["-monitor", "none", "-semihosting-config", "enable=on,target=native", "-icount", "shift=0"]
    lines = [line.split() for line in execute(command, "running the kernels", folder=here).splitlines()]
    ticks = [int(line[1], 16) % 2**32 for line in lines if line and line[0] == "kernel"]
    return [one * INSTRUCTIONS_PER_TICK / _TIMES for one in ticks]


_HEADER: Final = """#include <stdint.h>
#define TR_ARENA_BYTES 16u
#define TR_NUM_INPUTS 0
#define TR_SAMPLE_BYTES 16u
typedef struct { uint32_t offset, bytes; } tr_place;
extern const tr_place tr_inputs[];
typedef struct { uint64_t pages_in, bytes_in, pages_out, bytes_out; } tr_counters;
extern tr_counters tr_pages;
extern unsigned char tr_arena[TR_ARENA_BYTES];
void tr_storage_read(uint32_t offset, void *to, uint32_t bytes);
void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes);
float tightrope_step(void);
"""
