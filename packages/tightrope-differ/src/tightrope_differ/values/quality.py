"""How well an application has to be served: metrics, its runs, and the region in which it works."""

import msgspec


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


class TriedVariant(msgspec.Struct, frozen=True):
    """A choice of forms of an application's nets.

    Attributes:
        name: of the forms.
        flops: floating-point operations on the samples, of all nets.
        bytes: of parameters and buffers, of all nets.
        values: of the metrics as measured; empty where no region was asked.
        margin: of a run of the application with these nets; None = it was not run.
    """

    name: str
    flops: int
    bytes: int
    values: dict[str, float]
    margin: float | None


class QualityReport(msgspec.Struct, frozen=True):
    """A region, and the forms of nets that were tried in it.

    Attributes:
        region: where the application works.
        goal: what was made small: ``flops`` or ``bytes``; empty where no forms were asked for.
        tried: in order; where the application works with the last, that is chosen.
    """

    region: QualityRegion
    goal: str = ""
    tried: list[TriedVariant] = []

    @property
    def chosen(self) -> TriedVariant | None:
        """The forms with which the application works."""
        last = self.tried[-1] if self.tried else None
        return last if last is not None and last.margin is not None and last.margin > 0 else None
