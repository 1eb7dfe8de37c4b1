"""H1: planned steps against an eager run of the same step, op by op, by the bits that each op makes."""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from benchmarks._measure import digest
from benchmarks.recorder.nets import Net, net
from benchmarks.recorder.planned import run_under_budget
from benchmarks.recorder.row import Row
from benchmarks.recorder.witness import Key, Seen, bare_name, owners_of_parameters, tensors_in, watch
from benchmarks.zoo import Scale
from tightrope.core import EventPhase, OpId, Run, Trace
from tightrope.run.step import TrainingStep
from tightrope_trace import Recording, record_run

_SIDES: Final = {EventPhase.LOSS: EventPhase.FORWARD}
_SEED: Final = 7


def captured(name: str, scale: Scale) -> Row:
    """Score one net: percent of op time whose module is the one that eager shows."""
    one = net(name, scale)
    step, budget = run_under_budget(one)
    state = _state(one)
    trace, made = _recorded(step, one)
    del step  # its budget holds the whole process
    gc.collect()
    _restore(one, state)
    torch.manual_seed(_SEED)
    score = Score.of(trace, made, watch(one))
    return Row(
        {
            "net": name,
            "budget": budget,
            "ops": len(trace.events),
            "time right %": score.percent(),
            **{f"{side.value} %": score.percent(side) for side in SIDES},
            "ops right %": 100 * score.num_right / max(len(trace.events), 1),
            "identified %": 100 * score.identified / max(score.all, 1),
        },
        score.percent() >= 99 and all(score.percent(side) >= 99 for side in SIDES if score.total[side]),
    )


@dataclass(frozen=True, slots=True)
class Made:
    """What an op of the planned step made.

    Attributes:
        name: bare name of the op.
        digests: of its tensors.
        owners: of the parameter that it changes, by address, where it returns nothing.
    """

    name: str
    digests: tuple[str, ...]
    owners: frozenset[str] | None


SIDES: Final = (EventPhase.FORWARD, EventPhase.BACKWARD, EventPhase.RECOMPUTE, EventPhase.OPTIMIZER)


@dataclass
class Score:
    """Nanoseconds on the right module, by what the op was for.

    Attributes:
        right: on the module that eager shows.
        total: of all ops, those that could not be identified included.
        identified: nanoseconds of ops whose bits eager made, too.
        num_right: ops on the right module.
    """

    right: Counter[EventPhase]
    total: Counter[EventPhase]
    identified: int = 0
    num_right: int = 0

    @classmethod
    def of(cls, trace: Trace, made: Sequence[Made], seen: Sequence[Seen]) -> "Score":
        """Compare event by event."""
        found = cls(Counter(), Counter())
        truths = owners_by_bits(trace, made, seen)
        for event, (owners, by_bits) in zip(trace.events, truths, strict=True):
            side = _SIDES.get(event.phase, event.phase)
            right = trace.modules[event.module].path in owners
            found.total[side] += event.duration
            found.right[side] += event.duration * right
            found.identified += event.duration * by_bits
            found.num_right += right
        return found

    @property
    def all(self) -> int:
        """Nanoseconds of all ops."""
        return self.total.total()

    def percent(self, side: EventPhase | None = None) -> float:
        """Share of the time on the right module, of one side or of all; 100 where there is none."""
        if side is None:
            return 100 * self.right.total() / max(self.all, 1)
        return 100 * self.right[side] / self.total[side] if self.total[side] else 100.0


def owners_by_bits(
    trace: Trace, made: Sequence[Made], seen: Sequence[Seen]
) -> list[tuple[frozenset[str], bool]]:
    """Name the modules that may own each event, and whether its bits tell.

    Ops that made the same bits under the same name are taken in order; an op whose name eager does not
    have is known by its bits where one module alone made them. A recomputed op is the op that ran first.
    What is left (a decomposition differs) has a known owner only between two ops of one owner.
    """
    waiting: dict[Key, list[Seen]] = {}
    makers: dict[str, list[Seen]] = {}
    for row in seen:
        waiting.setdefault(row.key, []).append(row)
        if not row.view:
            makers.setdefault(row.key[1], []).append(row)
    first: dict[OpId, frozenset[str] | None] = {}
    found: list[frozenset[str] | None] = []
    for event, one in zip(trace.events, made, strict=True):
        if event.op not in first:
            rows = waiting.get((one.name, one.digests[0]), []) if one.digests else []
            named = (rows.pop(0) if len(rows) > 1 else rows[0]).owners if rows else None
            first[event.op] = one.owners or named or _only(makers, one.digests)
        found.append(first[event.op])
    return [
        (owner, True) if owner is not None else (_between(found, position), False)
        for position, owner in enumerate(found)
    ]


def _only(makers: dict[str, list[Seen]], digests: Sequence[str]) -> frozenset[str] | None:
    for one in digests:
        owners = {row.owners for row in makers.get(one, ())}
        if len(owners) == 1:
            return owners.pop()
    return None


def _between(found: Sequence[frozenset[str] | None], position: int) -> frozenset[str]:
    before = next((owner for owner in reversed(found[:position]) if owner is not None), frozenset[str]())
    after = next((owner for owner in found[position + 1 :] if owner is not None), frozenset[str]())
    return before & after


def _state(one: Net) -> list[np.ndarray[Any, Any]]:
    """Copy what a training step changes; no byte is allocated through torch."""
    return [tensor.detach().numpy().copy() for tensor in _changed(one)]


def _changed(one: Net) -> list[torch.Tensor]:
    kept = [*one.model.parameters(), *one.model.buffers()]
    return kept + [leaf for leaf in tree_leaves(dict(one.optimizer.state)) if isinstance(leaf, torch.Tensor)]


def _restore(one: Net, state: list[np.ndarray[Any, Any]]) -> None:
    with torch.no_grad():
        for tensor, values in zip(_changed(one), state, strict=True):
            tensor.copy_(torch.from_numpy(values))


def _recorded(step: TrainingStep, one: Net) -> tuple[Trace, list[Made]]:
    """Run a planned step with a probe that also notes the bits of every op."""
    made: list[Made] = []
    probe, owners = Recording.probe, owners_of_parameters(one)

    def noting(self: Recording, run: Run, kernel: Callable[..., Any]) -> Callable[..., Any]:
        inner, name = probe(self, run, kernel), bare_name(self.graph.op(run.op).target)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            tensors = tensors_in(result)
            changed = None if tensors else owners.get(args[0].untyped_storage().data_ptr())
            made.append(Made(name, tuple(digest([tensor]) for tensor in tensors), changed))
            return result

        return call

    with patch.object(Recording, "probe", noting), record_run(step) as recording:
        torch.manual_seed(_SEED)
        step(*one.inputs)
    return recording.trace, made
