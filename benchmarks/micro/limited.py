"""M4: limits of RAM, flash and stack to the byte, on drawn nets in float and in integers.

The smallest limit that a refusal names is linked for the emulated board; one byte less is
refused. Of RAM it may fit in another form, such as bands of rows, and then has to link.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from msgspec.structs import replace
from rich.console import Console

from benchmarks.micro.rows import Row
from benchmarks.micro.single_ops import MAP, drawn, ready
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError, NativeError, TightropeError
from tightrope_micro.emulate import missing_tools
from tightrope_micro.flash import check_flash
from tightrope_micro.infer import capture_net, compile_net, ranges_of
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_MACHINE, _RAM, _STACK = "nrf52840", 128 * 1024, 4096
_ROOM: Final = 1 << 20
"""Bytes of flash beyond the constants: more than code takes."""


def m4(console: Console, trials: int) -> list[Row]:
    """Count limits that hold, among ``trials`` compilations."""
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    done = held = failed = seed = 0
    while done < trials:
        torch.manual_seed(seed)
        model, samples = ready(drawn(seed), seed), [[torch.randn(MAP)] for _ in range(8)]
        seed += 1
        for whole in (False, True):
            try:
                net: Any = capture_net(model, samples[0])
                ranges = ranges_of(net, samples) if whole else {}
                net = quantize_within(net, ranges, samples, STREAM_ERROR) if whole else net
            except TightropeError:
                continue  # refused by name; M3 counts these
            for name, good, count in _tried(net):
                done, held = done + count, held + good * count
                if not good:
                    failed += 1
                    console.print(f"net {seed - 1}, {'int8' if whole else 'float'}: {name} does not hold")
    words = f"{held} of {done} compilations as they should be, {failed} limits of {seed} nets do not hold"
    return [Row("M4", "one byte less is refused, the named limit links", words, not failed)]


def _tried(net: Any) -> list[tuple[str, bool, int]]:
    """Each limit: its name, whether it holds, and how many compilations that took."""
    machine = find_machine(_MACHINE)
    wide = replace(machine, flash=len(net.constants.data) + _ROOM)

    def fits(machine: Any = wide, ram: int = _RAM, stack: int = _STACK) -> int:
        return check_flash(compile_net(net, machine, ram=ram, stack=stack)) or 0

    linked = fits()
    return [
        ("RAM", _holds(lambda limit: fits(ram=limit), _named(lambda: fits(ram=1)), exact=False), 3),
        ("stack", _holds(lambda limit: fits(stack=limit), _named(lambda: fits(stack=1))), 3),
        ("flash", _holds(lambda limit: fits(replace(machine, flash=limit)), linked), 2),
    ]


def _named(run: Callable[[], object]) -> int:
    """The limit that a refusal names; 0 = it was not refused."""
    try:
        run()
    except InfeasibleError as error:
        return error.smallest_found or 0
    return 0


def _holds(run: Callable[[int], object], limit: int, *, exact: bool = True) -> bool:
    """Whether a limit links, and one byte less is refused, or links in another form where it may."""
    if not limit:
        return False
    try:
        run(limit)
    except TightropeError:
        return False
    try:
        run(limit - 1)
    except InfeasibleError:
        return True
    except NativeError:
        return False
    return not exact
