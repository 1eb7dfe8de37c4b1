"""DistributedDataParallel with planned messages: one line after the model is wrapped.

Idea        DDP hands over its buckets as they become ready. A few steps are watched; then all ranks measure
            codecs and link together, rank 0 plans each codec alone, and these plans run in turns, which
            measures again what they take while everything runs (`tightrope_ranks.compress.refine`).
            Rank 0 plans with that, every rank judges the plans, and the fastest is found by running them. A
            message is encoded in the thread of the backward as soon as its last gradient is there,
            and goes into the one queue of the rank. The hook of the last bucket waits for the messages in
            order and decodes.
            All of this is among the ranks of the model's own group; its first rank is rank 0 here.
Guarantee   All ranks start the same collectives in the same order, whatever the buckets: none waits for ever.
            When the backward is over nothing is on its way. What arrives does not depend on how messages are
            divided, for equal codecs (`tightrope_ranks.compress.codecs`); residuals belong to parameters.
Complexity  A few Python calls per bucket and message.
Gaps        A gradient counts as ready when its bucket is: messages may join buckets and divide them, but DDP
            has to be made with small ones (``bucket_cap_mb``) for a plan to be free. Dense gradients of
            32-bit floats on the CPU.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import Tensor, distributed
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import PlanFileError, TightropeError
from tightrope_ranks.compress import agree
from tightrope_ranks.compress.accepts import accepted, check_arguments
from tightrope_ranks.compress.calibrate import calibrate, relative_errors
from tightrope_ranks.compress.codecs import CODECS, MOST_ERROR, Encoded, Group, exchange
from tightrope_ranks.compress.queue import Link, MessageQueue, Ticket
from tightrope_ranks.compress.refine import Rehearsal, StepSeen, compared, rehearsed
from tightrope_ranks.compress.resume import check_fit, read_state, rested
from tightrope_ranks.compress.search import plan_exchange
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import (
    ExchangeLimits,
    ExchangePlan,
    ExchangeProblem,
    ExchangeState,
    Message,
    dump_state,
)
from tightrope_shared.draw import WorkEvent, WorkTrace

WATCHED: Final = 4
"""Steps with equal buckets that are watched before the ranks plan."""
_KEPT: Final = 1000


@dataclass(slots=True)
class _Sent:
    """A message of this step."""

    message: Message
    tensors: Sequence[Tensor]
    encoded: Encoded
    ticket: Ticket
    encoding: tuple[float, float]
    decoding: float = 0.0


@dataclass(slots=True)
class _Backward:
    """What came of one backward so far.

    Attributes:
        order: of the gradients in messages: as planned, or as they came.
        num_next: how many of `order` came without a gap.
        tensors: what came, in the order in which it came, by name.
        given: copies of them as they were before they were sent, where errors are measured.
    """

    order: Sequence[str] = ()
    num_next: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    given: list[Tensor] = field(default_factory=list)
    ready: list[tuple[float, int]] = field(default_factory=list)
    futures: list[tuple[Future[Tensor], Tensor]] = field(default_factory=list)
    sent: list[_Sent] = field(default_factory=list)


class GradientExchange:
    """Sends the gradients of one model; made by `compress_gradients`.

    Attributes:
        problem: what was planned; None while steps are watched.
        plan: what runs; None while steps are watched.
        seconds: of the last steps, from the start of the forward to the end of the backward.
        sent: bytes that this rank sent in the last step.
        log: messages of the last step, for `tightrope_ranks.judge.compress.check_queues`.
        residuals: what codecs left of each gradient, by name.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        group: Group,
        *,
        codecs: Sequence[str],
        limits: ExchangeLimits,
        queue: MessageQueue,
        choose: Callable[[ExchangeProblem], ExchangePlan],
        feedback: bool,
        trials: int,
    ) -> None:
        self.codecs, self.limits, self.queue, self.feedback = tuple(codecs), limits, queue, feedback
        self._choose, self.trials = choose, trials
        self._rehearsal: Rehearsal | None = None
        self._contest: agree.PlanContest | None = None
        self.problem: ExchangeProblem | None = None
        self.plan: ExchangePlan | None = None
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        self.sent = 0
        self.log: list[tuple[int, int, str, int]] = []
        self.residuals: dict[str, Tensor] = {}
        self._counts = accepted(model)
        named = list(model.module.named_parameters())
        self._names = {id(parameter): name for name, parameter in named}
        self._number = {name: number for number, (name, _) in enumerate(named)}
        self._group, self._ranks = group, group.size()
        said = repr((self.codecs, limits, feedback, trials, list(self._counts.items())))
        if not agree.equal_on_all(said, queue, self._group):
            queue.close()
            raise TightropeError(
                "The ranks of the model called compress_gradients with different models or arguments. Give "
                "the same ones on every rank."
            )
        self._step = 0
        self._moved = False
        self._rough = any(name != "none" for name in self.codecs)
        self._begun = self._forward_ended = 0.0
        self._now = _Backward()
        self._last = _Backward()
        self._watched: list[tuple[tuple[str, ...], tuple[float, ...], list[float]]] = []
        model.register_forward_pre_hook(self._note_start)
        model.register_forward_hook(self._note_end)

    def use(self, plan: ExchangePlan) -> None:
        """Run another plan from the next step on; every rank has to do so between the same steps.

        Raises:
            JudgeError: it is wrong for the problem.
        """
        if self.problem is None:
            raise TightropeError("no step has been watched yet: train a few steps before a plan is given.")
        check_exchange(self.problem, plan)
        self.plan, self._rehearsal, self._contest = plan, None, None

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank goes on from: residuals, the number of steps, and the plan.

        Every rank has its own state. The tensors are those in use, as in an optimizer's state. While plans
        are compared the state has no plan: steps are watched anew after it was loaded.

        Returns:
            ``exchange``, a JSON text, and ``residuals``: one float32 tensor per gradient, by name.
        """
        problem, plan = (None, None) if self.trying else (self.problem, self.plan)
        if problem is not None and plan is not None and self.feedback:
            for name in rested(problem, plan):
                self._residual(name)  # zeros, where no step with this plan has run
        state = ExchangeState(self._group.rank(), self._ranks, self._step, problem, plan)
        return {"exchange": dump_state(state).decode(), "residuals": dict(self.residuals)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with the bits of a run that was not interrupted where the state has a plan.

        Every rank of the model calls it between the same steps, with its own state. Nothing has changed where
        it is refused.

        Args:
            state: of `state_dict`, of this rank.

        Raises:
            PlanFileError: it is no state, or one of another model, rank, step or set of codecs; or another
                rank refused its own.
            JudgeError: its plan breaks a limit of this exchange.
        """

        def read() -> tuple[ExchangeState, dict[str, Tensor]]:
            found, rests = read_state(state, self._group.rank(), self._ranks)
            limits, feedback = self.limits, self.feedback
            return check_fit(found, rests, self._counts, self.codecs, limits, feedback=feedback), rests

        others = PlanFileError("Another rank refused its state, so no rank loaded one. See its message.")
        found, residuals = agree.checked_on_all(read, others, self.queue, self._group)
        shared = dump_state(replace(found, rank=0)).decode()
        if not agree.equal_on_all(shared, self.queue, self._group):
            raise PlanFileError(
                "The ranks loaded states of different steps. Load one checkpoint on all ranks."
            )
        self._step, self.problem, self.plan = found.step, found.problem, found.plan
        self.residuals = {name: rest.detach().clone() for name, rest in residuals.items()}
        self._rehearsal = self._contest = None
        self._watched.clear()
        self.seconds.clear()

    @property
    def trying(self) -> bool:
        """Whether plans still run in turns."""
        return self._rehearsal is not None or self._contest is not None

    def trace(self) -> WorkTrace:
        """What the last step did, in nanoseconds from the start of its forward."""
        spans = []
        for number, one in enumerate(self._last.sent):
            what = f"message {number}"
            spans.append((*one.encoding, what, "processor", "encode"))
            spans.append((one.ticket.start, one.ticket.end, what, "queue", one.message.codec))
        events = [
            WorkEvent(round((start - self._begun) * 1e9), round((end - self._begun) * 1e9), *rest)
            for start, end, *rest in spans
        ]
        return WorkTrace("real", "ns", tuple(sorted(events, key=lambda one: one.start)))

    def report(self) -> str:
        """Say in a few lines what runs, what was forecast and what was seen."""
        if self.plan is None or self.problem is None:
            return f"watching: {len(self._watched)} of {WATCHED} steps"
        num = len(self.problem.stream.sizes)
        seen = f"{median(self.seconds) * 1e3:.1f} ms" if self.seconds else "nothing yet"
        codecs = sorted({message.codec for message in self.plan.messages})
        errors = ", ".join(f"{one.name} {one.error:.2g}" for one in self.problem.codecs)
        limit = self.limits.error
        return (
            f"{num} gradients in {len(self.plan.messages)} messages, {', '.join(codecs)} "
            f"({self.plan.method}, at most {self.plan.gap:.1%} above the bound)\n"
            f"step: forecast {self.plan.seconds * 1e3:.1f} ms, observed {seen}\n"
            f"sent per rank: forecast {self.plan.sent} bytes, observed {self.sent}\n"
            f"relative errors: {errors}; {'any' if limit is None else f'at most {limit:g}'} allowed"
        )

    def close(self) -> None:
        """End the queue; the model must not run backward again."""
        self.queue.close()

    def _note_start(self, *_: Any) -> None:
        self._begun = time.perf_counter()

    def _note_end(self, *_: Any) -> None:
        self._forward_ended = time.perf_counter()

    def on_bucket(self, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Take a bucket; the future has its mean when the last bucket's hook has returned."""
        if bucket.index() == 0:
            self._now = _Backward()
        now, buffer = self._now, bucket.buffer()
        if buffer.dtype != torch.float32 or buffer.device.type != "cpu":
            raise TightropeError(
                f"a bucket of {buffer.dtype} on {buffer.device}: messages are made of float32 on cpu. Train "
                "in float32 there, or use a hook of torch."
            )
        parameters = bucket.parameters()
        parts = buffer.split([one.numel() for one in parameters])
        now.tensors.update(zip((self._names[id(one)] for one in parameters), parts, strict=True))
        now.ready.append((time.perf_counter(), len(now.tensors)))
        future: Future[Tensor] = Future()
        now.futures.append((future, buffer))
        planned: tuple[Message, ...] = ()
        if self.plan is not None and self.problem is not None:
            planned, now.order = self.plan.messages, self.problem.stream.names
        elif self._rough:
            now.given += [one.clone() for one in parts]
        while now.num_next < len(now.order) and now.order[now.num_next] in now.tensors:
            now.num_next += 1
        while len(now.sent) < len(planned) and planned[len(now.sent)].end <= now.num_next:
            self._send(planned[len(now.sent)])
        if bucket.is_last():
            if not planned:
                now.order = tuple(now.tensors)
                self._send(Message(len(now.order), "none"))
            self._finish()
        return future

    def _send(self, message: Message) -> None:
        now, codec = self._now, CODECS[message.codec]
        start = now.sent[-1].message.end if now.sent else 0
        names = now.order[start : message.end]
        tensors = [now.tensors[name] for name in names]
        begun = time.perf_counter()
        rests = None
        if self.feedback and codec.feedback:
            rests = [self._residual(name) for name in names]
        ids = [self._number[name] for name in names]
        encoded = codec.encode(tensors, rests, ids, self._step, self._ranks)
        ended = time.perf_counter()
        what = f"message {len(now.sent)} of step {self._step} (gradients {start} to {message.end - 1})"
        sent = sum(codec.sent(one.numel(), self._ranks) for one in tensors)
        ticket = self.queue.put(lambda: exchange(encoded, self._group), what, sent)
        now.sent.append(_Sent(message, tensors, encoded, ticket, (begun, ended)))

    def _residual(self, name: str) -> Tensor:
        if name not in self.residuals:
            self.residuals[name] = torch.zeros(self._counts[name])
        return self.residuals[name]

    def _finish(self) -> None:
        now = self._now
        for one in now.sent:
            self.queue.wait(one.ticket)
            arrived = time.perf_counter()
            CODECS[one.message.codec].decode(one.encoded, one.tensors, self._ranks)
            one.decoding = time.perf_counter() - arrived
        for future, buffer in now.futures:
            future.set_result(buffer)
        starts = [0, *(one.message.end for one in now.sent)]
        self.log = [
            (start, one.message.end, one.message.codec, one.encoded.wire.nbytes)
            for start, one in zip(starts, now.sent, strict=False)
        ]
        self.sent = sum(
            CODECS[one.message.codec].sent(tensor.numel(), self._ranks)
            for one in now.sent
            for tensor in one.tensors
        )
        self.seconds.append(time.perf_counter() - self._begun)
        self._step += 1
        self._last = now
        moved = self.problem is not None and tuple(now.tensors) != self.problem.stream.names
        if moved and self._moved:  # DDP made its buckets anew: messages are planned again
            self.plan = self.problem = self._rehearsal = self._contest = None
        self._moved = moved
        self._compare()
        if self.plan is None:
            self._watch()

    def _watch(self) -> None:
        now = self._now
        names = tuple(now.tensors)
        times = (self._forward_ended - self._begun, *(at - self._forward_ended for at, _ in now.ready))
        if self._watched and self._watched[-1][0] != names:
            self._watched.clear()
        errors = [0.0] * len(self.codecs)
        if now.given:
            ids = [self._number[name] for name in names]
            exact = list(now.tensors.values())
            errors = relative_errors(self.codecs, now.given, exact, ids, self._step, self.queue, self._group)
            now.given = []
        self._watched.append((names, times, errors))
        if len(self._watched) < WATCHED or self._step <= WATCHED:
            return
        rows = [row for _, row, _ in self._watched[1:]]  # the first one warms up
        worst = [max(some) for some in zip(*(one for *_, one in self._watched), strict=True)]
        self._watched.clear()
        self._agree([median(row[at] for row in rows) for at in range(len(times))], worst)

    def _agree(self, times: Sequence[float], errors: Sequence[float]) -> None:
        """Measure, plan and judge, together with the other ranks."""
        now, counts = self._now, [one.numel() for one in self._now.tensors.values()]
        stream = agree.slowest_stream(
            list(now.tensors), counts, [end for _, end in now.ready], times, self.queue, self._group
        )
        costs = calibrate(counts, self.codecs, self.queue, self._group)
        costs = tuple(replace(one, error=error) for one, error in zip(costs, errors, strict=True))
        self.problem = problem = ExchangeProblem(stream, costs, self.limits)
        if self.trials:
            rehearsal = Rehearsal(self._shared(lambda: rehearsed(problem, self._choose)))
            self._rehearsal, self.plan = rehearsal, rehearsal.plan
        else:
            self.plan = self._shared(lambda: [self._choose(problem)])[0]
        self.seconds.clear()

    def _shared(self, make: Callable[[], list[ExchangePlan]]) -> list[ExchangePlan]:
        assert self.problem is not None
        plans = agree.shared_plans(make, self.queue, self._group)
        for plan in plans:
            check_exchange(self.problem, plan)
        return plans

    def _compare(self) -> None:
        """Take what the step took, where plans run in turns, and say what runs next."""
        if self._rehearsal is not None and self.problem is not None:
            rehearsal = self._rehearsal
            rehearsal.note(self._seen())
            self.plan = rehearsal.plan
            if rehearsal.over:
                ends = [end for _, end in self._now.ready]
                problem = rehearsal.refined(self.problem, ends, self.queue, self._group)
                self.problem, self._rehearsal = problem, None
                plans = self._shared(lambda: compared(problem, self._choose))
                self._contest = agree.PlanContest(plans, self.trials)
                self.plan = self._contest.plan
        elif self._contest is not None:
            self._contest.note(self.seconds[-1], self.queue, self._group)
            self.plan = self._contest.plan
            if self._contest.over:
                self._contest = None
                self.seconds.clear()

    def _seen(self) -> StepSeen:
        now, clock, encoded, backward = self._now, self._forward_ended, 0, []
        for at, end in now.ready:
            backward.append(at - clock)
            clock = at
            while encoded < len(now.sent) and now.sent[encoded].message.end <= end:
                begun, ended = now.sent[encoded].encoding
                clock += ended - begun
                encoded += 1
        messages = tuple(
            (one.encoding[1] - one.encoding[0], one.ticket.end - one.ticket.start, one.decoding)
            for one in now.sent
        )
        return StepSeen(self.seconds[-1], messages, (self._forward_ended - self._begun, *backward))


def compress_gradients(
    model: DistributedDataParallel,
    *,
    codecs: Sequence[str] | None = None,
    error: float | None = None,
    seconds: float | None = None,
    sent: int | None = None,
    link: Link | None = None,
    feedback: bool = True,
    timeout: float = 60.0,
    trials: int = 8,
    choose: Callable[[ExchangeProblem], ExchangePlan] = plan_exchange,
) -> GradientExchange:
    """Send the gradients of a model in planned messages, each by the codec that the plan chose for it.

    Call it on every rank of the model's process group, once, after wrapping the model; ranks of other groups
    take no part. The first steps send everything as it is; then the ranks measure, plan, compare plans in
    steps that train like any other, and go on with the fastest.

    Args:
        model: wrapped; with small buckets (``bucket_cap_mb=0.25``), which the plan joins.
        codecs: that the plan may choose from; see `tightrope_ranks.compress.CODECS`. Those that lose in
            time are never chosen; ``("none",)`` alone keeps every bit. Default: ``none`` and ``bf16``, as the
            others may end at another loss.
        error: largest relative error of a codec, measured against the exact mean in the first steps; one
            above it never runs. Default: 0.01 for the default codecs, any for those that are named.
        seconds: limit of the step (forward and backward).
        sent: limit of the bytes that one rank sends in a step.
        link: to hold the messages to a rate in user space; default: the network as it is.
        feedback: whether what a lossy codec left is added to the next gradient.
        timeout: seconds after which a message that is not through is an error.
        trials: steps per plan, at most, in which the plan and the best plans of each codec alone are
            compared before the one that was fastest goes on; 0 = trust costs that are measured alone.
        choose: the planner.

    Returns:
        What watches and sends, with a report.

    Raises:
        TightropeError: a codec that there is not, a value out of its range, ranks that differ, a model with
            sparse gradients, mixed precision, or parameters that are not float32 on the CPU; or another rank
            refused its own.
        InfeasibleError: in the step in which the ranks plan: no plan keeps the limits.
        RankError: in a backward: another rank ended.

    Example:
        >>> compress_gradients(None, codecs=["zip"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tightrope.core.errors.TightropeError: codecs=['zip']: 'zip' is no codec; there are none, fp16, ...

    Source: `tightrope_ranks.compress.search`.
    """

    def check() -> tuple[str, ...]:
        names = check_arguments(
            codecs, error=error, seconds=seconds, sent=sent, trials=trials, timeout=timeout
        )
        accepted(model)
        return names

    names, group = agree.met(model, check)
    state = GradientExchange(
        model,
        group,
        codecs=names,
        limits=ExchangeLimits(seconds, sent, MOST_ERROR if codecs is None and error is None else error),
        queue=MessageQueue(link=link, timeout=timeout),
        choose=choose,
        feedback=feedback,
        trials=trials,
    )
    model.register_comm_hook(state, _hook)
    return state


def _hook(state: GradientExchange, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Be the hook that DDP asks for: it looks at the names of the parameters."""
    return state.on_bucket(bucket)
