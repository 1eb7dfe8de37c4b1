"""X1: right plans of all ranks, each with one mistake; the judge has to refuse every one."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from tightrope.core import (
    Collective,
    Executable,
    Instruction,
    JudgeError,
    PlanFileError,
    Recv,
    Release,
    Run,
    Send,
    Sync,
)
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline import Orders, breadth_first, gpipe, interleaved, looped, lower, with_wires
from tightrope_ranks.pipeline.language import Action
from tightrope_ranks.values.ranks import JointPlan, RankPlan, check_joint

Code = list[Instruction]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mistake is made."""

    plan: JointPlan
    rank: int
    code: Code
    at: int


def halves(orders: Orders) -> Orders:
    """Divide every backward into its halves."""
    return tuple(
        tuple(Action(a.stage, k, a.micro_batch) for a in row for k in ("IW" if a.kind == "B" else a.kind))
        for row in orders
    )


def right_plan(draw: random.Random) -> JointPlan:
    """Draw a right plan."""
    ranks, per_rank, micro = draw.randint(2, 4), draw.randint(1, 2), draw.randint(2, 6)
    sharded = draw.random() < 0.5
    work = units.work(
        looped(ranks, per_rank), ranks * per_rank, micro, gather=0.5, reduce=0.5, replicas=2, sharded=sharded
    )
    orders = draw.choice(
        [
            interleaved(ranks, per_rank, micro),
            breadth_first(ranks, per_rank, micro),
            breadth_first(ranks, per_rank, micro, mirrored=True),
            interleaved(ranks, per_rank, micro, group=ranks + 1) if per_rank > 1 else gpipe(ranks, micro),
        ]
    )
    orders = halves(orders) if draw.random() < 0.5 else orders
    again = [(s, m) for s in range(ranks * per_rank) for m in range(micro) if draw.random() < 0.3]
    wired = with_wires(work, orders, ahead=draw.randint(1, 3), rooms=draw.randint(1, 3))
    plan = lower(work, units.machine(0.25), wired, again=again)
    tight = tuple(replace(rank, limit=rank.peak) for rank in plan.ranks)
    return replace(plan, ranks=tight)


def _dropped(place: Place, draw: random.Random) -> Code:
    return place.code[: place.at] + place.code[place.at + 1 :]


def _twice(place: Place, draw: random.Random) -> Code:
    return place.code[: place.at + 1] + place.code[place.at :]


def _changed(**change: Callable[[Place], object]) -> Callable[[Place, random.Random], Code]:
    def make(place: Place, draw: random.Random) -> Code:
        new = replace(place.code[place.at], **{key: value(place) for key, value in change.items()})
        return [*place.code[: place.at], new, *place.code[place.at + 1 :]]

    return make


def _number(place: Place, name: str) -> int:
    value = getattr(place.code[place.at], name)
    assert isinstance(value, int)
    return value


def _freed_early(place: Place, draw: random.Random) -> Code:
    """End what is being sent right behind the send."""
    send = place.code[place.at]
    assert isinstance(send, Send)
    rest = [one for one in place.code[place.at + 1 :] if one not in (Sync(send.buffer), Release(send.buffer))]
    return [*place.code[: place.at + 1], Release(send.buffer), *rest]


def _swapped(place: Place, draw: random.Random) -> Code:
    """Let this computation and the next one of the same stage change places."""
    runs = [k for k in range(place.at, len(place.code)) if isinstance(place.code[k], Run)]
    if len(runs) < 2:
        return list(place.code)
    code, other = list(place.code), runs[1]
    code[place.at], code[other] = code[other], code[place.at]
    return code


def _words(name: str, change: int) -> Callable[[Place, random.Random], Code]:
    def make(place: Place, draw: random.Random) -> Code:
        run = place.code[place.at]
        assert isinstance(run, Run)
        words = tuple(
            (key, value + change if key == name and isinstance(value, int) else value)
            for key, value in run.keywords
        )
        return [*place.code[: place.at], replace(run, keywords=words), *place.code[place.at + 1 :]]

    return make


def _late(place: Place, draw: random.Random) -> Code:
    """Post a receive behind everything else."""
    code = place.code[: place.at] + place.code[place.at + 1 :]
    return [*code[:-1], place.code[place.at], code[-1]]


