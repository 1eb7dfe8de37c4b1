"""Drawings of work over time: lanes of bars, and curves, as SVG; and one offline page around them.

host 1 |[==A==]   [==A==]
host 2 |   [===B===]  x          a bar per event, coloured by what it is; crosses where work was dropped
       +------------------> time
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

import msgspec

from tightrope.core import TightropeError, printable

_LEFT: Final = 150
_RIGHT: Final = 20
_TOP: Final = 34
_BOTTOM: Final = 30
_MOST: Final = 20_000
_HOVERED: Final = 1000
"""Points that show their values under the pointer; with more, the page would grow."""
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#334}rect.b{stroke:#fff;stroke-width:.5}"
    "rect.b:hover{stroke:#111;stroke-width:1.5}.x{stroke:#c33;stroke-width:1.5}.a{stroke:#99a}"
    ".c{fill:none;stroke-width:1.5}.g{stroke:#dde}.p{fill:transparent}.p:hover{fill:#111}"
)
_PAGE_STYLE: Final = (
    "body{font:14px system-ui,sans-serif;color:#223;margin:24px auto;max-width:1100px;padding:0 16px}"
    "h1{font-size:20px}h2{font-size:15px;margin-top:28px}table{border-collapse:collapse}"
    "td,th{padding:3px 12px 3px 0;text-align:left;border-bottom:1px solid #dde}"
    "svg{max-width:100%;height:auto}"
)


class WorkEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened, or is forecast to happen, half-open in time.

    Attributes:
        start: first instant.
        end: first instant after it.
        what: the item, such as a frame of a model, a job, a round.
        where: the host; empty where it ran nowhere, as with a dropped frame.
        kind: what it was: ``run``, ``drop``, ``page``, ``train``, ``send`` ...
    """

    start: int
    end: int
    what: str
    where: str = ""
    kind: str = "run"


