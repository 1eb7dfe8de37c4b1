"""How well an application has to be served: metrics, its runs, and the region in which it works."""

from collections.abc import Mapping, Sequence

import msgspec

from tightrope.core import Bytes, Limits, TightropeError


class QualityMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of merit of a net, such as a mean error in degrees.

    Attributes:
        name: as the application calls it.
        best: its value where the net makes no mistake.
        worst: the largest error, or the smallest accuracy, that is tried.
    """

    name: str
    best: float
    worst: float


class QualityRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of the application with injected errors.

    Attributes:
        values: of the metrics, in their order.
        margin: above 0 = the application works.
        check: whether what it says was known if the application is monotone.
    """

    values: list[float]
    margin: float
    check: bool = False


class QualityRegion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where an application works: at metrics that are nowhere worse than those of an accepted run.

    Attributes:
        schema: of the file.
        target: the application.
        metrics: the axes.
        runs: all that were made, in order.
        accepted: numbers of the runs that work, without those that the others make needless.
        rejected: numbers of the runs that fail, likewise.
        accepted_share: part of the box between best and worst where the application works.
        rejected_share: part where it fails.
        clashes: pairs of a run that works and a run that fails though it is nowhere worse.
    """

    schema: int = 1
    target: str
    metrics: list[QualityMetric]
    runs: list[QualityRun]
    accepted: list[int]
    rejected: list[int]
    accepted_share: float
    rejected_share: float
    clashes: list[list[int]]


class BoardFigures(msgspec.Struct, frozen=True):
    """What all nets of an application take on a board.

    Attributes:
        numbers: ``int8`` or ``float32``.
        ram: bytes of all RAM, stack included.
        flash: bytes of code and constants.
        seconds: of one call of all nets, as modelled.
        instructions: of one call, counted on the emulated board; 0 = as planned, not run.
    """

    numbers: str
    ram: Bytes
    flash: Bytes
    seconds: float
    instructions: int = 0

    def broken(self, limits: Limits, flash: Bytes) -> list[str]:
        """Name the limits that they break; flash of 0 is any."""
        return [
            *(["ram"] if self.ram > limits.bytes[0] else []),
            *(["flash"] if 0 < flash < self.flash else []),
            *(["seconds"] if limits.seconds is not None and self.seconds > limits.seconds else []),
        ]


class TriedVariant(msgspec.Struct, frozen=True):
    """A choice of forms of an application's nets.

    Attributes:
        name: of the forms.
        flops: floating-point operations on the samples, of all nets.
        bytes: of parameters and buffers, of all nets.
        values: of the metrics as measured, on a board with what runs there; empty where no region was asked.
        margin: of a run of the application with these nets; None = it was not run.
        broken: limits that it breaks: ``quality``, ``ram``, ``flash``, ``seconds``; such forms are not run.
            ``runs``: it may be good enough, and the budget ended before it ran.
        board: what it takes on a board; None = not asked, or not worth it, as its quality is too low.
    """

    name: str
    flops: int
    bytes: int
    values: dict[str, float]
    margin: float | None
    broken: list[str] = []
    board: BoardFigures | None = None


class QualityReport(msgspec.Struct, frozen=True):
    """A region, and the forms of nets that were tried in it.

    Attributes:
        region: where the application works.
        goal: what was made small: ``flops`` or ``bytes``; empty where no forms were asked for.
        tried: in order; where the application works with the last, that is chosen.
        limits: quality, which is the region; on a board, all RAM and seconds too.
        flash: limit of a board; 0 = any.
        emulated: what the chosen forms take on the emulated board; None = none chosen, or not run there.
    """

    region: QualityRegion
    goal: str = ""
    tried: list[TriedVariant] = []
    limits: Limits = Limits()
    flash: Bytes = 0
    emulated: BoardFigures | None = None

    @property
    def chosen(self) -> TriedVariant | None:
        """The forms with which the application works."""
        last = self.tried[-1] if self.tried else None
        return last if last is not None and last.margin is not None and last.margin > 0 else None

    @property
    def excluding(self) -> tuple[list[str], list[TriedVariant]]:
        """The fewest limits without which forms would be left that are worth a run, and these forms.

        Of forms whose quality is too low by themselves nothing is known of the other limits; they count
        where there are no others.
        """
        known = [one for one in self.tried if one.board is not None] or self.tried
        fewest = min((one.broken for one in known if one.broken), key=len, default=[])
        return fewest, [one for one in known if one.broken == fewest]


def in_order(names: Sequence[str], values: Mapping[str, float]) -> tuple[float, ...]:
    """List the values of metrics.

    Raises:
        TightropeError: one is missing.
    """
    if missing := [one for one in names if one not in values]:
        raise TightropeError(f"no value of the metric {missing[0]!r}: measure all metrics of the region.")
    return tuple(values[one] for one in names)