MISTAKES: dict[str, tuple[type, Callable[[Place, random.Random], Code]]] = {
    "a dropped receive": (Recv, _dropped),
    "a dropped send": (Send, _dropped),
    "a send twice": (Send, _twice),
    "a dropped wait": (Sync, _dropped),
    "a dropped computation": (Run, _dropped),
    "a computation twice": (Run, _twice),
    "swapped actions": (Run, _swapped),
    "a freed value still to be sent": (Send, _freed_early),
    "a value that stays": (Release, _dropped),
    "a receive too late": (Recv, _late),
    "a wrong peer": (Send, _changed(peer=lambda place: _number(place, "peer") + 1)),
    "a wrong sender": (Recv, _changed(peer=lambda place: _number(place, "peer") + 1)),
    "a wrong name": (Recv, _changed(what=lambda place: "9F9")),
    "a wrong link": (Recv, _changed(link=lambda place: 1)),
    "a wrong stream": (Send, _changed(stream=lambda place: 2)),
    "a wrong group": (Collective, _changed(group=lambda place: 0)),
    "a dropped collective": (Collective, _dropped),
    "a collective twice": (Collective, _twice),
    "another collective": (Collective, _changed(kind=lambda place: "all_reduce", target=lambda place: 0)),
    "another micro-batch": (Run, _words("micro_batch", 1)),
    "another stage": (Run, _words("stage", 1)),
    "a wrong time": (Run, _changed(ns=lambda place: _number(place, "ns") + 1)),
}
"""What is done, to which instructions."""


def mistaken(plan: JointPlan, name: str, draw: random.Random) -> JointPlan | None:
    """Make one mistake in one rank; None where the plan has nothing to make it in."""
    kind, make = MISTAKES[name]
    rank = draw.randrange(len(plan.ranks))
    code = list(plan.ranks[rank].executable.instructions)
    places = [k for k, one in enumerate(code) if isinstance(one, kind)]
    if not places:
        return None
    new = make(Place(plan, rank, code, draw.choice(places)), draw)
    if new == code:
        return None
    return _with(plan, rank, replace(plan.ranks[rank].executable, instructions=tuple(new)))


def _with(plan: JointPlan, rank: int, executable: Executable) -> JointPlan:
    ranks: list[RankPlan] = list(plan.ranks)
    ranks[rank] = replace(ranks[rank], executable=executable)
    return replace(plan, ranks=tuple(ranks))


def claims(plan: JointPlan, draw: random.Random) -> list[JointPlan]:
    """Plans whose figures are wrong."""
    rank = draw.randrange(len(plan.ranks))
    mine = plan.ranks[rank]
    changed = [replace(mine, limit=mine.peak - 1), replace(mine, peak=mine.peak - 1)]
    wrong = [replace(plan, ranks=(*plan.ranks[:rank], one, *plan.ranks[rank + 1 :])) for one in changed]
    more = replace(plan.work, num_micro_batches=plan.work.num_micro_batches + 1)
    return [
        *wrong,
        replace(plan, ns=plan.ns - 1),
        replace(plan, ns_bound=plan.ns + 1),
        replace(plan, work=more),
    ]


def refused(plan: JointPlan) -> str:
    """Say who refuses a plan: the judge, the check of the file's form, or nobody."""
    try:
        judge_ranks(plan)
    except JudgeError:
        return "judge"
    try:
        check_joint(plan)
    except PlanFileError:
        return "form"
    return "nobody"


def rows(seed: int = 19, count: int = 2000) -> list[Row]:
    """Judge ``count`` wrong plans, and the right ones that they come from."""
    draw = random.Random(seed)
    tally = {"judge": 0, "form": 0, "nobody": 0}
    missed: dict[str, int] = {}
    rights = 0
    while sum(tally.values()) < count:
        plan = right_plan(draw)
        judge_ranks(plan)
        rights += 1
        wrong = [(name, mistaken(plan, name, draw)) for name in MISTAKES]
        wrong += [("a wrong claim", one) for one in claims(plan, draw)]
        for name, one in wrong:
            if one is not None and sum(tally.values()) < count:
                who = refused(one)
                tally[who] += 1
                missed[name] = missed.get(name, 0) + (who == "nobody")
    said = ", ".join(f"{name}: {number}" for name, number in missed.items() if number)
    return [
        Row(
            "X1",
            f"{count} mutated plans refused, right ones accepted (seed {seed})",
            f"{tally['judge']} refused by the judge, {tally['form']} by the form, {tally['nobody']} accepted"
            f"{' (' + said + ')' if said else ''}; {rights} right plans accepted; {len(MISTAKES) + 5} kinds",
            tally["nobody"] == 0,
        )
    ]
