"""Who holds how many bytes of a budget: the one sum behind every plan, refusal and estimate.

Idea        A row says who holds bytes, at which moments of a training step, and since when. Three moments
            matter: a plan runs, the caller's code runs between its parts, the optimizer updates. A plan may
            take what the rows of now leave at the first moment. A budget to name has room for the rows
            that are still to come, too, at all three.
Guarantee   ``ledger.at(ledger.needed(plan)).room() >= plan``, whatever the rows are, and still so once rows
            to come are there (`Ledger.arrived`).
Complexity  Linear in the rows.
Gaps        Rows of one moment are added up, though some may never be held at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto
from typing import Final, Literal, TypeAlias

from tightrope.core.errors import InfeasibleError
from tightrope.core.units import Bytes, format_bytes

KindOfRow: TypeAlias = Literal["measured", "forecast", "guess"]


class When(Flag):
    """When in a training step bytes are held."""

    RUN = auto()
    BETWEEN = auto()
    UPDATE = auto()
    ALWAYS = RUN | BETWEEN | UPDATE


class Since(Enum):
    """From when on bytes are held.

    Attributes:
        NOW: they are held, or the next step holds them.
        LATER: a later step holds them.
        KEPT: a later step holds them in a loop that keeps its gradients until after the next forward.
    """

    NOW = auto()
    LATER = auto()
    KEPT = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes and who holds them.

    Attributes:
        name: who, for people.
        bytes: how many; a negative number gives back what another row counts twice.
        kind: how the number is known.
        source: where it comes from, for people.
        moment: when in a step they are held.
        since: from when on.
    """

    name: str
    bytes: Bytes
    kind: KindOfRow = "measured"
    source: str = ""
    moment: When = When.ALWAYS
    since: Since = Since.NOW

    def known(self) -> str:
        """Say how the number is known."""
        return f"{self.kind}: {self.source}" if self.source else self.kind


_PERCENT: Final = 100
_MAY: Final = "less may be enough"


