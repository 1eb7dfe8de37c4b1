"""Say why no plan fits, which rows of the ledger take the bytes, and which budget works.

The first line has the budget that was given, the smallest that works, and the proved bound. The smallest
has room for a loop of any order; a second number is for loops that drop their gradients before each forward.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tightrope.core import Bytes, Graph, InfeasibleError, Kind, TightropeError, format_bytes, round_up
from tightrope.core.ledger import KindOfRow, Ledger, Row, Since, When
from tightrope.core.values import EMPTY
from tightrope.run.ledger.room import CAPTURE_SLACK, FIRST_TRY, HELD, RESERVE

_SCALARS: Final[Bytes] = 1024
_KINDS: Final = {
    Kind.PARAMETER: "parameters",
    Kind.BUFFER: "buffers",
    Kind.INPUT: "inputs",
    Kind.OPTIMIZER_STATE: "optimizer state held",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a refusal should know of the future.

    Attributes:
        gradients: bytes of gradients that may stay until the next step.
        summed: bytes of gradients of one backward while those of another are added to them.
        assumed: bytes of the state of AdamW, where no optimizer is known.
        update: bytes of gradients that are not there yet, and of what the next update makes.
        num_waiting: forwards that hold memory for a backward that did not run.
        held_first: bytes that were held when the model was planned first; None = this is the first time.
        least: a budget that is needed anyway.
        dropping: the same in a loop that drops its gradients before each forward.
        in_pieces: whether graphs may follow that were not seen yet.
        unplanned: what the step takes without a plan, as far as it was seen; 0 = it is not to be named.
        earlier: bytes that other forwards leave for the same backward where nothing is computed again.
        ahead: says who makes them.
        evicted: bytes that level E makes of the step: of the first, with hardly any eviction, so that it may
            be named; of a later one, with as much as can be. 0 = it cannot run.
        at_once: bytes that it needs at once, gradients that stay left out.
    """

    gradients: Bytes = 0
    summed: Bytes = 0
    assumed: Bytes = 0
    update: Bytes = 0
    num_waiting: int = 0
    held_first: Bytes | None = None
    least: Bytes = 0
    dropping: Bytes = 0
    in_pieces: bool = False
    unplanned: Bytes = 0
    earlier: Bytes = 0
    ahead: str = ""
    evicted: Bytes = 0
    at_once: Bytes = 0


def best_of(refused: Mapping[int, InfeasibleError], why_whole: str = "") -> InfeasibleError:
    """Find the refusal with the smallest budget, and bounds that hold for every number of chunks.

    Args:
        refused: number of chunks -> why no plan fits; 1 = the whole graph.
        why_whole: what keeps it from more chunks.
    """
    num, best = min(refused.items(), key=lambda item: (item[1].smallest_found or sys.maxsize, item[0]))
    others = [str(count) if count > 1 else "1 (whole)" for count in refused if count != num]
    bound = min(error.lower_bound for error in refused.values())
    said = str(best)
    if why_whole:
        said += f" The loss is not split into chunks of rows: {why_whole}."
    if others:
        said += (
            f" These are numbers for the loss in {num} chunks of rows; in {', '.join(others)} it is proved "
            f"to need at least {format_bytes(bound)}."
        )
    return InfeasibleError(  # a new one: what raises it keeps the others
        said,
        asked=best.asked,
        smallest_found=best.smallest_found,
        lower_bound=bound,
        op=best.op,
    )


def no_percentage(reason: str, enough: Bytes, held: Bytes) -> TightropeError:
    """Refuse a budget in percent, and name one in bytes: one that is enough by the shapes, else a guess."""
    said = f"a budget in percent needs a captured graph, and there is none: {reason}"
    if enough:
        return TightropeError(f"{said} Give bytes: by the shapes budget={enough} is enough, and less may be.")
    guess = f"budget={FIRST_TRY * held}: a guess, {FIRST_TRY} times what is held"
    return TightropeError(f"{said} Give bytes, such as {guess}.")


def is_for_eviction(error: InfeasibleError) -> bool:
    """Tell whether level E is likely to run what no plan fits for, within the same budget."""
    return 0 < error.by_eviction <= error.asked + CAPTURE_SLACK


def itemised(ledger: Ledger, graph: Graph) -> Ledger:
    """Divide what the process holds by what a graph says of it, where that accounts for no more than all."""
    given = {
        one.view.base for one in graph.parts[0].inputs if one.view is not None and one.view.base != EMPTY
    }
    storages = [graph.storages[base] for base in given if not graph.storages[base].home]
    sizes = {name: sum(one.size for one in storages if one.kind is kind) for kind, name in _KINDS.items()}
    held = sum(row.bytes for row in ledger.rows if row.name == HELD)
    if (rest := held - sum(sizes.values())) < 0:
        return ledger
    others = (row for row in ledger.rows if row.name != HELD)
    named = (Row(name, size) for name, size in sizes.items())
    return replace(ledger, rows=()).plus(*named, Row("other tensors held", rest), *others)


