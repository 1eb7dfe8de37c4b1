"""Walk the executables of all ranks together and refuse the first instruction that breaks a rule.

Idea        Every rank goes on as far as it can; a wait stops it until the other side has done its part. Each
            buffer knows which value it holds. When nobody can go on and somebody is not at the end, the
            ranks wait for each other. What a network of first-in-first-out channels does is independent of
            who goes first (Kahn 1974), so one walk stands for all.
Guarantee   A plan that passes computes every stage for every micro-batch, forward and backward, once
            (forwards again only where their values were let go), on the values that the work says; adds every
            gradient up once and reduces it once, over the right group, and sums those of tied parameters; has
            a receive for every send, of the same value, bytes, link and order; never changes or ends what is
            being sent, nor reads what has not come; holds on no rank more than its limit, and at most its
            forecast; leaves nothing behind; and takes the time that is forecast.
Complexity  Linear in the instructions.
Gaps        What a stage computes inside is not looked at; replicas are taken to do the same at the same time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias

from tightrope.core import (
    Alloc,
    Collective,
    Executable,
    Instruction,
    JudgeError,
    Recv,
    Release,
    Resume,
    Return,
    Run,
    Send,
    Sync,
    View,
)
from tightrope.core.executable import ARENA, CALLER
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.judge.bound import step_bound
from tightrope_ranks.values.ranks import JointPlan, StageCost, StageWork

Value: TypeAlias = tuple[str, int, int]
"""Kind, stage, micro-batch: F output, S saved, B input gradient, H half, G gathered, D gradients, P, A."""
_NAME: Final = re.compile(r"(\d+)([FB])(\d+)")
_NOTHING: Final[Value] = ("", -1, -1)


@dataclass(frozen=True, slots=True)
class RanksVerdict:
    """What a joint plan takes.

    Attributes:
        ns: time of the step.
        peaks: most bytes of every rank.
        num_messages: between ranks.
        wire_bytes: of all messages.
    """

    ns: Nanoseconds
    peaks: tuple[Bytes, ...]
    num_messages: int
    wire_bytes: Bytes


def judge_ranks(plan: JointPlan) -> RanksVerdict:
    """Judge all ranks of a well-formed plan together.

    Returns:
        What it takes, counted from its instructions.

    Raises:
        JudgeError: names the rank, the instruction and the first broken rule.
    """
    if len(plan.ranks) != plan.work.num_ranks:
        raise JudgeError(f"the plan has {len(plan.ranks)} ranks, its work {plan.work.num_ranks}.")
    ranks = [_Rank(plan, number) for number in range(len(plan.ranks))]
    wires = _Wires()
    waiting = ranks
    while waiting:
        moved = [rank for rank in waiting if rank.go(wires)]
        waiting = [rank for rank in waiting if not rank.over]
        if waiting and not moved:
            waiting[0].fail(f"waits for ever, with {len(waiting) - 1} other ranks")
    for rank in ranks:
        rank.finish()
    for pair, channel in wires.channels.items():
        if len(channel.sent) != len(channel.received):
            raise JudgeError(
                f"rank {pair[0]} sends {len(channel.sent)} messages to rank {pair[1]}, which receives "
                f"{len(channel.received)}."
            )
    ns = max(rank.end for rank in ranks)
    if plan.ns != ns:
        raise JudgeError(f"the plan says {plan.ns} ns; its instructions take {ns} ns.")
    if plan.ns_bound > step_bound(plan):
        raise JudgeError(f"the plan claims a bound of {plan.ns_bound} ns; {step_bound(plan)} ns follow.")
    sent = [message for channel in wires.channels.values() for message in channel.sent]
    return RanksVerdict(ns, tuple(rank.peak for rank in ranks), len(sent), sum(one.bytes for one in sent))


@dataclass(slots=True)
class _Message:
    """One side of a transfer."""

    what: str
    bytes: Bytes
    link: int
    stream: int
    time: Nanoseconds
    value: Value = _NOTHING


@dataclass(slots=True)
class _Channel:
    """What one rank sends another, in order."""

    sent: list[_Message] = field(default_factory=list)
    received: list[_Message] = field(default_factory=list)
    ends: list[Nanoseconds] = field(default_factory=list)
    free: Nanoseconds = 0


class _Wires:
    """All channels."""

    def __init__(self) -> None:
        self.channels: dict[tuple[int, int], _Channel] = {}

    def channel(self, source: int, target: int) -> _Channel:
        return self.channels.setdefault((source, target), _Channel())


@dataclass(slots=True)
class _Held:
    """A live buffer."""

    bytes: Bytes
    space: int
    value: Value = _NOTHING
    sending: int = -1
    coming: tuple[int, int] | None = None
    until: Nanoseconds | None = None
    then: Value = _NOTHING


class _Rank:
    """One rank, as far as it has come."""

    def __init__(self, plan: JointPlan, number: int) -> None:
        mine = plan.ranks[number]
        self.plan, self.work, self.number, self.mine = plan, plan.work, number, mine
        self.code: Executable = mine.executable
        self.at, self.now, self.end, self.over = 0, 0, 0, False
        self.live = self.peak = 0
        self.held: dict[int, _Held] = {}
        self.begun = self.returned = False
        self.stream: dict[int, Nanoseconds] = {}
        self.done: set[tuple[str, int, int]] = set()
        self.summed: dict[int, set[int]] = {stage: set() for stage in plan.work.local(number)}
        self.reduced: set[int] = set()
        self.tied: set[int] = set()
        self.given: list[Value] = [(k, s, -1) for s in plan.work.local(number) for k in "PA"]
        if self.code.graph != plan.work.fingerprint:
            self.fail("is made for other work")

    def fail(self, why: str) -> NoReturn:
        code = self.code.instructions
        what = f"{code[self.at]}"[:160] if self.at < len(code) else "the end"
        raise JudgeError(f"rank {self.number}, instruction {self.at} ({what}): {why}.")

    def go(self, wires: _Wires) -> bool:
        before = self.at
        while self.at < len(self.code.instructions) and self._take(self.code.instructions[self.at], wires):
            self.at += 1
        self.over = self.at == len(self.code.instructions)
        return self.at > before or self.over

    def _take(self, instruction: Instruction, wires: _Wires) -> bool:
        if self.returned:
            self.fail("comes after the end")
        match instruction:
            case Alloc():
                self._alloc(instruction)
            case Release(buffer):
                self._release(buffer)
            case Resume(part):
                if self.begun or part or self.given:
                    self.fail("the step begins once, with parameters and gradients of every stage")
                self.begun = True
            case Return():
                self.returned = True
            case Run():
                self._run(instruction)
            case Send():
                self._send(instruction, wires)
            case Recv():
                self._receive(instruction, wires)
            case Collective():
                self._collective(instruction)
            case Sync(target):
                return self._sync(self._buffer(target), wires)
            case _:
                self.fail("is no instruction of a stage")
        return True

    # buffers

    def _buffer(self, number: int) -> _Held:
        if number not in self.held:
            self.fail(f"buffer {number} is not live")
        return self.held[number]

    def _alloc(self, alloc: Alloc) -> None:
        if alloc.buffer in self.held:
            self.fail(f"buffer {alloc.buffer} begins twice")
        held = _Held(alloc.bytes, alloc.space)
        if not self.begun:
            if alloc.space != CALLER or not self.given:
                self.fail("the caller holds parameters and gradients of every stage, nothing else")
            held.value = self.given.pop(0)
            cost = self.work.stages[held.value[1]]
            whole = cost.parameters if held.value[0] == "P" else cost.state
            if alloc.bytes != -(-whole // (self.work.replicas if self.work.sharded else 1)):
                self.fail(f"{held.value} takes {alloc.bytes} bytes")
        elif alloc.space != ARENA:
            self.fail("allocates outside the arena")
        self.held[alloc.buffer] = held
        self.live += self.code.charged(alloc)
        self.peak = max(self.peak, self.live)
        if self.mine.limit and self.live > self.mine.limit:
            self.fail(f"holds {self.live} bytes; its limit is {self.mine.limit}")

    def _release(self, number: int) -> None:
        held = self._buffer(number)
        if held.space == CALLER:
            self.fail("releases what is the caller's")
        if held.sending >= 0 or held.coming or held.until is not None:
            self.fail("releases what is still being sent or received")
        self.live -= self.code.charged(Alloc(number, held.space, held.bytes))
        del self.held[number]

    # transfers

    def _link(self, peer: int) -> int:
        return self.plan.machine.link(self.number * self.work.replicas, peer * self.work.replicas)

    def _message(self, instruction: Send | Recv) -> _Message:
        held = self._buffer(instruction.buffer)
        if held.sending >= 0 or held.coming or held.until is not None:
            self.fail("its buffer is in another transfer")
        if not 0 <= instruction.peer < len(self.plan.ranks) or instruction.peer == self.number:
            self.fail(f"there is no rank {instruction.peer} to talk to")
        if instruction.link != self._link(instruction.peer):
            self.fail(f"goes over link {instruction.link}; these ranks have {self._link(instruction.peer)}")
        return _Message(instruction.what, held.bytes, instruction.link, instruction.stream, self.now)

    def _send(self, send: Send, wires: _Wires) -> None:
        message, held = self._message(send), self.held[send.buffer]
        found = _NAME.fullmatch(send.what)
        if not found or held.value != (found[2], int(found[1]), int(found[3])):
            self.fail(f"says {send.what}; its buffer holds {held.value}")
        channel = wires.channel(self.number, send.peer)
        held.sending, message.value = len(channel.sent), held.value
        held.coming = (self.number, send.peer)
        channel.sent.append(message)
        self._match(channel)

    def _receive(self, receive: Recv, wires: _Wires) -> None:
        message, held = self._message(receive), self.held[receive.buffer]
        if held.value != _NOTHING:
            self.fail(f"receives over {held.value}")
        channel = wires.channel(receive.peer, self.number)
        held.coming, held.then = (receive.peer, self.number), ("message", len(channel.received), -1)
        channel.received.append(message)
        self._match(channel)

    def _match(self, channel: _Channel) -> None:
        while len(channel.ends) < min(len(channel.sent), len(channel.received)):
            sent, got = channel.sent[len(channel.ends)], channel.received[len(channel.ends)]
            if (sent.what, sent.bytes, sent.link, sent.stream) != (got.what, got.bytes, got.link, got.stream):
                self.fail(f"{sent.what} of {sent.bytes} bytes meets {got.what} of {got.bytes} bytes")
            link = self.plan.machine.links[sent.link]
            begin = max(sent.time, got.time, channel.free)
            channel.free = begin + link.message_ns(sent.bytes) - round(1e9 * link.latency)
            channel.ends.append(begin + link.message_ns(sent.bytes))

    def _tied(self, one: Collective) -> None:
        """Take one sum of the gradients of a parameter that several stages use."""
        held, ties = self._buffer(one.target), self.work.ties
        mine = [s for s in ties[one.group].stages if s in self.summed] if one.group < len(ties) else []
        whole = mine and all(len(self.summed[s]) == self.work.num_micro_batches for s in mine)
        if not whole or one.kind != "all_reduce" or one.source != one.target or one.ns:
            self.fail("sums no gradients of a tied parameter of this rank, or before all have come")
        if (
            held.value != ("A", mine[0], -1)
            or held.until is not None
            or one.group <= max(self.tied, default=-1)
        ):
            self.fail(f"sums {held.value} of tied parameter {one.group}, in use, again, or not in order")
        if self.work.replicas > 1 and not self.reduced.issuperset(mine):
            self.fail("sums gradients of a tied parameter before those of replicas are reduced")
        self.tied.add(one.group)
        held.until, held.then = self.now, held.value

    def _collective(self, one: Collective) -> None:
        if one.what == f"{one.group}TIED":
            self._tied(one)
            return
        source, target = self._buffer(one.source), self._buffer(one.target)
        stage = source.value[1]
        if any(held.sending >= 0 or held.coming or held.until is not None for held in (source, target)):
            self.fail("its buffers are in another transfer")
        if one.group != -1:
            self.fail(f"runs over group {one.group}; parameters are divided among replicas, group -1")
        name, needs = ("REDUCE_GRAD", ("A", stage, -1)), self.work.sharded
        cost = self.work.stages[stage] if stage >= 0 else StageCost(0, 0)
        if one.kind == "all_gather":
            name, right = ("UNSHARD", ("G", stage, -1)), source.value == ("P", stage, -1) and needs
            right = right and target.value == _NOTHING and target.bytes == cost.parameters
        elif one.kind == "reduce_scatter":
            right = source.value == ("D", stage, -1) and target.value == name[1] and needs
        else:
            right = source is target and source.value == name[1] and not needs and self.work.replicas > 1
        ns = cost.gather if one.kind == "all_gather" else cost.reduce
        if not right or one.what != f"{stage}{name[0]}" or one.ns != ns:
            self.fail(f"does not do what {one.what} is, on {source.value} and {target.value}")
        if name[0] == "REDUCE_GRAD":
            if stage in self.reduced or len(self.summed[stage]) != self.work.num_micro_batches:
                self.fail(f"reduces {len(self.summed[stage])} gradients of stage {stage}, or again")
            self.reduced.add(stage)
        end = max(self.now, self.stream.get(one.stream, 0)) + ns
        if ns:
            self.stream[one.stream] = end
        self.end = max(self.end, end)
        target.until, target.then = end, name[1]
        if one.kind == "reduce_scatter":  # goes on being read until the target has come
            source.until, source.then = end, ("reduced", stage, -1)

    def _sync(self, held: _Held, wires: _Wires) -> bool:
        if held.coming:
            channel = wires.channel(*held.coming)
            number = held.sending if held.sending >= 0 else held.then[1]
            if number >= len(channel.ends):
                return False
            if held.sending < 0:
                held.value = channel.sent[number].value
            held.coming, held.sending = None, -1
            self.now = max(self.now, channel.ends[number])
            self.end = max(self.end, channel.ends[number])
        elif held.until is not None and held.then[0] != "reduced":
            self.now = max(self.now, held.until)
            for other in self.held.values():
                if held.then[0] == "A" and other.then == ("reduced", held.then[1], -1):
                    other.until, other.value = None, other.then
            held.value, held.until = held.then, None
        else:
            self.fail("waits for nothing")
        return True

    # computing

    def _run(self, run: Run) -> None:
        words: Mapping[str, object] = dict(run.keywords)
        stage, micro = words.get("stage"), words.get("micro_batch")
        if not isinstance(stage, int) or stage not in self.summed or not isinstance(micro, int):
            self.fail("runs no stage of this rank")
        if not 0 <= micro < self.work.num_micro_batches or set(words) != {"stage", "micro_batch"}:
            self.fail(f"there is no micro-batch {micro}")
        kind = run.target.removeprefix("stage.")
        if run.target != f"stage.{kind}" or kind not in _KINDS:
            self.fail("is no part of a stage")
        kept = kind == "forward" and len(run.results) > 1
        reads, makes, ns = _rule(self.work, kind, stage, micro, kept=kept)
        self._reads(run, reads, kind, stage)
        self._once(kind, stage, micro, kept=kept)
        if run.ns != ns:
            self.fail(f"takes {run.ns} ns; the work says {ns}")
        self.now += ns
        self.end = max(self.end, self.now)
        self._inside(run, makes, kind, stage, kept=kept)
        if kind in ("backward", "backward_weight"):
            if micro in self.summed[stage] or stage in self.reduced:
                self.fail(f"adds the gradients of micro-batch {micro} of stage {stage} too late, or again")
            self.summed[stage].add(micro)

    def _reads(self, run: Run, reads: list[Value], kind: str, stage: int) -> None:
        found = []
        for argument in run.arguments:
            if not isinstance(argument, View):
                self.fail("reads something else than buffers")
            held = self._buffer(argument.base)
            if (held.coming and held.sending < 0) or held.until is not None:
                self.fail(f"reads buffer {argument.base} before it has come")
            fresh = held.value == _NOTHING and held.bytes == self.work.stages[stage].whole_gradients
            if fresh and kind in ("backward", "backward_weight") and self.work.sharded:
                held.value = ("D", stage, -1)
                if self.summed[stage]:
                    self.fail("begins to add up gradients once more")
            if argument.end != held.bytes:
                self.fail(f"reads {argument.end} of {held.bytes} bytes of buffer {argument.base}")
            found.append(held.value)
        if found != reads:
            self.fail(f"reads {found}; the work says {reads}")

    def _once(self, kind: str, stage: int, micro: int, *, kept: bool) -> None:
        part = {"backward": "B", "backward_input": "B", "backward_weight": "W"}.get(kind, kind)
        if (part, stage, micro) in self.done:
            self.fail("runs again")
        if kind == "recompute" and ("kept", stage, micro) in self.done:
            self.fail("computes again what was kept")
        self.done.add((part, stage, micro))
        if kind == "backward":
            self.done.add(("W", stage, micro))
        if kept:
            self.done.add(("kept", stage, micro))

    def _inside(
        self, run: Run, makes: list[tuple[Value, Bytes]], kind: str, stage: int, *, kept: bool
    ) -> None:
        made: list[int] = []
        spare: dict[int, Bytes] = {}
        for event in run.inside:
            if isinstance(event, Release):
                if event.buffer not in spare:
                    self.fail(f"releases buffer {event.buffer} inside")
                self._release(event.buffer)
                continue
            self._alloc(event)
            if len(made) < len(makes):
                if event.bytes != makes[len(made)][1]:
                    self.fail(
                        f"makes {makes[len(made)][0]} in {event.bytes} bytes, not {makes[len(made)][1]}"
                    )
                self.held[event.buffer].value = makes[len(made)][0]
                made.append(event.buffer)
            else:
                spare[event.buffer] = event.bytes
        cost = self.work.stages[stage]
        if sum(spare.values()) != cost.work + (cost.saved if kind == "forward" and not kept else 0):
            self.fail(f"takes {sum(spare.values())} bytes beside what it makes")
        if set(spare) & set(self.held) or [one.view.base for one in run.results] != made:
            self.fail("leaves or returns something else than what it makes")

    def finish(self) -> None:
        """Refuse what is left undone at the end."""
        count = self.work.num_micro_batches
        if not self.returned:
            self.fail("never returns")
        for stage, summed in self.summed.items():
            if len(summed) != count:
                self.fail(f"has gradients of {len(summed)} of {count} micro-batches of stage {stage}")
            if self.work.replicas > 1 and stage not in self.reduced:
                self.fail(f"never reduces the gradients of stage {stage}")
        for number, tie in enumerate(self.work.ties):
            if number not in self.tied and not self.summed.keys().isdisjoint(tie.stages):
                self.fail(f"never sums the gradients of {tie.name}, which stages {tie.stages} use")
        if any(held.space != CALLER or held.coming or held.until is not None for held in self.held.values()):
            self.fail("leaves buffers or transfers behind")
        if self.mine.peak != self.peak:
            self.fail(f"holds {self.peak} bytes; its forecast is {self.mine.peak}")


_KINDS: Final = ("forward", "recompute", "backward", "backward_input", "backward_weight")


def _rule(
    work: StageWork, kind: str, stage: int, micro: int, *, kept: bool
) -> tuple[list[Value], list[tuple[Value, Bytes]], Nanoseconds]:
    """Say what a part of a stage reads, makes and takes."""
    cost, last = work.stages[stage], stage + 1 == len(work.stages)
    given: list[Value] = [("F", stage - 1, micro)] if stage else []
    parameters: Value = ("G" if work.sharded else "P", stage, -1)
    total: Value = ("D" if work.sharded else "A", stage, -1)
    back: list[Value] = [] if last or stage < work.frozen else [("B", stage + 1, micro)]
    output: list[tuple[Value, Bytes]] = [(("F", stage, micro), cost.output)]
    saved: list[tuple[Value, Bytes]] = [(("S", stage, micro), cost.saved)]
    trained = stage > work.frozen  # whether anything before is
    gradient: list[tuple[Value, Bytes]] = [(("B", stage, micro), cost.input)] if trained else []
    if kind == "forward":
        return [*given, parameters], output + (saved if kept else []), cost.forward
    if kind == "recompute":
        return [*given, parameters], saved, cost.forward
    if kind == "backward_weight":
        return [("H", stage, micro), total, parameters], [], cost.weight
    reads: list[Value] = [*given, ("F", stage, micro), ("S", stage, micro), *back]
    if kind == "backward":
        return [*reads, total, parameters], gradient, cost.backward + cost.weight
    half: tuple[Value, Bytes] = (("H", stage, micro), cost.half)
    return [*reads, parameters], [*gradient, half], cost.backward
