"""All nets of an application as one C library for a board, and what it takes there.

Idea        Nets run one after the other, so they are one net with all their results: one arena, one library.
            A plug-in writes it, found by the group ``tightrope.boards``. Its bits run the application here.
Guarantee   RAM, flash and time are of all nets together.
Gaps        Each call computes all nets. Inputs that are one tensor in ``samples`` are one on the board.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.core import Limits, Machine
from tightrope.core.plugins import absent, installed, loaded
from tightrope_differ.lines import quiet
from tightrope_differ.values.quality import BoardFigures, in_order


@dataclass(frozen=True)
class Board:
    """A board and its limits.

    Attributes:
        machine: with the flash that there is; 0 = any.
        limits: bytes of all RAM, and seconds of one call of all nets.
    """

    machine: Machine
    limits: Limits

    def lowered(self, nets: Mapping[str, nn.Module], samples: Mapping[str, Tensor]) -> "LoweredNets":
        """Write nets as one C library.

        Raises:
            TightropeError: no plug-in writes C, or an op of a net has no kernel.
        """
        make, joined = loaded("C for a board", check_plugin()), _Joined(nets, samples)
        with quiet():
            return LoweredNets(
                joined, make(joined.eval(), joined.samples, self.machine, self.limits.bytes[0])
            )


def check_plugin() -> tuple[EntryPoint, ...]:
    """Find what writes C for boards.

    Raises:
        TightropeError: no plug-in does.
    """
    found = installed("tightrope.boards")
    if not found:
        raise absent("C for a board", "micro")
    return next(iter(found.values()))


class _Joined(nn.Module):
    """All results of several nets, one behind the other; a tensor that several nets read is one input."""

    def __init__(self, nets: Mapping[str, nn.Module], samples: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.samples = list({id(samples[name]): samples[name] for name in nets}.values())
        at = {id(sample): k for k, sample in enumerate(self.samples)}
        self.read = {name: at[id(samples[name])] for name in nets}
        self.places: dict[str, slice] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.nets, end = nn.ModuleList(), 0
        for name, net in nets.items():
            plain = _with_plain_pools(net, samples[name])
            with torch.no_grad():
                self.shapes[name] = tuple(plain(samples[name][:1]).shape[1:])
            self.places[name] = slice(end, end := end + torch.Size(self.shapes[name]).numel())
            self.nets.append(plain)

    def forward(self, *given: Tensor) -> Tensor:
        """Give one row of numbers a sample."""
        made = [net(given[at]).flatten(1) for net, at in zip(self.nets, self.read.values(), strict=True)]
        return torch.cat(made, 1) if len(made) > 1 else made[0]


def _with_plain_pools(net: nn.Module, sample: Tensor) -> nn.Module:
    """Copy a net; its adaptive pools whose windows are of one size become plain ones, with equal results."""
    made, sizes = copy.deepcopy(net).eval(), dict[str, tuple[int, ...]]()
    pools = {name: one for name, one in made.named_modules() if type(one) is nn.AdaptiveAvgPool2d}

    def seen(name: str) -> Any:
        return lambda _, given: sizes.__setitem__(name, tuple(given[0].shape[-2:]))

    hooks = [one.register_forward_pre_hook(seen(name)) for name, one in pools.items()]
    with torch.no_grad():
        made(sample[:1])
    for hook in hooks:
        hook.remove()
    for name, one in pools.items():
        new = one.output_size if isinstance(one.output_size, tuple) else (one.output_size,) * 2
        ends = [_window(old, size) for old, size in zip(sizes.get(name, ()), new, strict=False)]
        found = [one for one in ends if one is not None]
        if name and len(found) == 2:
            (high, down), (wide, across) = found
            made.set_submodule(name, nn.AvgPool2d((high, wide), (down, across)))
    return made


def _window(old: int, new: int | None) -> tuple[int, int] | None:
    """Give width and stride of the windows of an adaptive pool; None where they are of several."""
    size = new or old
    ends = [(at * old // size, -(-(at + 1) * old // size)) for at in range(size)]
    widths = {end - first for first, end in ends}
    strides = {two[0] - one[0] for one, two in pairwise(ends)} or {1}
    return (widths.pop(), strides.pop()) if len(widths) == len(strides) == 1 else None


class LoweredNets:
    """Nets as C, which run here with the bits of the board.

    Attributes:
        figures: what they take.
        made: of the plug-in: `call`, `measure` and `write`.
    """

    def __init__(self, joined: _Joined, made: Any) -> None:
        self.joined, self.made = joined, made
        self.figures = BoardFigures(made.numbers, made.ram, made.flash, made.seconds)
        self._last: tuple[list[Tensor], Tensor] | None = None

    def nets(self) -> dict[str, nn.Module]:
        """Give a module for each net."""
        return {name: _LoweredNet(self, name) for name in self.joined.read}

    def results(self, name: str, batch: Tensor) -> Tensor:
        """Give what one net returns; what was computed for the same inputs is not computed again."""
        given = [x[:1].expand(len(batch), *x.shape[1:]) for x in self.joined.samples]
        given[self.joined.read[name]] = batch.detach()
        if self._last is None or not all(map(torch.equal, self._last[0], given)):
            self._last = [x.clone() for x in given], self.made.call(*given)
        return self._last[1][:, self.joined.places[name]].reshape(-1, *self.joined.shapes[name])

    def measured(self) -> BoardFigures:
        """Run one sample on the emulated board, and give what it took.

        Raises:
            NativeError: a program is missing, or the board answers otherwise.
        """
        ram, flash, instructions = self.made.measure(*self.joined.samples)
        return BoardFigures(self.figures.numbers, ram, flash, self.figures.seconds, instructions)

    def write(self, folder: Path, limits: Limits, values: Mapping[str, float]) -> None:
        """Write the library, whose plan keeps the limits and says the metrics that were measured.

        Raises:
            TightropeError: the folder holds something else, or a limit is broken.
        """
        assert limits.quality is not None
        found = in_order(limits.quality.metrics, values)
        self.made.write(folder, limits.quality, found, limits.seconds)


class _LoweredNet(nn.Module):
    def __init__(self, of: LoweredNets, name: str) -> None:
        super().__init__()
        self.of, self.name = of, name

    def forward(self, batch: Tensor) -> Tensor:
        return self.of.results(self.name, batch)
