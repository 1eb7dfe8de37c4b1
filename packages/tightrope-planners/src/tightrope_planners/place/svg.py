"""Draw a placement: addresses over time, as one SVG string.

address ^   peak - - - - - - - -
        |      +--B--+        one rectangle per buffer; the colour follows its size,
        | +-A--+     |        a tooltip gives its exact numbers
        +-+----+-----+-> time
"""

from collections.abc import Sequence
from html import escape
from math import log2
from typing import Final

from tightrope.core import Bytes, Offset, TightropeError, format_bytes, printable
from tightrope.place.placer import Interval, checked_columns

_MARGIN: Final = 64
_MAX_BUFFERS: Final = 50_000
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#334}"
    "rect.b{stroke:#fff;stroke-width:.5}rect.b:hover{stroke:#111;stroke-width:1.5}"
    ".axis{stroke:#99a;stroke-width:1}.peak{stroke:#c33;stroke-dasharray:5 4}"
)


def draw_svg(
    buffers: Sequence[Interval],
    offsets: Sequence[Offset],
    *,
    names: Sequence[str] | None = None,
    capacity: Bytes | None = None,
    title: str = "",
    width: int = 960,
    height: int = 480,
) -> str:
    """Draw where buffers lie over time.

    Args:
        buffers: (size in bytes, start, end), half-open.
        offsets: one per buffer.
        names: shown in the tooltips; None = the indices.
        capacity: draw a line at this address as well.
        title: one line above the picture.
        width: of the picture, pixels.
        height: of the picture, pixels.

    Returns:
        A complete SVG document.

    Raises:
        TightropeError: the lengths differ, a buffer is malformed, there are more than 50,000 of them, or
            the picture is too small.

    Example:
        >>> draw_svg([(64, 0, 2)], [0]).count('class="b"')
        1
    """
    if len(buffers) != len(offsets) or (names is not None and len(names) != len(buffers)):
        raise TightropeError(
            f"{len(buffers)} buffers, {len(offsets)} offsets: one offset and name per buffer."
        )
    checked_columns(buffers)
    if min(width, height) <= 2 * _MARGIN:
        raise TightropeError(f"{width} x {height} pixels leave no picture; both must exceed {2 * _MARGIN}.")
    if len(buffers) > _MAX_BUFFERS:
        raise TightropeError(f"{len(buffers):,} buffers are too many to draw; at most {_MAX_BUFFERS:,}.")
    left = min((start for _, start, _ in buffers), default=0)
    right = max((end for _, _, end in buffers), default=1)
    peak = max((offset + size for (size, _, _), offset in zip(buffers, offsets, strict=True)), default=0)
    top = max(peak, capacity or 0, 1)
    across = (width - 2 * _MARGIN) / (right - left)
    up = (height - 2 * _MARGIN) / top
    floor = height - _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN / 2:.0f}" font-weight="600">{escape(printable(title))}</text>',
    ]
    for index, ((size, start, end), offset) in enumerate(zip(buffers, offsets, strict=True)):
        name = escape(printable(names[index]) if names is not None else str(index))
        x, y = _MARGIN + (start - left) * across, floor - (offset + size) * up
        parts.append(
            f'<rect class="b" x="{x:.2f}" y="{y:.2f}" width="{(end - start) * across:.2f}" '
            f'height="{size * up:.2f}" fill="{_colour(size)}">'
            f"<title>{name}: {format_bytes(size)} at {offset}, alive [{start}, {end})</title></rect>"
        )
    parts += _axes(width, floor, left, right)
    parts.append(_line(width, floor - peak * up, f"peak {format_bytes(peak)}", "peak"))
    if capacity is not None:
        parts.append(_line(width, floor - capacity * up, f"capacity {format_bytes(capacity)}", "axis"))
    return "\n".join([*parts, "</svg>", ""])


def _colour(size: Bytes) -> str:
    """Give sizes of one power of two one hue, from teal to violet."""
    return f"hsl({(175 + 29 * int(log2(size + 1))) % 360} 48% {62 + int(log2(size + 1) * 7) % 12}%)"


def _axes(width: int, floor: float, left: int, right: int) -> list[str]:
    end = width - _MARGIN
    return [
        f'<line class="axis" x1="{_MARGIN}" y1="{floor}" x2="{end}" y2="{floor}"/>',
        f'<line class="axis" x1="{_MARGIN}" y1="{_MARGIN}" x2="{_MARGIN}" y2="{floor}"/>',
        f'<text x="{_MARGIN}" y="{floor + 18}">{left}</text>',
        f'<text x="{end}" y="{floor + 18}" text-anchor="end">{right}</text>',
        f'<text x="{width / 2:.0f}" y="{floor + 18}" text-anchor="middle">time</text>',
        f'<text x="{_MARGIN - 8}" y="{floor}" text-anchor="end">0 B</text>',
    ]


def _line(width: int, y: float, label: str, style: str) -> str:
    end = width - _MARGIN
    return (
        f'<line class="{style}" x1="{_MARGIN}" y1="{y:.2f}" x2="{end}" y2="{y:.2f}"/>'
        f'<text x="{end}" y="{y - 4:.2f}" text-anchor="end">{escape(label)}</text>'
    )