class WorkTrace(msgspec.Struct, frozen=True):
    """What happened, in one layout for real, timed and simulated runs.

    Attributes:
        source: ``forecast`` of a plan, ``simulated``, ``timed`` (real work, virtual clock) or ``real``.
        unit: of all times: ``ns``, ``ms`` or ``s``.
        events: by start.
        seed: of everything random.
    """

    source: Literal["forecast", "simulated", "timed", "real"]
    unit: Literal["ns", "ms", "s"]
    events: tuple[WorkEvent, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One event of a lane.

    Attributes:
        start: in the unit of the picture.
        end: likewise; equal to start: a cross.
        what: decides the colour, and stands in the legend.
        text: for the tooltip.
    """

    start: float
    end: float
    what: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a picture."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot: points by time."""

    name: str
    points: tuple[tuple[float, float], ...]


def colour(what: str) -> str:
    """Give a name a colour, the same in every picture."""
    digest = hashlib.sha256(what.encode()).digest()
    return f"hsl({int.from_bytes(digest[:2], 'big') % 360} 46% {46 + digest[2] % 16}%)"


def draw_lanes(lanes: Sequence[Lane], *, unit: str, title: str = "", width: int = 1060, row: int = 26) -> str:
    """Draw lanes of bars.

    Args:
        lanes: from top to bottom.
        unit: of time, such as ``ms``.
        title: one line above.
        width: pixels.
        row: height of a lane, pixels.

    Returns:
        A complete SVG document.

    Raises:
        TightropeError: there are more than 20,000 bars.

    Example:
        >>> draw_lanes([Lane("cpu", (Bar(0, 1, "a"), Bar(1, 1, "a")))], unit="ms").count('class="b"')
        1
    """
    count = sum(len(lane.bars) for lane in lanes)
    if count > _MOST:
        raise TightropeError(f"{count:,} bars are too many to draw; at most {_MOST:,}: draw a shorter time.")
    low = min((bar.start for lane in lanes for bar in lane.bars), default=0.0)
    high = max((bar.end for lane in lanes for bar in lane.bars), default=1.0)
    across = (width - _LEFT - _RIGHT) / ((high - low) or 1.0)
    names = sorted({bar.what for lane in lanes for bar in lane.bars}, key=_by_number)
    floor = _TOP + row * len(lanes)
    parts = _head(width, floor + _BOTTOM + 18 * -(-len(names) // 5), title)
    parts += _axis(width, floor, low, high, unit)
    for at, lane in enumerate(lanes):
        y = _TOP + row * at
        parts.append(_text(_LEFT - 8, y + row * 0.65, lane.name[:24], "end"))
        parts += [_bar(bar, _LEFT + (bar.start - low) * across, across, y, row) for bar in lane.bars]
    for at, name in enumerate(names):
        x, y = _LEFT + 180 * (at % 5), floor + _BOTTOM + 18 * (at // 5)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour(name)}"/>')
        parts.append(_text(x + 14, y, name[:24]))
    return "\n".join([*parts, "</svg>", ""])


def draw_curves(
    curves: Sequence[Curve], *, unit: str, label: str, title: str = "", width: int = 1060, height: int = 260
) -> str:
    """Draw curves over time, from 0 upwards.

    Args:
        curves: each with points ascending in time.
        unit: of time.
        label: what the values are.
        title: one line above.
        width: pixels.
        height: pixels.

    Returns:
        A complete SVG document.

    Raises:
        TightropeError: there are more than 20,000 points.

    Example:
        >>> "polyline" in draw_curves([Curve("hosts", ((0, 1), (2, 3)))], unit="h", label="hosts")
        True
    """
    points = [point for curve in curves for point in curve.points]
    if len(points) > _MOST:
        raise TightropeError(f"{len(points):,} points are too many to draw; at most {_MOST:,}.")
    low, high = min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0)
    top = max((y for _, y in points), default=1.0) or 1.0
    across = (width - _LEFT - _RIGHT) / ((high - low) or 1.0)
    floor = height - _BOTTOM
    parts = _head(width, height + 18, title)
    parts += _axis(width, floor, low, high, unit)
    for value in ticks(0.0, top, 4):
        y = floor - (floor - _TOP) * value / top
        parts.append(f'<line class="g" x1="{_LEFT}" y1="{y:.1f}" x2="{width - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end"))
    for at, curve in enumerate(curves):
        shown = " ".join(
            f"{_LEFT + (x - low) * across:.1f},{floor - (floor - _TOP) * y / top:.1f}"
            for x, y in curve.points
        )
        parts.append(f'<polyline class="c" stroke="{colour(curve.name)}" points="{shown}"/>')
        if len(points) <= _HOVERED:
            parts += [
                _point(curve.name, one, place.split(","), (unit, label))
                for one, place in zip(curve.points, shown.split(), strict=False)
            ]
        x = _LEFT + 260 * at
        parts.append(f'<rect x="{x}" y="{height + 1}" width="10" height="10" fill="{colour(curve.name)}"/>')
        parts.append(_text(x + 14, height + 10, curve.name[:36]))
    parts.append(_text(8, _TOP / 2 + 4, label))
    return "\n".join([*parts, "</svg>", ""])


def work_page(
    title: str,
    pictures: Sequence[tuple[str, str]],
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
) -> str:
    """Put pictures and tables on one page that opens from disk, runs nothing and asks for nothing.

    Args:
        title: of the page.
        pictures: heading and SVG.
        tables: heading, column names, rows.

    Returns:
        The text of an HTML file.

    Example:
        >>> work_page("streams", []).startswith("<!doctype html>")
        True
    """
    styles = (_PAGE_STYLE, _STYLE)
    allowed = " ".join(f"'{_hash(style)}'" for style in styles)
    policy = f"default-src 'none'; style-src {allowed}; base-uri 'none'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{_safe(title)}</title><style>{_PAGE_STYLE}</style><style>{_STYLE}</style></head><body>",
        f"<h1>{_safe(title)}</h1>",
    ]
    for heading, columns, rows in tables:
        cells = "".join(f"<th>{_safe(name)}</th>" for name in columns)
        parts.append(f"<h2>{_safe(heading)}</h2><table><tr>{cells}</tr>")
        parts += ["<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</table>")
    parts += [
        f"<h2>{_safe(heading)}</h2>{svg.replace(f'<style>{_STYLE}</style>', '')}" for heading, svg in pictures
    ]
    return "\n".join([*parts, "</body></html>", ""])


def _by_number(name: str) -> tuple[int, str]:
    """Sort names that begin with whole numbers by these."""
    first = name.split(" ", 1)[0]
    return (int(first) if first.isascii() and first.isdigit() else 0, name)


def _head(width: int, height: float, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height:.0f}" fill="#fff"/>',
        _text(_LEFT, _TOP / 2 + 4, title),
    ]


def _bar(bar: Bar, x: float, across: float, y: float, row: int) -> str:
    tip = f"<title>{_safe(bar.text or bar.what)}</title>"
    if bar.end <= bar.start:
        middle, size = y + row / 2, 3
        path = (
            f"M{x - size:.1f} {middle - size}L{x + size:.1f} {middle + size}M{x - size:.1f} {middle + size}"
        )
        return f'<path class="x" d="{path}L{x + size:.1f} {middle - size}">{tip}</path>'
    return (
        f'<rect class="b" x="{x:.2f}" y="{y + 3}" width="{max(0.5, (bar.end - bar.start) * across):.2f}" '
        f'height="{row - 6}" fill="{colour(bar.what)}">{tip}</rect>'
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """List round numbers between two, at most ``most`` + 1 of them.

    >>> ticks(0, 700, 8)
    [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0]
    """
    raw = (high - low) / most
    if not 0 < raw < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _axis(width: int, floor: float, low: float, high: float, unit: str) -> list[str]:
    end = width - _RIGHT
    across = (end - _LEFT) / ((high - low) or 1.0)
    parts = [f'<line class="a" x1="{_LEFT}" y1="{floor}" x2="{end}" y2="{floor}"/>']
    for value in ticks(low, high, 8):
        x = _LEFT + (value - low) * across
        parts.append(f'<line class="g" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"/>')
        parts.append(_text(x, floor + 15, f"{value:g}", "middle"))
    return [*parts, _text(_LEFT - 8, floor + 15, f"time, {unit}", "end")]


def _point(name: str, value: tuple[float, float], place: Sequence[str], units: tuple[str, str]) -> str:
    tip = f"{name}: {value[1]:.4g} {units[1]} at {value[0]:.4g} {units[0]}"
    return f'<circle class="p" cx="{place[0]}" cy="{place[1]}" r="4"><title>{_safe(tip)}</title></circle>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(printable(text))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
