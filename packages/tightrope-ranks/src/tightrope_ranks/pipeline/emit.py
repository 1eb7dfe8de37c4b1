"""What torch's runtime is told, read from the executables that were judged.

Idea        Every action of the runtime stands for instructions, and follows from them: a run says its stage
            and micro-batch, a transfer the value that it moves. What torch has no action for, to wait for a
            message so that its buffer ends, goes to the stages (`Waits`), and so does what runs again.
Guarantee   Actions, waits and recomputations are those of the executables and nothing else.
Complexity  Linear in the instructions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightrope.core import Collective, JudgeError, Recv, Release, Run, Send, Sync
from tightrope_ranks.pipeline.language import Action, Orders, read_action
from tightrope_ranks.values.ranks import JointPlan, RankPlan, StageWork

_KINDS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}


@dataclass(frozen=True, slots=True)
class Orderly:
    """One rank as torch runs it.

    Attributes:
        actions: in order.
        waits: messages to wait for before the computation of that number.
        again: (stage, micro-batch) whose forward is computed again.
        ties: of the work, whose gradients are summed behind the step.
    """

    actions: tuple[Action, ...]
    waits: Mapping[int, Sequence[str]]
    again: frozenset[tuple[int, int]]
    ties: tuple[int, ...] = ()


def orders_of(plan: JointPlan) -> Orders:
    """Read the actions of all ranks from their executables."""
    return tuple(emitted(plan.work, rank).actions for rank in plan.ranks)


def emitted(work: StageWork, mine: RankPlan) -> Orderly:
    """Read what torch's runtime is told from a rank's executable."""
    actions: list[Action] = []
    waits: dict[int, list[str]] = {}
    again: set[tuple[int, int]] = set()
    sending: dict[int, str] = {}
    gathered: dict[int, int] = {}
    computed = 0
    ties: list[int] = []
    for one in mine.executable.instructions:
        match one:
            case Run():
                words = dict(one.keywords)
                stage, micro = words["stage"], words["micro_batch"]
                if not isinstance(stage, int) or not isinstance(micro, int):
                    raise JudgeError(f"rank {mine.rank} runs {one.target} of no stage.")
                if one.target == "stage.recompute":
                    again.add((stage, micro))
                    continue
                actions.append(Action(stage, _KINDS[one.target.removeprefix("stage.")], micro))
                computed += 1
            case Send(buffer, _, what):
                made = read_action(what)
                sending[buffer] = what
                actions.append(Action(made.stage, f"SEND_{made.kind}", made.micro_batch))
            case Recv(_, _, what):
                made = read_action(what)
                there = made.stage + (1 if made.kind == "F" else -1)
                actions.append(Action(there, f"RECV_{made.kind}", made.micro_batch))
            case Sync(buffer) if buffer in sending:
                waits.setdefault(computed, []).append(sending.pop(buffer))
            case Collective(group=group, what=what) if what == f"{group}TIED":
                ties.append(group)
            case Collective(kind, _, target, _, what):
                actions.append(read_action(what))
                if kind == "all_gather":
                    gathered[target] = actions[-1].stage
            case Release(buffer) if buffer in gathered:
                actions.append(Action(gathered.pop(buffer), "RESHARD"))
            case _:
                pass
    reduced = {action.stage for action in actions if action.kind == "REDUCE_GRAD"}
    for stage in work.local(mine.rank):  # torch divides gradients by the number of micro-batches there
        if stage not in reduced:
            actions.append(Action(stage, "REDUCE_GRAD"))
    return Orderly(tuple(actions), waits, frozenset(again), tuple(ties))
