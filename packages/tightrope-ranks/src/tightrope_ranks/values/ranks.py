"""One executable per rank, and what they compute together.

`StageWork` is the reference: a model cut into stages that follow each other, a number of micro-batches, and
the rank that each stage lives on. A `JointPlan` says what every rank does, instruction by instruction; the
judge holds it against the work (`tightrope_ranks.judge.ranks`).

Targets of the runs of a stage, with keywords ``stage`` and ``micro_batch``:

    stage.forward(input) -> output [, saved]      without ``saved`` the stage is computed again
    stage.recompute(input) -> saved
    stage.backward(input, output, saved, gradient, accumulator) -> input gradient
    stage.backward_input(input, output, saved, gradient) -> input gradient, half
    stage.backward_weight(half, accumulator)

The first stage has no input gradient, the last one takes no gradient. Where parameters are divided among
replicas, what computes reads the gathered ones too, and accumulates into gradients that
``reduce_scatter`` ends.
"""

import hashlib
from typing import Final, Literal

import msgspec

from tightrope.core.checking import few, refuse, within
from tightrope.core.errors import TightropeError
from tightrope.core.executable import Executable
from tightrope.core.executable_check import check_executable
from tightrope.core.files import dump, load
from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.machine import Machine, check_machine
from tightrope.core.units import Bytes, Nanoseconds

MAX_RANKS: Final = 4096
MAX_STAGES: Final = 65_536
MAX_MICRO_BATCHES: Final = 65_536


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one stage takes, per micro-batch where nothing else is said.

    Attributes:
        forward: time.
        backward: time of the gradient of its input.
        weight: time of the gradients of its parameters.
        input: bytes that it gets from the stage before, or from the caller.
        output: bytes that it gives to the next one; kept until its backward begins.
        saved: bytes kept from forward to backward beside input and output.
        half: of ``saved``, bytes kept from the first to the second half of a divided backward.
        work: most bytes that it takes beside all that while it runs.
        parameters: bytes of its parameters, whole; once per step.
        state: bytes of gradients, optimizer state and the caller's batch, whole; once per step.
        gather: time to gather its parameters from the replicas.
        reduce: time to reduce its gradients over the replicas.
        summed: bytes of whole gradients that micro-batches add to where replicas divide them; 0 = as its
            parameters.
    """

    forward: Nanoseconds
    backward: Nanoseconds
    weight: Nanoseconds = 0
    input: Bytes = 0
    output: Bytes = 0
    saved: Bytes = 0
    half: Bytes = 0
    work: Bytes = 0
    parameters: Bytes = 0
    state: Bytes = 0
    gather: Nanoseconds = 0
    reduce: Nanoseconds = 0
    summed: Bytes = 0

    @property
    def whole_gradients(self) -> Bytes:
        """Bytes of whole gradients that micro-batches add to.

        >>> [StageCost(1, 1, parameters=8, summed=one).whole_gradients for one in (0, 16)]
        [8, 16]
        """
        return self.summed or self.parameters


class Tie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter that several stages use: each has a copy, whose gradients are summed behind the step.

    Attributes:
        name: for people.
        bytes: of the parameter.
        stages: that use it, ascending.
        places: per stage, which of ``list(stage.parameters())`` it is.
    """

    name: str
    bytes: Bytes
    stages: tuple[int, ...]
    places: tuple[int, ...]


class StageWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training step of a model in stages.

    Attributes:
        stages: in order.
        owners: rank of each stage.
        num_micro_batches: that the batch is cut into.
        replicas: ranks that do the same as each rank here, on other data.
        sharded: whether parameters, gradients and state are divided among the replicas.
        frozen: first stages without anything to train: their backwards compute nothing, and neither they nor
            the stage behind them hand a gradient back.
        ties: parameters that several stages use.
        shapes: of one micro-batch's input and target, as far as they are known.
        dtypes: of the same, by torch's names, for instance ``float32``.
    """

    stages: tuple[StageCost, ...]
    owners: tuple[int, ...]
    num_micro_batches: int
    replicas: int = 1
    sharded: bool = False
    frozen: int = 0
    ties: tuple[Tie, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of one replica."""
        return max(self.owners) + 1

    @property
    def fingerprint(self) -> str:
        """Hash it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def local(self, rank: int) -> tuple[int, ...]:
        """Stages of a rank, ascending.

        >>> StageWork((StageCost(1, 1),) * 4, (0, 1, 0, 1), 8).local(1)
        (1, 3)
        """
        return tuple(stage for stage, owner in enumerate(self.owners) if owner == rank)

    def hands_back(self, stage: int) -> bool:
        """Tell whether a stage hands a gradient to the one before.

        >>> [StageWork((StageCost(1, 0), StageCost(1, 1)), (0, 1), 1, frozen=1).hands_back(k) for k in (0, 1)]
        [False, False]
        """
        return self.frozen < stage < len(self.stages)

    def held(self, rank: int) -> Bytes:
        """Bytes that a rank holds all the time."""
        parts = self.replicas if self.sharded else 1
        return sum(
            -(-self.stages[one].parameters // parts) - (-self.stages[one].state // parts)
            for one in self.local(rank)
        )


class RankPlan(msgspec.Struct, frozen=True):
    """What one rank does.

    Attributes:
        rank: its number.
        limit: bytes that it may hold at any time, 0 = no limit.
        peak: forecast of the most bytes that it holds.
        executable: instruction by instruction.
    """

    rank: int
    limit: Bytes
    peak: Bytes
    executable: Executable


class JointPlan(msgspec.Struct, frozen=True):
    """What all ranks of one replica do in a training step.

    Attributes:
        work: that is done.
        machine: whose links messages go over.
        ranks: in order.
        ns: forecast of the step.
        ns_bound: time below which no plan of this work exists (proved).
        method: how it was found.
        seed: of the search.
        schema: version of this layout.
    """

    work: StageWork
    machine: Machine
    ranks: tuple[RankPlan, ...]
    ns: Nanoseconds
    ns_bound: Nanoseconds = 0
    method: str = ""
    seed: int = 0
    schema: Literal[2] = SCHEMA_VERSION


def check_work(work: StageWork, where: str = "stage work: $") -> None:
    """Check that stages, owners and counts fit each other.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    few(work.stages, f"{where}.stages", most=MAX_STAGES)
    within(len(work.stages), f"{where}.stages", low=1, high=MAX_STAGES)
    if len(work.owners) != len(work.stages):
        refuse(f"{where}.owners", work.owners, "one rank per stage")
    for position, rank in enumerate(work.owners):
        within(rank, f"{where}.owners[{position}]", high=MAX_RANKS - 1)
    if set(work.owners) != set(range(max(work.owners) + 1)):
        refuse(f"{where}.owners", work.owners, "ranks from 0 on, each with a stage")
    within(work.num_micro_batches, f"{where}.num_micro_batches", low=1, high=MAX_MICRO_BATCHES)
    within(work.replicas, f"{where}.replicas", low=1, high=MAX_RANKS)
    for position, cost in enumerate(work.stages):
        for name in StageCost.__struct_fields__:
            within(getattr(cost, name), f"{where}.stages[{position}].{name}")
        if cost.half > cost.saved:
            refuse(f"{where}.stages[{position}].half", cost.half, "at most saved")
    for position, (one, after) in enumerate(zip(work.stages, work.stages[1:], strict=False)):
        if one.output != after.input:
            refuse(f"{where}.stages[{position}].output", one.output, "the input of the next stage")
    _check_parts(work, where)


def _check_parts(work: StageWork, where: str) -> None:
    """Check what is frozen and what is tied."""
    within(work.frozen, f"{where}.frozen", high=len(work.stages) - 1)
    for position, cost in enumerate(work.stages[: work.frozen]):
        if cost.backward or cost.weight:
            refuse(f"{where}.stages[{position}].backward", cost.backward, "0: this stage is frozen")
    few(work.ties, f"{where}.ties", most=MAX_STAGES)
    if work.ties and work.sharded:
        refuse(f"{where}.ties", len(work.ties), "none: replicas divide the parameters")
    for position, tie in enumerate(work.ties):
        within(tie.bytes, f"{where}.ties[{position}].bytes")
        stages = tie.stages
        if len(stages) < 2 or list(stages) != sorted({*stages} & {*range(work.frozen, len(work.stages))}):
            refuse(f"{where}.ties[{position}].stages", stages, "two stages or more, ascending, none frozen")
        if len(tie.places) != len(stages) or any(not 0 <= place < 2**31 for place in tie.places):
            refuse(f"{where}.ties[{position}].places", tie.places, "one place per stage")
    few(work.shapes, f"{where}.shapes", most=2)
    few(work.dtypes, f"{where}.dtypes", most=2)


def check_joint(plan: JointPlan) -> None:
    """Check that a joint plan is well formed; whether it is right is for the judge to say.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    check_work(plan.work, "jointplan: $.work")
    try:
        check_machine(plan.machine)
    except TightropeError as error:
        refuse("jointplan: $.machine", str(error), "a machine profile")
    few(plan.ranks, "jointplan: $.ranks", most=MAX_RANKS)
    for name in ("ns", "ns_bound"):
        within(getattr(plan, name), f"jointplan: $.{name}")
    for position, rank in enumerate(plan.ranks):
        where = f"jointplan: $.ranks[{position}]"
        if rank.rank != position:
            refuse(f"{where}.rank", rank.rank, f"{position}: ranks stand in order")
        within(rank.limit, f"{where}.limit")
        within(rank.peak, f"{where}.peak")
        check_executable(rank.executable)


def dump_joint(plan: JointPlan) -> bytes:
    """Write a joint plan as indented JSON that `load_joint` reads back to an equal one.

    Raises:
        PlanFileError: it is not well formed, see `check_joint`.
    """
    return dump(plan, check_joint)


def load_joint(data: bytes) -> JointPlan:
    """Read a joint plan; nothing in it is run.

    Raises:
        PlanFileError: the data is not a well-formed joint plan of this version.
    """
    return load(data, JointPlan, check_joint)
