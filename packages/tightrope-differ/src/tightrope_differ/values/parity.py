"""What a comparison of lowerings found, as values that become JSON."""

from typing import Final, Literal, TypeAlias

import msgspec

ParityStatus: TypeAlias = Literal["equal", "rounding", "differs", "flips", "no place", "missing", "stopped"]
JUDGED: Final = ("equal", "rounding", "differs", "flips")
FLAGGED: Final = ("differs", "flips")


class PartingPoint(msgspec.Struct, frozen=True):
    """The first op whose inputs agree and whose result does not.

    Attributes:
        stage: ``preprocessing`` or ``model``.
        op: as the lowering that is compared calls it.
        line: of the user's code that asked for it, ``FILE:LINE``.
        reference: op and line of the reference that no op of the other agrees with; empty = none.
        distance: largest difference from the nearest result, relative to the largest magnitude.
    """

    stage: str
    op: str
    line: str
    reference: str
    distance: float


class LoweringDifference(msgspec.Struct, kw_only=True):
    """One lowering against the reference, over the same images.

    Attributes:
        name: such as ``resize-opencv-bilinear``.
        group: such as ``resize``.
        status: ``equal``, ``rounding``, ``differs`` or ``flips``; or why nothing was judged: ``no place``
            in this pipeline, ``missing`` library, or ``stopped`` by an error.
        accepted: whether the user accepts what differs.
        images: compared.
        undecoded: images that the reference reads and this lowering does not; names of the first ten.
        distance: mean over images of the largest difference of logits, relative to the largest logit.
        largest: largest of it.
        flips: answers that changed.
        p: of McNemar's exact test of these flips against those of the null run.
        adjusted: the same after Holm's correction for all that was judged.
        accuracy: change in percentage points where folders are labels; None without labels.
        p_accuracy: of McNemar's exact test of right and wrong answers, not corrected.
        line: of the user's code where the lowering has its place.
        parting: first op at which values part.
        note: what else there is to say.
    """

    name: str
    group: str
    status: ParityStatus
    accepted: bool = False
    images: int = 0
    undecoded: list[str] = []
    distance: float = 0.0
    largest: float = 0.0
    flips: int = 0
    p: float = 1.0
    adjusted: float = 1.0
    accuracy: float | None = None
    p_accuracy: float | None = None
    line: str = ""
    parting: PartingPoint | None = None
    note: str = ""

    @property
    def flagged(self) -> bool:
        """Whether a reviewer has to decide: pin a lowering, or accept the risk."""
        return self.status in FLAGGED and not self.accepted


class ParityReport(msgspec.Struct, kw_only=True):
    """All differences, and what they are measured by.

    Attributes:
        target: that was compared.
        images: read by the reference.
        unread: images that the reference cannot read, with why; they are left out everywhere.
        null_flips: answers that changed in a second run of the same; 0, or nothing is judged.
        floor: largest relative distance of batches that were divided in another way.
        alpha: level of the tests.
        accuracy: of the reference in percent, where folders are labels.
        differences: in the order in which they were run.
    """

    target: str
    images: int
    unread: list[str]
    null_flips: int
    floor: float
    alpha: float
    accuracy: float | None
    differences: list[LoweringDifference]

    @property
    def flagged(self) -> list[LoweringDifference]:
        """What a reviewer has to decide on."""
        return [one for one in self.differences if one.flagged]
