"""Build a library for this computer and for an emulated Cortex-M4F, run it, and count.

Idea        The bench is built twice, with the library and without; what is counted is the difference, so
            boot,
            storage and the window are no part of it. The sum of everything is told too.
Source      QEMU's mps2-an386, by the board of `tightrope_micro.emulate`
Guarantee   Counts are those of the C that was written; nothing is modelled.
Complexity  That of the run: well under a second.
Gaps        Instructions, never cycles.
"""

import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tightrope.core import Bytes, NativeError, TightropeError
from tightrope_micro.emit import resource
from tightrope_micro.emulate import (
    COMPILER,
    EMULATOR,
    INSTRUCTIONS_PER_TICK,
    SIZE,
    missing_tools,
)
from tightrope_micro.host import FLAGS as HOST_FLAGS
from tightrope_micro.host import c_compiler, execute
from tightrope_micro.sensor.dataset import Floats
from tightrope_micro.sensor.library import SensorManifest, read_sensor_manifest

FLAGS: Final = (
    "-std=gnu11", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-O2",
    "-ffp-contract=off", "-fno-math-errno", "-fno-tree-loop-distribute-patterns", "-ffunction-sections",
    "-fdata-sections", "-Wall", "-Wextra", "-Werror", "-nostartfiles", "-Wl,--gc-sections",
)  # fmt: skip
BOARD_RAM: Final[Bytes] = 262_144
STACK: Final[Bytes] = 2048


@dataclass(frozen=True)
class SensorHost:
    """What a run on this computer gave.

    Attributes:
        features: (windows, features).
        scores: (windows, classes).
        found: class per window; empty without a net.
        arena: bytes, as compiled.
    """

    features: Floats
    scores: Floats
    found: tuple[int, ...]
    arena: Bytes


@dataclass(frozen=True)
class SensorBoard:
    """What a run on the emulated board took.

    Attributes:
        ram: bytes of static RAM of the library.
        rom: bytes of code and constants of the library.
        instructions: of one window.
        stack: most bytes of the stack, the bench's part among them.
        everything: bytes of RAM with the window, the bench and the stack.
        rom_everything: bytes of code and constants with the bench's.
        outputs: scores, or features without a net: (windows, outputs).
    """

    ram: Bytes
    rom: Bytes
    instructions: int
    stack: Bytes
    everything: Bytes
    rom_everything: Bytes
    outputs: Floats


def manifest_of(folder: str | os.PathLike[str]) -> SensorManifest:
    """Read the manifest of a library.

    Raises:
        TightropeError: the folder holds none.
    """
    found = read_sensor_manifest(folder)
    if found is None:
        raise TightropeError(
            f"{str(folder)!r} holds no pipeline: give a folder of tightrope micro tune or dsp."
        )
    return found


def samples_of(folder: str | os.PathLike[str], manifest: SensorManifest) -> Floats:
    """Read the windows that the benches run: (windows, rows, axes).

    Raises:
        TightropeError: they are not as many as the manifest says.
    """
    pipeline = manifest.pipeline
    data = (Path(folder) / "windows.bin").read_bytes()
    shape = (manifest.num_windows, pipeline.rows, pipeline.axes)
    if len(data) != 4 * math.prod(shape):
        raise TightropeError(f"windows.bin in {str(folder)!r} is not as promised: write the library again.")
    return np.frombuffer(data, dtype="<f4").astype(np.float64).reshape(shape)


def sensor_on_host(folder: str | os.PathLike[str]) -> SensorHost:
    """Run a library over its windows on this computer.

    Raises:
        NativeError: there is no C compiler, or building or running failed.
    """
    compiler = c_compiler()
    if compiler is None:
        raise NativeError("no C compiler was found (cc, gcc or clang): install one, or name it in $CC.")
    manifest, here = manifest_of(folder), Path(folder)
    with tempfile.TemporaryDirectory(prefix="tightrope-sensor-") as scratch:
        program = Path(scratch) / "sensor"
        sources = [str(here / name) for name in ("sensor.c", "sensor_kernels.c", "host_main.c")]
        execute(
            [compiler, *HOST_FLAGS, "-o", str(program), *sources], "building the library for this computer"
        )
        words = [str(program), str(here / "windows.bin"), str(manifest.num_windows)]
        lines = execute(words, "running the library").splitlines()
    arena, num = int(lines[0].split()[1]), manifest.pipeline.num_features
    rows = np.array([[float(word) for word in line.split()] for line in lines[1:]])
    classes = len(manifest.pipeline.classes)
    found = tuple(int(one) for one in rows[:, -1]) if classes else ()
    return SensorHost(rows[:, :num], rows[:, num : num + classes], found, arena)


