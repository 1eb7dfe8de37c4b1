"""The live bytes of a trace."""

from hypothesis import given
from hypothesis import strategies as st

from tightrope.core import Buffer, Trace

DRAWN = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20), st.integers(1, 20)), max_size=10)


def test_sizes_are_rounded_up_and_lifetimes_half_open() -> None:
    trace = Trace("forecast", (Buffer(1, 0, 2), Buffer(65, 1, 3), Buffer(64, 2, 4)), num_events=4)
    assert trace.profile() == [64, 192, 192, 64]
    assert trace.peak == 192
    assert Trace("observed", ()).peak == 0


@given(DRAWN)
def test_the_profile_counts_every_live_buffer(drawn: list[tuple[int, int, int]]) -> None:
    buffers = tuple(Buffer(size, start, start + length) for size, start, length in drawn)
    trace = Trace("observed", buffers, num_events=40)
    for tick, live in enumerate(trace.profile()):
        assert live == sum((b.bytes + 63) // 64 * 64 for b in buffers if b.start <= tick < b.end)