@dataclass(frozen=True, slots=True)
class Ledger:
    """A budget and the rows that share it.

    Attributes:
        budget: total bytes.
        rows: who holds how many.
        least: a budget that is needed anyway.
        dropping: the same in a loop that drops its gradients before each forward; 0 = as `least`.
        asked: the budget as the user wrote it, where that is a percentage.
        whole: bytes that 100 % stands for; 0 = the budget is in bytes.

    Example:
        >>> ledger = Ledger(1000, (Row("weights", 300), Row("loss", 100, "guess", moment=When.RUN)))
        >>> ledger.room(), ledger.needed(900), ledger.at(1300).room()
        (600, 1300, 900)
    """

    budget: Bytes
    rows: tuple[Row, ...] = ()
    least: Bytes = 0
    dropping: Bytes = 0
    asked: str = ""
    whole: Bytes = 0

    def room(self, *, later: bool = False) -> Bytes:
        """Bytes that a plan may take now; ``later`` = once rows to come are there, but for those kept."""
        return self.budget - self._held(When.RUN, (Since.NOW, Since.LATER) if later else (Since.NOW,))

    def held(self) -> Bytes:
        """Bytes that are held now and at every moment."""
        return sum(row.bytes for row in self.rows if row.moment is When.ALWAYS and row.since is Since.NOW)

    def fits_update(self) -> bool:
        """Tell whether there is room for the next update of the optimizer."""
        return self._held(When.UPDATE, (Since.NOW,)) <= self.budget

    def needed(self, plan: Bytes, *, keeps_gradients: bool = True) -> Bytes:
        """Return the smallest budget for a plan of so many bytes, in a loop of any order.

        Args:
            plan: bytes of the plan alone.
            keeps_gradients: False = in a loop that drops its gradients before each forward.
        """
        since = tuple(Since) if keeps_gradients else (Since.NOW, Since.LATER)
        run, between, update = (self._held(moment, since) for moment in When.ALWAYS)
        least = self.least if keeps_gradients else self.dropping or self.least
        return max(least, plan + run, between, update)

    def _held(self, moment: When, since: tuple[Since, ...]) -> Bytes:
        return sum(row.bytes for row in self.rows if moment in row.moment and row.since in since)

    def at(self, budget: Bytes) -> "Ledger":
        """Share another budget."""
        return replace(self, budget=budget)

    def arrived(self) -> "Ledger":
        """Hold now what is to come."""
        return replace(self, rows=tuple(replace(row, since=Since.NOW) for row in self.rows))

    def plus(self, *rows: Row) -> "Ledger":
        """Add rows; those of no bytes are left out."""
        return replace(self, rows=(*self.rows, *(row for row in rows if row.bytes)))

    def percent(self, budget: Bytes) -> int:
        """Return the smallest whole percentage that stands for at least ``budget`` bytes.

        >>> Ledger(600, asked="60%", whole=1000).percent(601)
        61
        """
        assert self.whole > 0
        return (budget - 1) * _PERCENT // self.whole + 1

    def written(self, budget: Bytes) -> str:
        """Write a budget as the user may type it in: a percentage where the user gave one, else bytes."""
        return f'budget="{self.percent(budget)}%"' if self.whole else f"budget={budget}"

    def said(self) -> str:
        """Say which budget was given.

        >>> Ledger(600, asked="60%", whole=1000).said()
        '60% of 1000 B (600 B)'
        """
        plain = format_bytes(self.budget)
        return f"{self.asked} of {format_bytes(self.whole)} ({plain})" if self.whole else plain

    def explain(
        self,
        plan: Row | None,
        *,
        bound: Bytes = 0,
        op: str = "",
        roomy: Bytes = 0,
        evicted: Bytes = 0,
        instead: str = "a smaller batch",
        notes: Sequence[str] = (),
    ) -> InfeasibleError:
        """Say why the budget is too small, and name one that works: the answer first, then the rows.

        Args:
            plan: the smallest plan that is known; None = none is.
            bound: a budget below which none works (proved); 0 = nothing is.
            op: what sets the bound.
            roomy: about what the step takes without a plan: named first, where code outside of plans may
                need more than was seen; 0 = it is not named.
            evicted: a budget at which level E runs the step; 0 = none is known.
            instead: what else the user may try.
            notes: sentences for the last line.
        """
        found = None if plan is None else self.needed(plan.bytes)
        best, tries, named = "no feasible budget was found", instead, () if plan is None else (plan,)
        if found is not None:
            best = f"smallest feasible found {self._sized(found)}"
            tries = f"{self.written(found)}, {instead}"
            if roomy > found:
                tries = f"{self.written(roomy)}, which is about the step without a plan; or {tries}"
            if 0 < evicted < found:
                best = f"smallest feasible found {self._sized(evicted)} at level E"
                best += f", with a plan {self._sized(found)}"
                tries = f"{self.written(evicted)} for level E, {self.written(found)} for a plan, {instead}"
            if found == self.least:
                rest = found - sum(row.bytes for row in (*self.rows, *named))
                named = (*named, Row("the rest, by the shapes", rest, "forecast", _MAY))
        proved = f" (proved >= {format_bytes(bound)})" if bound else ""
        lines = [
            f"asked {self.said()}; {best}{proved}. Try {tries}.",
            *self.table(named),
            *([f"The op that sets the bound: {op}."] if op else []),
            *([" ".join(notes)] if notes else []),
        ]
        return InfeasibleError(
            "\n".join(lines), asked=self.budget, smallest_found=found, lower_bound=bound, op=op
        )

    def _sized(self, budget: Bytes) -> str:
        share = f"{self.percent(budget)}% = " if self.whole else ""
        return share + format_bytes(budget)

    def table(self, more: Iterable[Row] = (), *, most: int = 5) -> list[str]:
        """List rows with their bytes, the largest first, as lines for people.

        Args:
            more: rows to add, such as the plan's.
            most: number of lines; the smallest rows become one.
        """
        rows = sorted((row for row in (*self.rows, *more) if row.bytes > 0), key=lambda row: -row.bytes)
        if len(rows) > most:
            rest = rows[most - 1 :]
            names = ", ".join(row.name for row in rest[:3]) + ", ..." * (len(rest) > 3)
            rows = [*rows[: most - 1], Row("others", sum(row.bytes for row in rest), "forecast", names)]
        width = max((len(row.name) for row in rows), default=0)
        return [f"  {row.name:<{width}}  {format_bytes(row.bytes):>10}  {row.known()}" for row in rows]
