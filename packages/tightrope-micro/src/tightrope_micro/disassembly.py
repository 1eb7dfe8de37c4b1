"""Look into the machine code of a library for floating point: instructions, and calls for it."""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tightrope.core import NativeError
from tightrope_micro.compile import read_manifest
from tightrope_micro.emulate import Core, build, missing_tools
from tightrope_micro.host import execute

DISASSEMBLER: Final = "arm-none-eabi-objdump"
_CALL: Final = re.compile(
    r"<(__aeabi_c?[fd]\w+|__aeabi_\w+2[fd]|__\w+[sd]f[23]|\w*sqrtf?|expf?|erff?)(?:\+0x\w+)?>"
)
_INSTRUCTION: Final = re.compile(r"^\s*[0-9a-f]+:\t[0-9a-f ]+\t(\S+)")


class FloatUse(NamedTuple):
    """Floating point in a program.

    Attributes:
        instructions: of the floating-point unit.
        calls: of the float library.
        all: instructions that were looked at.
    """

    instructions: int
    calls: int
    all: int


def float_use(folder: str | os.PathLike[str], *, core: Core = "cortex-m3") -> FloatUse:
    """Build a compiled folder for a core and count what computes in floating point.

    Args:
        folder: that was compiled.
        core: to build for; one without a floating-point unit calls the float library instead.

    Raises:
        NativeError: a program is missing, or the library does not link.
    """
    missing = missing_tools()
    if not missing and shutil.which(DISASSEMBLER) is None:
        missing = f"{DISASSEMBLER} not found: apt-get install binutils-arm-none-eabi"
    if missing:
        raise NativeError(f"{missing}.")
    manifest = read_manifest(folder)
    with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
        ends = (1 << 20, 1 << 20)
        program, _ = build(Path(folder), Path(scratch), manifest, ends, defines=["-DTR_STEPS=1"], core=core)
        text = execute([DISASSEMBLER, "-d", str(program)], "disassembling the library")
    return counted(text)


def counted(text: str) -> FloatUse:
    r"""Count in a disassembly.

    >>> counted("  10:\t4770\tbx\tlr\n  12:\tee30 0a20\tvadd.f32\ts0, s0, s1\n")
    FloatUse(instructions=1, calls=0, all=2)
    """
    names = [found.group(1) for line in text.splitlines() if (found := _INSTRUCTION.match(line))]
    floating = [name for name in names if name.startswith("v") and not name.startswith("v.")]
    calls = sum(bool(_CALL.search(line)) for line in text.splitlines() if "\tb" in line)
    return FloatUse(len(floating), calls, len(names))
