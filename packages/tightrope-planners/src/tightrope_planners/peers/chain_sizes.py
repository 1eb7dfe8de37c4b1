"""Bytes and times of the segments of a chain, as the dynamic program of Rotor counts them.

*Loose* storages may be dropped and made again. Everything else (what must be resident at the end, what
cannot be made twice) is there whatever the plan, and is counted as *fixed* at every op.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, Nanoseconds, OpId, StepIndex, StorageId
from tightrope.plan.model import made_by
from tightrope_planners.peers.chain import Chain
from tightrope_planners.peers.recovery import recovery


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a segment: its time, its peak without and with the handover that it reads."""

    ns: Nanoseconds
    alone: Bytes
    carried: Bytes


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """What the dynamic program knows of one segment.

    Attributes:
        handover: bytes that it hands over.
        saved: bytes kept from a pass that saves everything, the handover included.
        sweep: a re-run that keeps the handover only; ``first_sweep``: the same as first run.
        all: a re-run that keeps what backward reads and the handover; ``first_all``: as first run.
        last: a re-run that keeps what backward reads.
        base: bytes of gradients and fixed storages when its backward begins.
        backward: peak of its backward, ``base`` and what was saved included.
    """

    handover: Bytes
    saved: Bytes
    sweep: Pass
    first_sweep: Pass
    all: Pass
    first_all: Pass
    last: Pass
    base: Bytes
    backward: Bytes


def segment_sizes(chain: Chain) -> tuple[SegmentSizes, ...]:
    """Measure every segment of a chain."""
    meter = _ChainMeter(chain)
    return tuple(meter.segment(number) for number in range(len(chain.segments)))


class _ChainMeter:
    """Facts of one chain that all segments share."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.model = chain, chain.model
        self.made = made_by(self.model)
        facts = recovery(self.model)
        self.loose = facts.returns
        self.num_forward = chain.segments[-1].ops[-1] + 1
        self.last = [-1] * len(self.model.producer)
        for op, reads in enumerate(self.model.reads):
            for storage in reads:
                self.last[storage] = op
        self.fixed = self._fixed(facts.wanted)

    def _fixed(self, wanted: Sequence[StepIndex]) -> list[Bytes]:
        """Bytes of fixed storages made before each op and wanted at it or later."""
        num_ops = len(self.model.need)
        change = [0] * (num_ops + 2)
        for storage, op in enumerate(self.model.producer):
            until = min(wanted[storage], num_ops)
            if op < self.num_forward and op >= 0 and not self.loose[storage] and until > op:
                change[op + 1] += self.model.size[storage]
                change[until + 1] -= self.model.size[storage]
        for storage, op in enumerate(self.model.producer):
            if op >= self.num_forward and self.model.at_end[storage]:
                change[op + 1] += self.model.size[storage]
        live, result = 0, []
        for op in range(num_ops):
            live += change[op]
            result.append(live)
        return result

    def segment(self, number: int) -> SegmentSizes:
        segment = self.chain.segments[number]
        inside = {s for op in segment.ops for s in self.made[op] if self.loose[s]}
        kept = {s for s in inside if self.last[s] >= self.num_forward and s != segment.handover}
        kept |= {s for s in inside if s == segment.handover and self._read_at(s, number)}
        handed = inside & {segment.handover}
        begin = segment.back
        return SegmentSizes(
            handover=self._bytes(handed),
            saved=self._bytes(kept | handed),
            sweep=self._again(number, handed),
            first_sweep=self._first(number, handed),
            all=self._again(number, kept | handed),
            first_all=self._first(number, kept | handed),
            last=self._again(number, kept),
            base=self.fixed[begin] + self._bytes(self._gradients(begin)),
            backward=self._backward(number, kept),
        )

    def _bytes(self, storages: Iterable[StorageId]) -> Bytes:
        return sum(self.model.size[storage] for storage in storages)

    def _read_at(self, storage: StorageId, number: int) -> bool:
        """Tell whether the backward of a segment, or a later op, reads its own handover."""
        return self.last[storage] >= self.chain.segments[number].back

    def _gradients(self, begin: StepIndex) -> set[StorageId]:
        return {
            s
            for s, op in enumerate(self.model.producer)
            if self.num_forward <= op < begin <= self.last[s] and not self.model.at_end[s]
        }

    def _again(self, number: int, keep: set[StorageId]) -> Pass:
        """Measure a re-run of the ops of which ``keep`` is made."""
        wanted, ops = set(keep), list[OpId]()
        for op in reversed(self.chain.segments[number].ops):
            if wanted.intersection(self.model.again_creates[op]) and self.model.window[op][1] > op:
                ops.append(op)
                wanted.update(s for s in self.model.again_reads[op] if self.loose[s])
        ops.reverse()
        return self._pass(number, ops, keep, self.model.again_need, self.model.again_reads, fixed=False)

    def _first(self, number: int, keep: set[StorageId]) -> Pass:
        ops = self.chain.segments[number].ops
        return self._pass(number, ops, keep, self.model.need, self.model.reads, fixed=True)

    def _pass(
        self,
        number: int,
        ops: Sequence[OpId],
        keep: set[StorageId],
        need: Sequence[Bytes],
        reads: Sequence[tuple[StorageId, ...]],
        *,
        fixed: bool,
    ) -> Pass:
        entry = self.chain.segments[number - 1].handover if number else -1
        last = {storage: op for op in ops for storage in reads[op]}
        live: set[StorageId] = set()
        alone = carried = ns = 0
        for op in ops:
            here = self._bytes(live) + need[op] + (self.fixed[op] if fixed else 0)
            alone = max(alone, here)
            enters = entry >= 0 and self.loose[entry] and op <= last.get(entry, -1)
            carried = max(carried, here + (self.model.size[entry] if enters else 0))
            live |= {s for s in self.made[op] if self.loose[s]}
            live = {s for s in live if s in keep or last.get(s, -1) > op}
            ns += self.model.again_ns[op]
        return Pass(ns, alone, carried)

    def _backward(self, number: int, kept: set[StorageId]) -> Bytes:
        begin = self.chain.segments[number].back
        end = self.chain.segments[number - 1].back if number else len(self.model.need)
        live = {s for s in kept if self.last[s] >= begin} | self._gradients(begin)
        peak = 0
        for op in range(begin, end):
            peak = max(peak, self.fixed[op] + self._bytes(live) + self.model.need[op])
            live |= {s for s in self.made[op] if not self.model.at_end[s] and self.model.size[s]}
            live = {s for s in live if self.last[s] > op}
        return peak
