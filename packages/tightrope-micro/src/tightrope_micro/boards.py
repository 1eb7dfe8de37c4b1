"""A net as C on a board, which `tightrope quality` finds by the group ``tightrope.boards``."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Final

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from tightrope.core import Bytes, InfeasibleError, Machine, NativeError, QualityLimit, UnsupportedOpError
from tightrope.judge.forecast import check_limits
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK, missing_tools, run_on_board
from tightrope_micro.flash import check_flash
from tightrope_micro.infer import CompiledNet, FloatNet, capture_net, compile_net
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.lowerings import HostNet, in_integers

_RAM: Final[Bytes] = 1 << 30
_FLASH: Final[Bytes] = 4 << 20
"""Of the emulated board."""


@dataclass(frozen=True)
class BoardNet:
    """A net as C for a board, with what it takes there.

    Attributes:
        compiled: in memory.
        numbers: ``int8`` or ``float32``.
        ram: bytes of arena, counters and stack, as planned.
        flash: bytes of code and constants as linked; of constants alone where they are too many, or where
            no compiler for the board is there.
        seconds: of one call, as modelled from the machine's rates.
        call: runs a batch of each input on this computer, with the bits of the board.
    """

    compiled: CompiledNet
    numbers: str
    ram: Bytes
    flash: Bytes
    seconds: float
    call: Callable[..., Tensor]

    def measure(self, *inputs: Tensor) -> tuple[Bytes, Bytes, int]:
        """Run one sample on the emulated board; give bytes of RAM and of flash, and instructions.

        Raises:
            NativeError: a program is missing, it touches RAM outside of the limit, or answers otherwise.
        """
        if missing := missing_tools():
            raise NativeError(f"{missing}.")
        first = [x[:1] for x in inputs]
        with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
            folder = self.compiled.write(Path(scratch) / "net")
            run = run_on_board(folder, [self.compiled.sample(*first)], count=True)
        found = torch.from_numpy(self.compiled.scores(run.outputs[0])).flatten()
        if not torch.equal(found, self.call(*first)[0]):
            raise NativeError("the emulated board answers otherwise than this computer.")
        return run.ram, run.rom, run.ticks * INSTRUCTIONS_PER_TICK

    def write(
        self,
        folder: str | os.PathLike[str],
        quality: QualityLimit,
        measured: Sequence[float],
        seconds: float | None = None,
    ) -> Path:
        """Write the library; its plan holds limits on quality and time, and the metrics that were measured.

        Raises:
            JudgeError: it takes longer, or its quality is outside of the limit.
            TightropeError: the folder holds something else, or cannot be written.
        """
        planned = self.compiled.planned
        forecast = replace(planned.plan.forecast, quality=tuple(measured))
        limits = replace(planned.plan.limits, seconds=seconds, quality=quality)
        plan = replace(planned.plan, forecast=forecast, limits=limits)
        check_limits(plan)
        limited = changed(planned, plan=plan)
        return changed(self.compiled, planned=limited).write(folder)


def board_net(net: nn.Module, samples: Sequence[Tensor], machine: Machine, ram: Bytes) -> BoardNet:
    """Write a net as C for a board: in integers where all ops have them, else in float32.

    Args:
        net: in evaluation mode; returns one row of numbers a sample.
        samples: a batch of each input; the ranges of integers come from them.
        machine: its flash goes into what is written; more than it has is told, and not refused.
        ram: bytes of all RAM. Where no plan fits them, what is returned takes more.

    Raises:
        UnsupportedOpError: an op has no kernel.
        NativeError: there is no C compiler for this computer.
    """
    found: FloatNet | IntegerNet = capture_net(net, [x[:1] for x in samples])
    with suppress(UnsupportedOpError):
        assert isinstance(found, FloatNet)
        found = in_integers(found, samples)
    anything = replace(machine, flash=0)
    try:
        compiled = compile_net(found, anything, ram=ram)
    except InfeasibleError:
        tiers = (replace(machine.tiers[0], bytes=_RAM), *machine.tiers[1:])
        compiled = compile_net(found, replace(anything, tiers=tiers), ram=_RAM)
    constants = len(found.constants.data)
    linked = constants
    if constants < min(machine.flash or _FLASH, _FLASH):
        wide = replace(compiled.manifest, flash=_FLASH)
        linked = check_flash(changed(compiled, manifest=wide)) or constants
    compiled = changed(compiled, manifest=replace(compiled.manifest, flash=machine.flash))
    manifest, numbers = compiled.manifest, "int8" if isinstance(found, IntegerNet) else "float32"
    return BoardNet(compiled, numbers, manifest.total, linked, manifest.seconds, HostNet(compiled))