def sensor_on_board(folder: str | os.PathLike[str]) -> SensorBoard:
    """Run a library over its windows on the emulated board, and count.

    Raises:
        NativeError: a program is missing, or building or running failed.
    """
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    manifest = manifest_of(folder)
    with tempfile.TemporaryDirectory(prefix="tightrope-sensor-") as scratch:
        here = Path(scratch)
        empty = _counts(Path(folder), here, manifest, with_library=False)
        full = _counts(Path(folder), here, manifest, with_library=True)
        stored = (here / "storage.bin").read_bytes()
    window = 4 * manifest.pipeline.rows * manifest.pipeline.axes
    out = len(manifest.pipeline.classes) or manifest.pipeline.num_features
    outputs = np.frombuffer(stored[window:], dtype="<f4").astype(np.float64).reshape(-1, out)
    spent = (full["ticks"] - empty["ticks"]) * INSTRUCTIONS_PER_TICK
    return SensorBoard(
        full["static"] - empty["static"], full["rom"] - empty["rom"], round(spent / manifest.num_windows),
        full["stack"], full["static"] + full["stack"], full["rom"], outputs,
    )  # fmt: skip


def _counts(folder: Path, here: Path, manifest: SensorManifest, *, with_library: bool) -> dict[str, int]:
    pipeline = manifest.pipeline
    out = len(pipeline.classes) or pipeline.num_features
    (here / "tightrope_micro.h").write_text(_bench_header(4 * pipeline.rows * pipeline.axes))
    for name in ("board/board.c", "sensor/board_step.c"):
        (here / Path(name).name).write_text(resource(name))
    script = resource("board/link.ld").replace("LENGTH = TR_RAM", f"LENGTH = {BOARD_RAM}")
    (here / "link.ld").write_text(script.replace("TR_STACK", str(STACK)))
    (here / "storage.bin").write_bytes(b"")
    shutil.copyfile(folder / "windows.bin", here / "samples.bin")
    program = here / "sensor.elf"
    sources = [str(here / "board.c"), str(here / "board_step.c")]
    defines = [f"-DTR_RAM={BOARD_RAM}u", f"-DTR_STEPS={manifest.num_windows}", f"-I{here}", f"-I{folder}"]
    if with_library:
        sources += [str(folder / "sensor.c"), str(folder / "sensor_kernels.c")]
        defines.append("-DTR_PIPELINE")
    else:
        defines.append(f"-DTR_OUT_BYTES={4 * out}u")
    command = [COMPILER, *FLAGS, *defines, f"-Wl,-T,{here / 'link.ld'}", "-o", str(program), *sources]
    execute(command, "building the library for the emulated board")
    text, data, *_ = execute([SIZE, str(program)], "measuring the program").splitlines()[-1].split()
    command = [EMULATOR, "-M", "mps2-an386", "-kernel", str(program), "-display", "none", "-serial", "none"]
    command += ["-monitor", "none", "-semihosting-config", "enable=on,target=native", "-icount", "shift=0"]
    said = execute(command, "running the library on the emulated board", folder=here)
    rows = [line.split() for line in said.splitlines() if len(line.split()) == 2]
    found = {name: int(value, 16) for name, value in rows if name in ("ticks", "static", "stack")}
    if len(found) < 3:
        raise NativeError(f"the emulated run stopped before its end; it said: {said[-400:]!r}")
    return {**found, "rom": int(text) + int(data)}


def _bench_header(window: Bytes) -> str:
    """The header that the board's bench reads: a step whose one input is a window."""
    return f"""#include <stdint.h>
#define TR_ARENA_BYTES {window}u
#define TR_NUM_INPUTS 1
#define TR_SAMPLE_BYTES {window}u
typedef struct {{ uint32_t offset, bytes; }} tr_place;
extern const tr_place tr_inputs[];
typedef struct {{ uint64_t pages_in, bytes_in, pages_out, bytes_out; }} tr_counters;
extern tr_counters tr_pages;
extern unsigned char tr_arena[TR_ARENA_BYTES];
void tr_storage_read(uint32_t offset, void *to, uint32_t bytes);
void tr_storage_write(uint32_t offset, const void *from, uint32_t bytes);
float tightrope_step(void);
"""
