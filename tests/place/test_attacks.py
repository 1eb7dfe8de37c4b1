"""Input that once gave wrong answers."""

from math import nan

import pytest

from tightrope.core import TightropeError
from tightrope.place import place


@pytest.mark.parametrize(
    "ask",
    [
        lambda: place([(1.5, 0, 2), (1.5, 0, 2)]),  # type: ignore[list-item]
        lambda: place([(1, 0, 2)], fixed={0: 0.5}),  # type: ignore[dict-item]
        lambda: place([(1, 0, 2)], alignments=[1.5]),  # type: ignore[list-item]
        lambda: place([(1, 0, 2)], seconds=nan),
        lambda: place([(1, 0, 2)], capacity=nan),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_whole_number_is_refused(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(TightropeError):
        ask()


def test_fixed_buffers_are_checked_in_no_time_when_there_are_many() -> None:
    buffers = [(64, at, at + 10) for at in range(50_000)]
    fixed = {at: 64 * (at % 10) for at in range(50_000)}
    assert place(buffers, fixed=fixed).peak == 640
    with pytest.raises(TightropeError, match="fixed buffers 7 and 8 overlap"):
        place(buffers, fixed=fixed | {8: fixed[7]})
