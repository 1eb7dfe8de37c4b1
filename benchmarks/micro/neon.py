"""K1: instructions of integer kernels on an ARMv7 core with NEON, beside strict float, under an emulator.

Shapes are those of DeiT-T: softmax of 591 rows of 197 scores, GELU of 197 x 768, layer norm of 197 rows of
192. Strict float is the textbook kernel with the C library's functions, compiled with the same flags (-O3,
without -ffast-math): from whole numbers to whole numbers, as it would stand in an integer net, for the bar;
and from floats to floats, which is printed too. Softmax looks powers up, GELU is a table. A plugin of QEMU
counts; a call is a run of three calls less a run of one, halved.
"""

import shutil
import tempfile
from math import prod
from pathlib import Path

import numpy as np

from benchmarks.micro.rows import Row
from tightrope_micro.host import execute
from tightrope_micro.integer import HEADER, emitted, gelu, layer_norm, proved, softmax
from tightrope_micro.integer.program import RowKind

_COMPILER, _EMULATOR, _HOST = "arm-linux-gnueabihf-gcc", "qemu-arm", "gcc"
_PACKAGES = "qemu-user gcc-arm-linux-gnueabihf"
_FLAGS = ("-O3", "-mcpu=cortex-a7", "-mfpu=neon-vfpv4", "-mfloat-abi=hard", "-static", "-Wall", "-Wextra")
_BARS = {"softmax": 5.0, "gelu": 10.0, "norm": 3.5}
_MEAN = 5.0


def k1() -> list[Row]:
    """Count and compare."""
    gone = [name for name in (_COMPILER, _EMULATOR, _HOST) if shutil.which(name) is None]
    if gone:
        return [
            Row("K1", "NEON", f"not run: {', '.join(gone)} not found: apt-get install {_PACKAGES}", False)
        ]
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        program = _built(here)
        counts = {
            f"{name}_{form}": _counted(program, here, f"{name}_{form}")
            for name in _BARS
            for form in ("converted", "float", "integer")
        }
        polynomial = _counted(program, here, "softmax_polynomial")
    gains = {name: counts[f"{name}_converted"] / counts[f"{name}_integer"] for name in _BARS}
    bare = {name: counts[f"{name}_float"] / counts[f"{name}_integer"] for name in _BARS}
    mean = prod(gains.values()) ** (1 / len(gains))
    ours = "; ".join(
        f"{name} {counts[f'{name}_converted']:,} and {counts[f'{name}_integer']:,}, {gains[name]:.2f} times "
        f"(from floats to floats {counts[f'{name}_float']:,}, {bare[name]:.2f} times)"
        for name in _BARS
    )
    held = mean >= _MEAN and all(gains[name] >= bar for name, bar in _BARS.items())
    claim = "instructions against strict float of the same types on ARMv7 with NEON: softmax >= 5, "
    claim += "GELU >= 10, layer norm >= 3.5 times fewer, geometric mean >= 5"
    return [
        Row("K1", claim, f"{ours}; geometric mean {mean:.2f}; softmax by a polynomial {polynomial:,}", held)
    ]


def _built(here: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = rng.normal(1, 0.2, 192).tolist(), rng.normal(0, 0.2, 192).tolist()
    kernels = [softmax(0.05, 197), softmax(0.05, 197, table=True), layer_norm(*weights, 0.03)]
    for kernel in kernels:
        proved(kernel)
    table = next(v.numbers for v in gelu(0.05, 0.05, 1).values if v.kind is RowKind.LOOKUP)
    sizes = "#define ELEMENTS 151296\n#define SM_ROWS 591\n#define SM_WIDTH 197\n#define GELU_COUNT 151296\n"
    sizes += "#define LN_ROWS 197\n#define LN_WIDTH 192\n"
    text = [HEADER, sizes, *map(emitted, kernels)]
    text.append(f"static const int8_t gelu_table[256] = {{{', '.join(map(str, table))}}};\n")
    (here / "made.h").write_text("\n".join(text))
    source = Path(__file__).with_name("c")
    program = here / "kernels"
    command = [_COMPILER, *_FLAGS, f"-I{here}", "-o", str(program), str(source / "kernels_main.c"), "-lm"]
    execute(command, "building the kernels")
    plugin = [_HOST, "-shared", "-fPIC", "-O2", "-o", str(here / "count.so"), str(source / "count.c")]
    execute(plugin, "building the plugin")
    return program


def _counted(program: Path, here: Path, name: str) -> int:
    """Instructions of one call."""
    found = []
    for times in (1, 3):
        command = [
            _EMULATOR,
            "-d",
            "plugin",
            "-plugin",
            str(here / "count.so"),
            str(program),
            name,
            str(times),
        ]
        said = execute(command, f"running {name}")
        found.append(
            next(int(line.split()[1]) for line in said.splitlines() if line.startswith("instructions"))
        )
    return (found[1] - found[0]) // 2
