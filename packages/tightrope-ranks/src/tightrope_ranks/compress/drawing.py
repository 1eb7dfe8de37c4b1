"""A trace of an exchange as a picture: one row for the processor, one for the queue, time to the right."""

from html import escape
from typing import Final

from tightrope_shared.draw import WorkTrace

_WIDTH: Final = 960
_LEFT: Final = 90
_ROW: Final = 34
_SHADES: Final = {
    "before": "#d9d9d9",
    "backward": "#b8c4d6",
    "encode": "#e0a458",
    "decode": "#7fa66f",
}
_QUEUE: Final = "#5b7db1"


def timeline_svg(trace: WorkTrace, *, title: str = "") -> str:
    """Draw a trace as SVG, which any browser shows.

    Args:
        trace: forecast or observed; see `forecast` and `GradientExchange.trace`.
        title: above the picture.

    Example:
        >>> from tightrope_shared.draw import WorkEvent
        >>> trace = WorkTrace("forecast", "ns", (WorkEvent(0, 5, "message 0", "queue", "sign"),))
        >>> timeline_svg(trace).count("<rect")
        1
    """
    rows = ("processor", "queue")
    end = max((event.end for event in trace.events), default=1) or 1
    scale = (_WIDTH - _LEFT - 10) / end
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{3 * _ROW + 20}" '
        'font-family="sans-serif" font-size="12">',
        f"<text x='4' y='16'>{escape(title or trace.source)}: {end / 1e6:.1f} ms</text>",
        *(f"<text x='4' y='{_ROW * (row + 1) + 18}'>{name}</text>" for row, name in enumerate(rows)),
    ]
    for event in trace.events:
        row = rows.index(event.where) if event.where in rows else 0
        x, width = _LEFT + event.start * scale, max((event.end - event.start) * scale, 0.5)
        colour = _SHADES.get(event.kind, _QUEUE)
        said = escape(f"{event.what} {event.kind}: {(event.end - event.start) / 1e6:.2f} ms".strip())
        parts.append(
            f"<rect x='{x:.1f}' y='{_ROW * (row + 1)}' width='{width:.1f}' height='{_ROW - 8}' "
            f"fill='{colour}' "
            f"stroke='white' stroke-width='0.4'><title>{said}</title></rect>"
        )
    return "\n".join([*parts, "</svg>"])
