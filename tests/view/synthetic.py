"""Traces of any size, made from a seed."""

import random
from decimal import Decimal

from tightrope.core import Buffer, Event, Trace
from tightrope.core.plan import Reason
from tightrope.core.trace import BudgetPoint, Category, EventPhase, Held, Module, Summary

LINES = ("net.py:31", "net.py:32", "net.py:33")
"""Of ``up``, ``act`` and ``down``."""
OPS = (
    "aten.addmm.default",
    "aten.gelu.default",
    "aten.native_layer_norm.default",
    "aten.add.Tensor",
    "aten.mm.default",
)


def modules_of(num_blocks: int) -> tuple[Module, ...]:
    """Root, ``blocks``, then blocks with an ``up``, an ``act`` and a ``down`` each."""
    rows = [Module("", "Net"), Module("blocks", "ModuleList", 0)]
    for k in range(num_blocks):
        block = len(rows)
        rows.append(Module(f"blocks.{k}", "Block", 1))
        rows += [Module(f"blocks.{k}.{name}", "Linear", block) for name in ("up", "act", "down")]
    return tuple(rows)


def trace_of(num_events: int, *, num_blocks: int = 24, seed: int = 0, buffers: bool = True) -> Trace:
    """Forward, loss, then backward in reverse; every op of the forward makes one buffer.

    Args:
        num_events: ops in all.
        num_blocks: modules with three children each.
        seed: of durations and sizes.
        buffers: whether ops make buffers.
    """
    draw = random.Random(seed)
    modules = modules_of(num_blocks)
    half = max(1, num_events // 2)
    place = [2 + 4 * (k * num_blocks // half) + 1 + k % 3 for k in range(half)]
    events, now = [], 0
    for k in range(num_events):
        forward = k < half
        at = place[k] if forward else place[max(0, num_events - 1 - k)]
        phase = EventPhase.FORWARD if forward else EventPhase.BACKWARD
        phase = EventPhase.LOSS if k == half - 1 else phase
        phase = EventPhase.RECOMPUTE if not forward and k % 17 == 0 else phase
        duration = draw.choice((900, 2_000, 7_000, 40_000)) + draw.randrange(600)
        line = (at - 3) % 4
        called = 0 if line == 0 else -1
        events.append(Event(now, now + duration, k, OPS[k % len(OPS)], at, phase, line=line, callers=called))
        now += duration + (draw.randrange(300) if k % 4 == 0 else 0)
    rows, ticks = _buffers(events, half, draw) if buffers else ([], [])
    arena = max((row.offset + row.size for row in rows), default=0)
    return Trace(
        "forecast",
        tuple(rows),
        tuple(events),
        len(ticks),
        tuple(ticks),
        modules,
        LINES,
        reasons=tuple(_reason(row) for row in rows),
        held=(Held(Category.PARAMETER, 4096 * 64),),
        summary=_summary(arena, now),
        callers=((1, 2),),
    )


def _summary(arena: int, ns: int) -> Summary:
    total = arena + 4096 * 64
    curve = (BudgetPoint(total // 2, total // 2, ns + ns // 5, (0, 1)), BudgetPoint(total, total, ns, ()))
    return Summary("net", budget=total, persistent=4096 * 64, arena=arena, ns=ns, base_ns=ns, curve=curve)


def _reason(row: Buffer) -> Reason:
    text = f"kept: recomputing aten.mm.default takes {row.storage} ns by itself and would free {row.size} B "
    text += "at the peak"
    return Reason(row.storage, "kept", row.size, 1000 + row.storage, 1, text)


def _buffers(events: list[Event], half: int, draw: random.Random) -> tuple[list[Buffer], list[int]]:
    """Ticks of allocation in the forward and of release in the backward, last in first out."""
    rows, ticks, offset = [], [], 0
    last = len(events) - 1
    for k in range(half):
        size = draw.choice((4096, 16_384, 1_048_576)) + draw.randrange(64)
        release = half + (half - 1 - k)
        readers = (k + 1, last - k) if last - k > k + 1 else ()
        rows.append(Buffer(size, k, release, offset, k, k, Category.ACTIVATION, "kept", k, 0, readers))
        ticks.append(events[k].start)
        offset += rows[-1].size
    ticks += [events[min(last, half + k)].end for k in range(half)]
    return rows, ticks


def millis(ns: int) -> str:
    """As the page writes a time in a column of milliseconds: two digits, more for what is below 0.1."""
    return f"{Decimal(ns) / 10**6:.{4 if 0 < ns < 1e5 else 2}f}"
