"""What goes between ranks, added to an order of computations: messages, gathers, reductions.

Idea        A send stands right behind what makes the value. Receives are posted in the order of the sends,
            each a few computations before it is needed and never later than one that was sent after it.
            Gathered parameters stay until the room for them is needed for others: those whose next use is
            farthest go (Belady), and the next stage's are fetched one visit ahead.
Source      L. A. Belady 1966 for the choice of what to drop.
Guarantee   Messages of a pair of ranks are received in the order in which they are sent. With room for two
            stages, each visit of a stage is gathered at most once; breadth-first orders gather 2V - 1 times.
Complexity  Linear in the actions, times the stages of a rank for gathers.
Gaps        Every receive is posted the same number of computations ahead.
"""

from collections.abc import Sequence

from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.values.ranks import StageWork


def with_wires(work: StageWork, orders: Orders, *, ahead: int = 2, rooms: int = 3) -> Orders:
    """Add messages, and for divided parameters gathers and reductions.

    Args:
        work: whose stages the orders compute.
        orders: computations of every rank.
        ahead: computations by which a receive is posted before its use.
        rooms: stages whose gathered parameters a rank has room for, at least 1.
    """
    sent = _sent(work, orders)
    rows = []
    for rank, row in enumerate(orders):
        received = _receives(work, rank, row, sent, ahead)
        gathers = _gathers(row, rooms) if work.sharded else {}
        last = {a.stage: at for at, a in enumerate(row) if a.kind in "BW"}
        out: list[Action] = []
        for at, action in enumerate(row):
            out += gathers.get(at, ())
            out += received.get(at, ())
            out.append(action)
            if (send := message_of(work, action)) is not None:
                out.append(send)
            if last.get(action.stage) == at:
                out.append(Action(action.stage, "REDUCE_GRAD"))
        out += gathers.get(len(row), ())
        rows.append(tuple(out))
    return tuple(rows)


def message_of(work: StageWork, action: Action) -> Action | None:
    """Find the send that follows a computation; None where its value stays on the rank."""
    stage, kind, micro = action
    owners = work.owners
    if kind == "F" and stage + 1 < len(owners) and owners[stage + 1] != owners[stage]:
        return Action(stage, "SEND_F", micro)
    if kind in "BI" and work.hands_back(stage) and owners[stage - 1] != owners[stage]:
        return Action(stage, "SEND_B", micro)
    return None


def _sent(work: StageWork, orders: Orders) -> dict[tuple[int, int], list[Action]]:
    """List the receives of every directed pair of ranks, in the order of the sends."""
    found: dict[tuple[int, int], list[Action]] = {}
    for rank, row in enumerate(orders):
        for action in row:
            if (send := message_of(work, action)) is not None:
                there = send.stage + (1 if send.kind == "SEND_F" else -1)
                receive = Action(there, "RECV" + send.kind[4:], send.micro_batch)
                found.setdefault((rank, work.owners[there]), []).append(receive)
    return found


def _receives(
    work: StageWork, rank: int, row: Sequence[Action], sent: dict[tuple[int, int], list[Action]], ahead: int
) -> dict[int, list[Action]]:
    """Say before which computation each receive is posted."""
    use = {
        Action(a.stage, "RECV_F" if a.kind == "F" else "RECV_B", a.micro_batch): at
        for at, a in enumerate(row)
        if a.kind != "W"
    }
    found: dict[int, list[Action]] = {}
    for (_, target), receives in sorted(sent.items()):
        if target != rank:
            continue
        latest = len(row)
        places = []
        for receive in reversed(receives):
            latest = min(latest, max(0, use.get(receive, len(row)) - ahead))
            places.append(latest)
        for receive, place in zip(receives, reversed(places), strict=True):
            found.setdefault(place, []).append(receive)
    return found


def _gathers(row: Sequence[Action], rooms: int) -> dict[int, list[Action]]:
    """Place gathers and drops before computations."""
    visits: list[tuple[int, int]] = []  # (first position, stage) of every run of computations of one stage
    for at, action in enumerate(row):
        if not visits or visits[-1][1] != action.stage:
            visits.append((at, action.stage))
    upcoming: dict[int, list[int]] = {}
    for number, (_, stage) in enumerate(visits):
        upcoming.setdefault(stage, []).append(number)
    found: dict[int, list[Action]] = {}
    held: list[int] = []

    def fetch(number: int, now: int, place: int, *, pinned: int) -> None:
        stage = visits[number][1]
        if stage in held:
            return
        if len(held) >= rooms:
            later = {one: next((k for k in upcoming[one] if k >= now), len(visits)) for one in held}
            out = max((one for one in held if one != pinned), key=lambda one: later[one], default=-1)
            if out < 0 or (later[out] <= number and number != now):
                return
            held.remove(out)
            found.setdefault(place, []).append(Action(out, "RESHARD"))
        held.append(stage)
        found.setdefault(place, []).append(Action(stage, "UNSHARD"))

    for number, (place, stage) in enumerate(visits):
        fetch(number, number, place, pinned=-1)
        for following in range(number + 1, min(number + rooms, len(visits))):
            fetch(following, number, place, pinned=stage)
        for one in [one for one in held if one != stage and upcoming[one][-1] < number]:
            held.remove(one)
            found.setdefault(place, []).append(Action(one, "RESHARD"))
    found.setdefault(len(row), []).extend(Action(one, "RESHARD") for one in held)
    return found
