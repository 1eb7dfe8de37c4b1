"""Flash that code and constants take: linked, and refused where there is less."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tightrope.core import Bytes, InfeasibleError
from tightrope_micro.compile import CompiledStep
from tightrope_micro.emulate import COMPILER, SIZE, build

if TYPE_CHECKING:
    from tightrope_micro.infer import CompiledNet


def check_flash(compiled: "CompiledStep | CompiledNet") -> Bytes | None:
    """Refuse a library whose code and constants take more flash than the machine has.

    It is linked with the bench of the emulated board, where the compiler for that is there.

    Args:
        compiled: in memory.

    Returns:
        Bytes as linked; None where any number will do, or where no compiler for the board is there. The
        constants alone were checked by `compile_net`.

    Raises:
        InfeasibleError: names the bytes that are needed.
        NativeError: the library does not build.

    Example:
        >>> check_flash(compiled)  # doctest: +SKIP
    """
    promised = compiled.manifest
    limit = promised.flash
    if not limit or not (shutil.which(COMPILER) and shutil.which(SIZE)):
        return None
    with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
        here, ends = Path(scratch), (max(promised.ram, promised.total),) * 2
        folder, anything = compiled.write(here / "library"), replace(promised, flash=0)
        _, linked = build(folder, here, anything, ends, defines=["-DTR_STEPS=1"], core="cortex-m4f")
    if linked > limit:
        net = promised.net
        way = ", quantize the net (--integer)" if net is not None and net.output.dtype == "float32" else ""
        raise InfeasibleError(
            f"code and constants take {linked} B of flash; the limit is {limit} B (--flash, or the "
            f"machine's). Give more{way}, or take a smaller model.",
            asked=limit, smallest_found=linked, lower_bound=0 if net is None else net.constants,
        )  # fmt: skip
    return linked
