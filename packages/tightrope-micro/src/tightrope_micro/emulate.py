"""Build the C of a step for an emulated Cortex-M4F, run it behind a fence, and read back what it left.

Idea        The linker gets exactly the RAM that is asked for, so that a plan that is too large does not link.
            The memory protection unit lets nothing behind it be touched, so that a stray address stops the
            run. What the stack took shows in the pattern that the free RAM was filled with.
Source      Arm v7-M memory protection unit; QEMU's mps2-an386 with semihosting
Guarantee   A run that ends stayed inside the fence; its counts are those of the C, its weights are read from
            the file that it paged to.
Complexity  That of the run: about a second for 100 million multiply-accumulates.
Gaps        Instructions are counted, never cycles. The fence has at most seven regions. It stands up to one
            part in 128 below the limit where the plan leaves that much, else up to as much above it; what
            is linked ends at the limit in both cases, and the stack is measured.
"""

import os
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tightrope.core import Bytes, NativeError
from tightrope_micro.compile import Manifest, check_samples, read_manifest, values_of
from tightrope_micro.emit import PageCounts, resource
from tightrope_micro.host import execute, sources_of

COMPILER, SIZE, EMULATOR = "arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm"
PACKAGES: Final = "qemu-system-arm gcc-arm-none-eabi libnewlib-arm-none-eabi"
FLAGS: Final = (
    "-std=gnu11", "-mthumb", "-O3", "-ffp-contract=off", "-fno-math-errno", "-ffunction-sections", "-Wall",
    "-Wextra", "-Werror",
    "-nostartfiles", "-Wl,--gc-sections",
)  # fmt: skip
Core = Literal["cortex-m4f", "cortex-m3"]
CORES: Final[dict[Core, tuple[str, tuple[str, ...]]]] = {
    "cortex-m4f": ("mps2-an386", ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
    "cortex-m3": ("mps2-an385", ("-mcpu=cortex-m3", "-mfloat-abi=soft")),
}
"""Board that is emulated, and flags of the compiler. The second has no floating-point unit."""
INSTRUCTIONS_PER_TICK: Final = 40
"""One instruction is one nanosecond of the emulated clock, and the timer runs at 25 MHz."""
RAM_BASE: Final = 0x20000000
_REGIONS: Final = 7
_CODE_BYTES: Final[Bytes] = 4 << 20
"""Of the emulated board."""
_SMALLEST: Final[Bytes] = 32


@dataclass(frozen=True)
class BoardRun:
    """What a run left and counted.

    Attributes:
        losses: one per step.
        values: name -> bytes after the last step.
        pages: since the start, as counted by the C.
        arena: bytes of the array, as linked.
        static: bytes of all static RAM, the arena and the bench's own among them.
        stack: most bytes of the stack.
        rom: bytes of code and constants, the bench's own among them.
        ticks: of the timer during the steps; times `INSTRUCTIONS_PER_TICK` where instructions were counted.
        fence: bytes of RAM that the core could touch.
        outputs: of inference, what every call returned.
    """

    losses: tuple[float, ...]
    values: Mapping[str, bytes]
    pages: PageCounts
    arena: Bytes
    static: Bytes
    stack: Bytes
    rom: Bytes
    ticks: int
    fence: Bytes
    outputs: tuple[bytes, ...] = ()

    @property
    def ram(self) -> Bytes:
        """All RAM: static and stack."""
        return self.static + self.stack


class FenceError(NativeError):
    """The emulated core touched what the fence keeps from it.

    Attributes:
        address: that it touched.
    """

    def __init__(self, message: str, *, address: int = -1) -> None:
        super().__init__(message)
        self.address = address


def missing_tools() -> str:
    """Say which programs are missing and what installs them; empty when all are there."""
    gone = [name for name in (COMPILER, SIZE, EMULATOR) if shutil.which(name) is None]
    return f"{', '.join(gone)} not found: apt-get install {PACKAGES}" if gone else ""


def fenced(ram: Bytes) -> Bytes:
    """Round a limit down to what the fence can keep: a sum of at most seven powers of two.

    >>> fenced(235_000), fenced(262_144)
    (234880, 262144)
    """
    kept, left = 0, ram
    for _ in range(_REGIONS):
        if left < _SMALLEST:
            break
        largest = 1 << (left.bit_length() - 1)
        kept, left = kept + largest, left - largest
    return kept


def _ends(manifest: Manifest, ram: Bytes | None) -> tuple[Bytes, Bytes]:
    """Find where RAM ends for the linker, and where the fence stands."""
    limit = manifest.ram if ram is None else ram
    below = fenced(limit)
    if ram is not None or below >= manifest.total:
        return below, below
    unit = 1 << max(0, limit.bit_length() - _REGIONS)
    return limit // 8 * 8, -(-limit // unit) * unit


def run_on_board(
    folder: str | os.PathLike[str],
    samples: Sequence[bytes],
    *,
    ram: Bytes | None = None,
    count: bool = False,
    probe: int | None = None,
    core: Core = "cortex-m4f",
) -> BoardRun:
    """Build a step for the emulated board and run one step per sample.

    Args:
        folder: that `CompiledStep.write` wrote; its files are not changed.
        samples: inputs of every step, one behind the other as they lie in the slower tier.
        ram: bytes of RAM that the board has; default: the limit that the step was compiled for.
        count: count instructions; takes longer.
        probe: an address to write to before the first step, to see the fence.
        core: that is emulated.

    Raises:
        FenceError: the core touched what it may not.
        NativeError: a program is missing, the plan does not link, or the run failed.
    """
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    manifest = read_manifest(folder)
    check_samples(manifest, samples)
    end, fence = _ends(manifest, ram)
    with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
        here = Path(scratch)
        defines = [f"-DTR_STEPS={len(samples)}", *([f"-DTR_PROBE={probe}u"] if probe is not None else [])]
        program, rom = build(Path(folder), here, manifest, (end, fence), defines=defines, core=core)
        shutil.copyfile(Path(folder) / "storage.bin", here / "storage.bin")
        (here / "samples.bin").write_bytes(b"".join(samples))
        said = _emulate(program, here, CORES[core][0], count=count)
        return _read(manifest, said, (here / "storage.bin").read_bytes(), rom, fence)


def build(
    folder: Path,
    here: Path,
    manifest: Manifest,
    ends: tuple[Bytes, Bytes],
    *,
    defines: Sequence[str],
    core: Core,
) -> tuple[Path, Bytes]:
    """Link the library and the bench; returns the program, and its bytes of code and constants.

    Args:
        folder: of the library.
        here: folder to write to.
        manifest: of the library.
        ends: where RAM ends for the linker, and where the fence stands.
        defines: flags that say how many samples the bench brings.
        core: to build for.
    """
    ram, fence = ends
    script = resource("board/link.ld").replace("LENGTH = TR_RAM", f"LENGTH = {ram}")
    script = script.replace("TR_FLASH", str(min(manifest.flash, _CODE_BYTES) or _CODE_BYTES))
    (here / "link.ld").write_text(script.replace("TR_STACK", str(manifest.stack)))
    (here / "board.c").write_text(resource("board/board.c"))
    program = here / "step.elf"
    sources = [str(here / "board.c"), *(str(folder / name) for name in sources_of(manifest))]
    flags = [*FLAGS, *CORES[core][1], *defines, f"-DTR_RAM={fence}u", f"-I{folder}"]
    command = [COMPILER, *flags, f"-Wl,-T,{here / 'link.ld'}", "-o", str(program), *sources, "-lm"]
    execute(command, f"building the step for {ram} B of RAM")
    text, data, *_ = execute([SIZE, str(program)], "measuring the program").splitlines()[-1].split()
    return program, int(text) + int(data)


def emulated_ticks(program: Path, here: Path, board: str) -> int:
    """Run a program that `build` linked, with its files in a folder, and return the ticks that it counted.

    Raises:
        NativeError: it stopped before its end.
    """
    said = _emulate(program, here, board, count=True)
    rows = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
    if "ticks" not in rows:
        raise NativeError(f"the emulated program stopped before its end; it said: {said[-400:]!r}")
    return int(rows["ticks"], 16)


def _emulate(program: Path, here: Path, board: str, *, count: bool) -> str:
    command = [EMULATOR, "-M", board, "-kernel", str(program), "-display", "none", "-serial", "none"]
    command += ["-monitor", "none", "-semihosting-config", "enable=on,target=native"]
    command += ["-icount", "shift=0"] if count else []
    try:
        return execute(command, "running the emulated step", folder=here)
    except NativeError as error:
        _, fault, words = str(error).partition("fault ")
        if fault:
            address = int(words[8:16], 16)
            raise FenceError(
                f"the emulated core touched 0x{address:08x}, which the fence keeps from it. An address or "
                "the stack is outside the requested RAM.",
                address=address,
            ) from error
        raise


def _read(manifest: Manifest, said: str, storage: bytes, rom: Bytes, fence: Bytes) -> BoardRun:
    rows = [line.split() for line in said.splitlines() if len(line.split()) == 2]
    counts = {name: int(value, 16) for name, value in rows if name not in ("loss", "out")}
    wanted = {*PageCounts.__struct_fields__, "arena", "static", "stack", "ticks"}
    if not wanted <= set(counts):
        raise NativeError(f"the emulated step stopped before its end; it said: {said[-400:]!r}")
    losses = tuple(
        struct.unpack("<f", int(value, 16).to_bytes(4, "little"))[0] for name, value in rows if name == "loss"
    )
    said_bytes = bytes(int(value, 16) for name, value in rows if name == "out")
    size = manifest.net.returned if manifest.net is not None else 1
    outputs = tuple(said_bytes[at : at + size] for at in range(0, len(said_bytes), size))
    values = values_of(manifest, storage)
    pages = PageCounts(**{name: counts[name] for name in PageCounts.__struct_fields__})
    return BoardRun(
        losses, values, pages, counts["arena"], counts["static"], counts["stack"], rom, counts["ticks"],
        fence, outputs,
    )  # fmt: skip
