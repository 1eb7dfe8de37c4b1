"""The benchmark of estimates: what it compares is what was seen."""

import pytest

from benchmarks.estimating import peaks


@pytest.mark.slow
def test_the_estimate_of_a_small_net_is_within_one_percent_of_what_is_seen() -> None:
    estimate, seen, eager = peaks("unet", "test")
    assert abs(seen - estimate) <= 0.01 * estimate
    assert eager > seen / 2