def with_loop(
    ledger: Ledger,
    *,
    loss: Bytes = 0,
    guessed: bool = True,
    between: Bytes = 0,
    outputs: Bytes = 0,
    state: Bytes = 0,
    assumed: bool = True,
    gradients: Bytes = 0,
    summed: Bytes = 0,
    spare: bool = True,
) -> Ledger:
    """Add the rows of the training loop around a plan.

    Args:
        ledger: of what is held now.
        loss: bytes of code outside of the model while the plan runs.
        guessed: whether that is a guess.
        between: bytes that such code takes when no part runs, with the outputs; 0 = not seen yet.
        outputs: bytes of outputs that the loop may keep.
        state: bytes of the optimizer's state.
        assumed: whether no optimizer is known, so that it is that of AdamW.
        gradients: bytes of gradients that may stay until the next step.
        summed: bytes of gradients of one backward while those of another are added to them.
        spare: whether the loop may keep more scalars than one, and a capture leaves something.
    """
    seen = When.RUN | When.BETWEEN
    return ledger.plus(
        Row("loss outside the model", loss, "guess" if guessed else "measured", moment=When.RUN),
        Row("code between forward and backward", between, moment=When.BETWEEN),
        Row("outputs kept by the loop", outputs, "forecast", since=Since.LATER),
        Row("optimizer state", state, *_STATE[assumed], since=Since.LATER),
        Row("gradients kept by the loop", gradients, "forecast", moment=seen, since=Since.KEPT),
        Row("gradients that are added up", summed, "forecast", moment=seen, since=Since.LATER),
        Row("scalars kept by the loop", _SCALARS if spare else round_up(1), "guess", since=Since.LATER),
        Row("left by a capture", (CAPTURE_SLACK - _SCALARS) * spare, "guess", since=Since.KEPT),
    )


_STATE: Final[dict[bool, tuple[KindOfRow, str]]] = {
    True: ("guess", "as of AdamW: no optimizer was found"),
    False: ("forecast", ""),
}


def if_dropping(ledger: Ledger, less: Bytes, found: Bytes) -> list[str]:
    """Say which budget works for a loop that drops its gradients before each forward, if it is smaller."""
    said = f"A loop that drops its gradients before each forward works with {ledger.written(less)}."
    return [said] if less < found - CAPTURE_SLACK else []


@dataclass(frozen=True)
class Refusal:
    """What a plan that does not fit shares the budget with.

    Attributes:
        ledger: rows of now and of what is to come.
        persistent: bytes of the graph's own that the caller holds; they are in the ledger, too.
        num_waiting: forwards that hold memory for a backward that did not run.
        grown: bytes held now and not when the step was planned first.
        later: whether a training step was completed.
        in_pieces: whether the model is a sequence of graphs, of which later ones were not seen.
        returns: whether control goes to the caller between forward and backward.
        unplanned: see `Expected`.
        earlier: see `Expected`.
        ahead: see `Expected`.
        evicted: see `Expected`.
        at_once: see `Expected`.
    """

    ledger: Ledger
    persistent: Bytes
    num_waiting: int = 0
    grown: Bytes = 0
    later: bool = False
    in_pieces: bool = False
    returns: bool = True
    unplanned: Bytes = 0
    earlier: Bytes = 0
    ahead: str = ""
    evicted: Bytes = 0
    at_once: Bytes = 0

    def needed(self, plan: Bytes) -> Bytes:
        """Return the budget for a plan of so many bytes in all, in a loop of any order."""
        return self.ledger.needed(plan - self.persistent)

    def dropping(self, plan: Bytes) -> Bytes:
        """Return the budget for it in a loop that drops its gradients before each forward.

        Less than that is refused, but for 1 KiB for scalars that a loop keeps, such as the last loss, and
        for what a capture takes of the reserve, at most `CAPTURE_SLACK`.
        """
        return self.ledger.needed(plan - self.persistent, keeps_gradients=False)

    def left(self, budget: Bytes) -> Bytes:
        """Return the bytes that a budget leaves such a loop for the plan, persistent ones in it."""
        return self.ledger.at(budget).room(later=True) + self.persistent

    def restated(self, error: InfeasibleError) -> InfeasibleError:
        """Restate the planner's numbers: other holders of memory included."""
        plan, how = error.smallest_found, _PLAN
        if plan is not None and self.earlier:
            plan, how = plan + self.earlier, _AFTER_OTHERS
        row = None if plan is None else Row("the step", plan - self.persistent, "forecast", how)
        refused = self.ledger.explain(
            row,
            bound=error.lower_bound - self.persistent + self.ledger.held() - RESERVE,
            op=error.op,
            roomy=self.unplanned,
            evicted=0 if self.later else self._by_eviction,
            instead="a smaller batch" if plan is None else "a smaller batch or a shorter sequence",
            notes=self._notes(plan),
        )
        refused.by_eviction = self._by_eviction
        return refused

    @property
    def _by_eviction(self) -> Bytes:
        """The budget for level E, which runs all that is known of the unplanned step; 0 = it cannot run."""
        if not self.evicted:
            return 0
        found = self.ledger.needed(self.evicted, keeps_gradients=False)
        found = max(found, self.ledger.needed(self.at_once))
        return min(found, self.ledger.whole) if self.ledger.whole else found

    def _notes(self, plan: Bytes | None) -> list[str]:
        """Say what the numbers do not hold for, and where to read on."""
        found = None if plan is None else self.needed(plan)
        notes = [] if found is None or plan is None else if_dropping(self.ledger, self.dropping(plan), found)
        if found is not None and self.in_pieces:
            notes.append(
                "It works for all graphs of the model."
                if self.ledger.least == found
                else "Later graphs of the model were not seen yet and may need more."
            )
        if self.grown:
            notes.append(f"{format_bytes(self.grown)} more are held than before the first step.")
        elif found is not None and self.returns and not self.num_waiting:
            notes.append(self.ahead or "This is for one forward before each backward.")
        if self.num_waiting:
            notes.append(
                f"{self.num_waiting} earlier forwards still hold what their backward needs: run it, drop "
                "their outputs, or call the model under torch.no_grad()."
            )
        return [*notes, _PAGE]


_PLAN: Final = "the smallest plan found"
_AFTER_OTHERS: Final = f"{_PLAN}, after other forwards"
_PAGE: Final = "More: docs/budget.md#refused"
