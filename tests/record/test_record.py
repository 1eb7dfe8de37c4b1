"""Traces that are impossible."""

import math

import msgspec
import pytest

from tightrope.core import Buffer, Event, PlanFileError, Summary, Trace
from tightrope.view import page

NAN: int = math.nan  # type: ignore[assignment]
EVIL: list[tuple[dict[str, object], str]] = [
    ({"events": (Event(0, 1, 0, module=3),)}, r"events\[0\].module"),
    ({"events": (Event(0, 1, 0, line=0),)}, r"events\[0\].line"),
    ({"events": (Event(0, 1, 0, callers=0),)}, r"events\[0\].callers"),
    ({"callers": ((0,),)}, r"callers\[0\]"),
    ({"events": (Event(NAN, 1, 0),)}, r"events\[0\].start"),
    ({"events": (Event(0, NAN, 0),)}, r"events\[0\].end"),
    ({"events": (Event(0, 2**53, 0),)}, r"events\[0\].end = 9007199254740992: .* below 2\^53"),
    ({"events": (Event(0, 1, 0, phase="forward"),)}, r"events\[0\].phase"),  # type: ignore[arg-type]
    ({"events": (Event(0, 1, 0, name=None),)}, r"events\[0\].name"),  # type: ignore[arg-type]
    ({"modules": ()}, "root"),
    ({"num_events": NAN}, "num_events"),
    ({"num_events": 1, "ticks": (2**53,)}, r"ticks\[0\]"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 5),)}, r"buffers\[0\] is alive in \[0, 5\)"),
    ({"num_events": 2, "buffers": (Buffer(1, NAN, 2),)}, r"buffers\[0\] is alive"),
    ({"num_events": 2, "buffers": (Buffer(2**53, 0, 2),)}, r"buffers\[0\].bytes"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 2, reason=0),)}, r"buffers\[0\].reason"),
    ({"num_events": 2, "buffers": (Buffer(1, 0, 2, readers=(0,)),)}, r"buffers\[0\].readers"),
    ({"events": None}, "TypeError"),
    ({"summary": Summary(match=math.nan)}, "summary.match"),
]


@pytest.mark.parametrize(("change", "message"), EVIL)
def test_impossible_traces_made_by_hand_are_refused_at_every_door(
    change: dict[str, object], message: str
) -> None:
    trace = msgspec.structs.replace(Trace("observed", ()), **change)
    with pytest.raises(PlanFileError, match=message):
        page(trace)
