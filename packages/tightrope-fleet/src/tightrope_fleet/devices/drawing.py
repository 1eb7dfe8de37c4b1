"""Draw what is right against virtual time, as SVG: one line per run; and a page of a run."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from tightrope_fleet.devices.job import FleetResult
from tightrope_fleet.values.work import promise_table
from tightrope_shared import draw

_COLOURS: Final = ("#0b62a8", "#b3450b", "#3d7a2a", "#7a3d8f")
_WIDE, _HIGH, _EDGE = 640, 360, 48


def draw_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw curves of (virtual seconds, share of wrong answers) as share of right answers.

    >>> draw_curves({"sync": [(60.0, 0.5), (120.0, 0.25)]}).count("<polyline")
    1
    """
    last = max((t for curve in curves.values() for t, _ in curve), default=1.0) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" font-family="sans-serif" '
        'font-size="12" role="img"><title>Right answers against virtual time</title>',
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        lines.append(
            f'<path d="M{_EDGE} {y}H{_WIDE - 8}" stroke="#ddd"/><text x="8" y="{y + 4}">{tenth * 10} %</text>'
        )
        x = _EDGE + (_WIDE - _EDGE - 8) * tenth / 10
        lines.append(
            f'<text x="{x:.0f}" y="{_HIGH - 8}" text-anchor="middle">{last * tenth / 600:.3g} min</text>'
        )
    for place, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        points = " ".join(f"{_EDGE + (_WIDE - _EDGE - 8) * t / last:.1f},{_y(1 - e):.1f}" for t, e in curve)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(
            f'<text x="{_WIDE - 150}" y="{_HIGH - 60 - 18 * place}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def fleet_page(result: FleetResult, mode: str) -> str:
    """Put limits, tasks and curves against virtual time on one page that opens from disk."""
    log = result.log
    pictures = []
    if result.curve:
        right = tuple((t / 60, 100 * (1 - e)) for t, e in result.curve)
        curve = draw.Curve(f"{mode}, trained", right)
        pictures.append(("Accuracy", draw.draw_curves([curve], unit="min", label="right answers, %")))
    # the virtual clock counts milliseconds
    made = tuple((at / 60_000, float(n)) for n, at in enumerate(log.steps, 1))
    curve = draw.Curve(f"{mode}, versions made", made)
    pictures.append(("Progress", draw.draw_curves([curve], unit="min", label="versions of the model")))
    tasks = (log.started, log.succeeded, log.interrupted, log.stale, log.running)
    names = ("started", "succeeded", "interrupted", "stale", "running")
    return draw.work_page(
        f"Federated training, {mode}",
        pictures,
        [
            ("Limits", ("limit", "asked", "forecast", "observed", ""), promise_table(result.promises)),
            ("Tasks", names, [[str(count) for count in tasks]]),
        ],
    )


def _y(share: float) -> float:
    return _HIGH - 30 - (_HIGH - 44) * share
