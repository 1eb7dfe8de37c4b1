"""Flash that code and constants take: linked, and refused where there is less."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from tightrope.core import Bytes, InfeasibleError
from tightrope_micro.compile import CompiledStep
from tightrope_micro.emulate import COMPILER, SIZE, build

if TYPE_CHECKING:
    from tightrope_micro.infer import CompiledNet

_CODE: Final[Bytes] = 96 << 10
_PER_KERNEL: Final[Bytes] = 192
"""More than kernels and the bench take, and a call of one: what has room for both is not linked."""


def check_flash(compiled: "CompiledStep | CompiledNet") -> Bytes | None:
    """Refuse a library whose code and constants take more flash than the machine has.

    It is linked with the bench of the emulated board where that could be too much.

    Args:
        compiled: in memory.

    Returns:
        Bytes as linked; None where no compiler for the board is there, or where anything would fit.

    Raises:
        InfeasibleError: names the bytes that are needed.
        NativeError: the library does not build.

    Example:
        >>> check_flash(compiled)  # doctest: +SKIP
    """
    promised = compiled.manifest
    constants = promised.net.constants if promised.net is not None else 0
    limit = promised.flash
    if not limit or constants + _CODE + _PER_KERNEL * promised.num_ops <= limit:
        return None
    needed = constants
    linked = None
    if shutil.which(COMPILER) and shutil.which(SIZE):
        anything = replace(promised, flash=0)
        with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
            folder = compiled.write(Path(scratch) / "library")
            ends = (max(promised.ram, promised.total),) * 2
            _, linked = build(
                folder, Path(scratch), anything, ends, defines=["-DTR_STEPS=1"], core="cortex-m4f"
            )
        needed = linked
    if needed > limit:
        what = "code and constants take" if linked is not None else "the constants of the net alone take"
        way = (
            ", quantize the net (--integer)" if promised.net and "float" in promised.net.output.dtype else ""
        )
        raise InfeasibleError(
            f"{what} {needed} B of flash; the limit is {limit} B (--flash, or the machine's). Give "
            f"more{way}, or take a smaller model.",
            asked=limit, smallest_found=needed if linked is not None else None, lower_bound=constants,
        )  # fmt: skip
    return linked
