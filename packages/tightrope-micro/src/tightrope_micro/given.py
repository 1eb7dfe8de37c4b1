"""Arguments of a run as the call of a kernel needs them: pointers, sizes, numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from tightrope.core import Argument, Items, Run, View
from tightrope_micro.translator import whole_numbers

Pointer = Callable[[View | None], str]
"""Writes where a tensor lies: in the arena, or among the constants."""


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments of a run, by position."""

    run: Run
    pointer: Pointer

    def at(self, *positions: int) -> list[str]:
        """Pointers to arguments."""
        return [self.pointer(self.view(k)) for k in positions]

    def made(self, position: int = 0) -> list[str]:
        """The pointer to a result."""
        return [self.pointer(self.made_view(position))]

    def made_view(self, position: int = 0) -> View:
        """A result: made here, or by the first tile of the weight."""
        into = dict(self.run.keywords).get("out")
        if not self.run.target.endswith(".into"):
            return self.run.results[position].view
        assert isinstance(into, View)
        return into

    def view(self, position: int) -> View | None:
        """A tensor, or None."""
        value = self.run.arguments[position]
        assert value is None or isinstance(value, View)
        return value

    def shape(self, position: int) -> tuple[int, ...]:
        """Sizes of an argument."""
        value = self.view(position)
        assert value is not None
        return value.shape

    def result(self, position: int = 0) -> tuple[int, ...]:
        """Sizes of a result."""
        return self.made_view(position).shape

    def value(self, position: int) -> Argument:
        """A number."""
        return self.run.arguments[position]

    def pairs(self, *positions: int) -> list[int]:
        """Heights and widths, one behind the other."""
        return [
            n for k in positions if isinstance(self.value(k), Items) for n in whole_numbers(self.value(k))
        ]

    def rule(self) -> str:
        """The numbers of an update, which stand last."""
        if kernel_name(self.run).endswith("_adamw"):
            v, rates = self.at(-8, -7)
            *rates_of, up = self.run.arguments[-6:]
            said = ", ".join((v, rates, *map(number, rates_of)))
            return f"(tr_adamw){{{said}, {int(bool(up))}}}"
        rate, momentum, decay, nesterov, maximize = self.run.arguments[-5:]
        numbers = ", ".join(number(value) for value in (rate, momentum, decay))
        return f"(tr_rule){{{numbers}, {int(bool(nesterov))}, {int(bool(maximize))}}}"


def kernel_name(run: Run) -> str:
    """Name of the kernel of a run, the same where it writes over an input or into what another tile made.

    >>> kernel_name(Run(0, "micro.relu.over")), kernel_name(Run(0, "micro.conv2d.into"))
    ('relu', 'conv2d')
    """
    return run.target.removeprefix("micro.").removesuffix(".over").removesuffix(".into")


def number(value: Argument) -> str:
    """A number as C reads it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AssertionError(value)
    return str(value) if isinstance(value, int) else c_float(value)


def c_float(value: float) -> str:
    """A float as C reads it back to the same bits.

    >>> c_float(0.1), c_float(1.0)
    ('0.1f', '1.0f')
    """
    text = f"{value:.9g}"
    return f"{text}f" if any(mark in text for mark in ".en") else f"{text}.0f"


def count_of(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    count = 1
    for size in shape:
        count *= size
    return count
