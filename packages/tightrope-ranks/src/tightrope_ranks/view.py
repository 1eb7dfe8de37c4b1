r"""Ranks side by side on one offline page: what each computes, sends and exchanges, above its bytes.

    rank 0 |[F0][F1]....[B0][B1]|    computes
           |  [->][->]          |    messages that it sends
           |          [gather]  |    exchange with its replicas
           |   __/^^^^\__       |    bytes, below the dashed limit
    rank 1 |    [F0]...

Everything is drawn from one trace (`tightrope_ranks.ranks_trace`), so a forecast and an observation look
alike. The page runs nothing and asks for nothing.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

from tightrope.core import Counter, Event, EventPhase, TightropeError, Trace, format_bytes, printable
from tightrope.core.units import format_time
from tightrope_shared.draw import ticks, work_page

_WIDTH: Final = 1060
_LEFT: Final = 110
_RIGHT: Final = 20
_TOP: Final = 10
_COMPUTE, _STREAM, _MEMORY, _GAP = 22, 9, 44, 12
_BLOCK: Final = _COMPUTE + 2 * _STREAM + _MEMORY + _GAP
_MOST: Final = 20_000
"""Events of one page."""
_MESSAGE, _EXCHANGE, _BYTES = "message", "exchange with replicas", "bytes"
_COLOURS: Final = {
    "forward": "#6f9fd8",
    "backward": "#3f6fb0",
    "forward, computed again": "#b9cdea",
    _MESSAGE: "#d08a2e",
    _EXCHANGE: "#5f9e62",
    _BYTES: "#c2b5d6",
}
_NAMES: Final = {
    EventPhase.FORWARD: "forward",
    EventPhase.BACKWARD: "backward",
    EventPhase.RECOMPUTE: "forward, computed again",
}


def ranks_page(trace: Trace, *, title: str = "") -> str:
    """Draw a trace of many ranks as one self-contained HTML page.

    Args:
        trace: with a module and a counter per rank, see `tightrope_ranks.ranks_trace`.
        title: of the page; empty = the name of the model.

    Returns:
        The text of the file. Of a trace with more than 20,000 events, as many ranks as that allows; the page
        says how many.

    Raises:
        TightropeError: the trace has no ranks.

    Example:
        >>> from tightrope.core import Module
        >>> rank = Counter("rank 0", "bytes", (0, 5), (64, 0))
        >>> trace = Trace("forecast", (), modules=(Module(""), Module("rank 0")), counters=(rank,))
        >>> ranks_page(trace).count("<g ")
        1
    """
    if not trace.counters or len(trace.counters) != len(trace.modules) - 1:
        raise TightropeError(
            f"a trace of {len(trace.modules) - 1} modules and {len(trace.counters)} counters is none of "
            "ranks: give what tightrope_ranks.ranks_trace returns."
        )
    rows: list[list[Event]] = [[] for _ in trace.counters]
    for event in trace.events:
        if event.module > 0:
            rows[event.module - 1].append(event)
    shown, drawn = 0, 0
    while shown < len(rows) and (not shown or drawn + len(rows[shown]) <= _MOST):
        drawn += len(rows[shown])
        shown += 1
    summary = trace.summary
    said = f"{trace.source} of {len(rows)} ranks"
    part = "" if shown == len(rows) else f"; ranks 0 to {shown - 1} are drawn"
    facts = [
        ("step", format_time(trace.ns)),
        (
            "no plan with these stages is faster than",
            format_time(summary.ns_bound) if summary.ns_bound else "-",
        ),
        ("limit per rank", format_bytes(summary.budget) if summary.budget else "-"),
        ("schedule", summary.planner or "-"),
    ]
    table = [_figures(trace, rank, row) for rank, row in enumerate(rows)]
    return work_page(
        title or f"{summary.name or 'training step'} on {len(rows)} ranks",
        [(f"Ranks side by side ({said}{part})", _picture(trace, rows[:shown]))],
        [
            ("Plan", ("what", "figure"), facts),
            ("Ranks", ("rank", "computes", "idle", "messages sent", "exchanges", "most bytes"), table),
        ],
    )


def _figures(trace: Trace, rank: int, row: Sequence[Event]) -> tuple[str, ...]:
    busy = sum(event.duration for event in row if event.phase in _NAMES)
    sent = sum("SEND" in event.name for event in row)
    others = sum(event.phase not in _NAMES for event in row) - sent
    idle = f"{100 * (1 - busy / (trace.ns or 1)):.1f} %"
    most = format_bytes(max(trace.counters[rank].values, default=0))
    return str(rank), format_time(busy), idle, str(sent), str(others), most


def _picture(trace: Trace, rows: Sequence[Sequence[Event]]) -> str:
    height = _TOP + _BLOCK * len(rows) + 70
    end = max((event.end for event in trace.events), default=1) or 1
    across = (_WIDTH - _LEFT - _RIGHT) / end
    top = max([trace.summary.budget, *(max(one.values, default=0) for one in trace.counters), 1])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">',
        *_grid(end, across, _TOP + _BLOCK * len(rows)),
    ]
    for rank, row in enumerate(rows):
        parts += _rank(rank, row, trace.counters[rank], across, (top, trace.summary.budget, end))
    return "\n".join([*parts, *_legend(height - 26), "</svg>"])


def _rank(
    rank: int, row: Sequence[Event], counter: Counter, across: float, scale: tuple[int, int, int]
) -> list[str]:
    y = _TOP + _BLOCK * rank
    parts = [f'<g data-rank="{rank}">', _label(y + 15, f"rank {rank}")]
    for event in row:
        if event.phase in _NAMES:
            where, size, what = y, _COMPUTE - 2, _NAMES[event.phase]
        elif "SEND" in event.name:
            where, size, what = y + _COMPUTE, _STREAM - 2, _MESSAGE
        else:
            where, size, what = y + _COMPUTE + _STREAM, _STREAM - 2, _EXCHANGE
        tip = f"{event.name}: {what}, {format_time(event.duration)} from {format_time(event.start)} on"
        parts.append(
            f'<rect class="b" x="{_LEFT + event.start * across:.2f}" y="{where}" '
            f'width="{max(0.5, event.duration * across):.2f}" height="{size}" fill="{_COLOURS[what]}">'
            f"<title>{_safe(tip)}</title></rect>"
        )
    return [*parts, *_memory(rank, counter, y + _BLOCK - _GAP, across, scale), "</g>"]


def _memory(rank: int, counter: Counter, floor: int, across: float, scale: tuple[int, int, int]) -> list[str]:
    top, limit, end = scale
    up = (_MEMORY - 6) / top
    steps, before = [f"M{_LEFT} {floor}"], 0.0
    for time, value in zip(counter.times, counter.values, strict=True):
        x, y = _LEFT + time * across, floor - value * up
        steps.append(f"L{x:.1f} {before or floor:.1f}L{x:.1f} {y:.1f}")
        before = y
    right = _LEFT + end * across
    steps.append(f"L{right:.1f} {before or floor:.1f}L{right:.1f} {floor}Z")
    most = format_bytes(max(counter.values, default=0))
    tip = f"rank {rank}: at most {most}" + (f" of {format_bytes(limit)}" if limit else "")
    parts = [
        f'<path d="{"".join(steps)}" fill="{_COLOURS[_BYTES]}"><title>{_safe(tip)}</title></path>',
        _label(floor - 4, most),
    ]
    if limit:
        y = floor - limit * up
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#c33" '
            'stroke-dasharray="4 3"/>'
        )
    return parts


def _grid(end: int, across: float, floor: int) -> list[str]:
    parts = []
    for value in ticks(0, end / 1e6, 8):
        x = _LEFT + value * 1e6 * across
        parts.append(f'<line class="g" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"/>')
        parts.append(f'<text x="{x:.0f}" y="{floor + 14}" text-anchor="middle">{value:g}</text>')
    return [*parts, f'<text x="{_LEFT - 8}" y="{floor + 14}" text-anchor="end">time, ms</text>']


def _legend(y: int) -> list[str]:
    parts, x = [], _LEFT
    for name, colour in _COLOURS.items():
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{y + 9}">{name}</text>')
        x += 44 + 7 * len(name)
    return parts


def _label(y: int, text: str) -> str:
    return f'<text x="{_LEFT - 8}" y="{y}" text-anchor="end">{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(printable(text))
