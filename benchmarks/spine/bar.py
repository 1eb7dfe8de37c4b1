"""What a bar is: cases that each run in a process of their own, rows, and a verdict.

A case yields rows of plain values as it measures them. The parent prints each row at once and,
when all cases are done, asks the bar for its verdicts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from benchmarks.zoo import Scale

Row: TypeAlias = dict[str, Any]
"""Plain values by name; ``net`` names the case, ``failed`` (if there) says why there are no figures."""

TEN = (
    "gpt2",
    "bert",
    "vit",
    "llama",
    "resnet18",
    "resnet50",
    "vgg16",
    "unet",
    "densenet121",
    "mobilenetv2",
)
"""The nets of the bars that ask for ten."""


class Settings(msgspec.Struct, frozen=True):
    """What the command line asked for.

    Attributes:
        scale: of the zoo's nets.
        quick: fewer pairs and repetitions.
        inductor: measure the Inductor peers too, which takes minutes.
        nets: run the bars that go over nets on these; empty = the bar's own choice.
    """

    scale: Scale = "bench"
    quick: bool = False
    inductor: bool = False
    nets: tuple[str, ...] = ()

    @property
    def num_pairs(self) -> int:
        """Pairs of a time ratio."""
        return 20 if self.quick else 40

    def choose(self, *nets: str) -> tuple[str, ...]:
        """Take the nets of the command line, else the given ones."""
        return self.nets or nets


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a bar is met (None = not measured here), with the figure that decides."""

    bar: str
    met: bool | None
    figure: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the row's field, its heading, its width and how a value is shown."""

    field: str
    heading: str
    width: int
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Bar:
    """One question, or several that one run answers.

    Attributes:
        ids: of the bars that it decides.
        title: what is measured.
        columns: of its table.
        cases: names; each is measured in a process of its own.
        rows: measures one case.
        verdicts: judges all rows, one verdict per id.
    """

    ids: tuple[str, ...]
    title: str
    columns: tuple[Column, ...]
    cases: Callable[[Settings], Sequence[str]]
    rows: Callable[[str, Settings], Iterator[Row]]
    verdicts: Callable[[Sequence[Row], Settings], list[Verdict]]


def share(value: float) -> str:
    """Show a ratio with three digits.

    >>> share(0.41)
    '0.410'
    """
    return f"{value:.3f}"


def count(values: Sequence[bool]) -> str:
    """Show how many of some checks passed.

    >>> count([True, False])
    '1/2'
    """
    return f"{sum(values)}/{len(values)}"
