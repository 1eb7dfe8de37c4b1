"""A training of trees under limits: bytes on the wire, epsilon; promised, run, held against.

The plan is the number of bins: the most that keeps the bytes of a party within the limit. Over rows bytes
follow from shapes alone; over columns so does what they are at most. What does not fit with two bins per
feature is refused before anything is trained.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tightrope.core.arguments import check_seconds
from tightrope.core.errors import InfeasibleError, TightropeError
from tightrope.core.units import Bytes, format_bytes, parse_bytes
from tightrope_fleet.trees.bins import CutTable
from tightrope_fleet.trees.columns import check_columns, cut_columns, train_over_columns
from tightrope_fleet.trees.forest import Forest
from tightrope_fleet.trees.params import Boosting, Protection
from tightrope_fleet.trees.parties import PartyTable
from tightrope_fleet.trees.private import Privacy
from tightrope_fleet.trees.rows import agree_rows, train_over_rows
from tightrope_fleet.trees.wire import Wire, forecast_grow, least_rows, most_columns
from tightrope_fleet.values.work import Promise

_TRIED = (255, 191, 127, 95, 63, 47, 31, 23, 15, 11, 7, 5, 3, 2)


@dataclass(frozen=True, slots=True)
class TreeJob:
    """What is asked for.

    Attributes:
        params: the forest.
        split: parties hold different ``rows`` or different ``columns``.
        protection: ``none``, ``masks`` (rows) or ``paillier`` (columns).
        key_bits: of a Paillier key.
        wire_limit: bytes per party, both ways, while trees grow, also as ``"10MB"``; None = no limit.
        seconds_limit: CPU seconds of the whole training; checked, not planned.
        privacy: epsilon and what it needs.
    """

    params: Boosting
    split: Literal["rows", "columns"] = "rows"
    protection: Protection = "none"
    key_bits: int = 2048
    wire_limit: Bytes | str | None = None
    seconds_limit: float | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if self.seconds_limit is not None:
            check_seconds("seconds_limit", self.seconds_limit)
        if self.wire_limit is not None:
            parse_bytes(self.wire_limit, name="wire_limit")

    @property
    def most_bytes(self) -> Bytes | None:
        """The wire limit in bytes."""
        return None if self.wire_limit is None else parse_bytes(self.wire_limit, name="wire_limit")


@dataclass(frozen=True, slots=True)
class TreeResult:
    """What came of it.

    Attributes:
        forest: the model.
        params: with the bins that were chosen.
        cuts: of the features.
        wire: bytes by party and phase.
        seconds: CPU seconds of all parties and the server together.
        promises: limit, forecast and observed.
    """

    forest: Forest
    params: Boosting
    cuts: CutTable
    wire: Wire
    seconds: float
    promises: tuple[Promise, ...]


def run_tree_job(
    parties: Sequence[PartyTable],
    job: TreeJob,
    *,
    features: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> TreeResult:
    """Choose bins, train, and hold what happened against the limits.

    Raises:
        InfeasibleError: the wire limit is below what two bins per feature take.
        TightropeError: what was given does not go together.

    Example:
        >>> import numpy as np
        >>> table = np.arange(8, dtype=np.float32).reshape(8, 1)
        >>> party = PartyTable("all", table, (table[:, 0] > 3).astype(float))
        >>> result = run_tree_job([party], TreeJob(Boosting(trees=1, depth=1)))
        >>> result.forest.trees[0][0].cut
        4.0
    """
    params, forecast = job.params, None
    if job.split == "rows":
        params, forecast = _with_bins(parties, job)
    elif job.wire_limit is not None and job.protection == "paillier":
        raise TightropeError(
            "a wire limit cannot be promised with paillier: how many sums are sent depends on the rows. "
            "Leave the limit out, or use protection none."
        )
    elif job.protection == "none":
        check_columns(parties, params, job.protection)
        params, forecast = _with_bins(parties, job)
    wire, begun = Wire(), time.process_time()
    if job.split == "rows":
        if job.protection == "paillier":
            raise TightropeError(
                "protection='paillier' over rows: give none or masks; encryption is for columns."
            )
        masks = job.protection == "masks"
        forest, cuts, wire = train_over_rows(
            parties, params, features=features, masks=masks, privacy=job.privacy, wire=wire, progress=progress
        )
    else:
        forest, cuts, wire = train_over_columns(
            parties, params, features=features, protection=job.protection, key_bits=job.key_bits,
            privacy=job.privacy, wire=wire, progress=progress,
        )  # fmt: skip
    seconds = time.process_time() - begun
    most = max(wire.bytes_of(party.name) for party in parties)
    promises = [
        Promise("bytes per party while trees grow", "B", job.most_bytes, forecast, most),
        Promise("CPU time", "s", job.seconds_limit, None, seconds, hard=False),
    ]
    if job.privacy is not None:
        promises.append(Promise("epsilon", "", job.privacy.epsilon, job.privacy.epsilon, job.privacy.epsilon))
    return TreeResult(forest, params, cuts, wire, seconds, tuple(promises))


def _with_bins(parties: Sequence[PartyTable], job: TreeJob) -> tuple[Boosting, Bytes | None]:
    """Choose the most bins that keep bytes within the limit, and forecast them."""
    smallest, limit = 0, job.most_bytes
    for bins in [job.params.bins, *(one for one in _TRIED if one < job.params.bins)]:
        params = replace(job.params, bins=bins)
        smallest = _forecast(parties, params, job)
        if limit is None or smallest <= limit:
            return params, smallest if params.padded or job.split == "columns" else None
    assert limit is not None
    most = "up to " if job.split == "columns" else ""
    raise InfeasibleError(
        f"the limit is {format_bytes(limit)} per party; with 2 bins per feature "
        f"{job.params.trees} trees take "
        f"{most}{smallest} B. Allow that much, or fewer trees, a smaller depth, or growth by "
        "leaf (leaves=).",
        asked=limit,
        smallest_found=smallest,
        lower_bound=smallest if job.split == "rows" else 0,
    )


def _forecast(parties: Sequence[PartyTable], params: Boosting, job: TreeJob) -> Bytes:
    """Bytes of a party: exact over rows, at most over columns."""
    if job.split == "rows":
        return forecast_grow(params, int(agree_rows(parties, params, job.privacy).starts[-1]))
    rows, count = len(parties[0].table), len(parties)
    widths = [int(cuts.starts[-1]) for cuts in cut_columns(parties, params, job.privacy)]
    least = least_rows(params) if job.privacy is None else 0  # drawn splits may leave a child empty
    if parties[0].weights is not None or params.stop:
        least = min(least, 1)  # rows of any weight, and those held out, are moved too
    return max(
        (most_columns(params, rows=rows, bins=w, parties=count, least=least) for w in widths[1:]), default=0
    )
