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
