"""Compatible rules: the scores of the reference program, pinned."""

import math

import pytest

from tightrope_fleet.judge.streams import check_stream_run
from tightrope_fleet.streams import POLICIES, expand, score, simulate, xrbench

MACHINES = (
    "Single_4K-WS",
    "Single_8K-WS",
    "Single_4K-OS",
    "Dual_4K-WS_OS",
    "Dual_8K-WS_OS",
    "Quad_8K-WS_OS_WS_OS",
)
PINNED = {
    "VR_gaming": (86.466, 93.960, 31.354, 62.122, 76.328, 87.172),
    "AR_gaming": (20.225, 63.297, 0, 0, 51.124, 67.592),
    "social_interactionA": (61.029, 90.341, 0, 19.118, 78.754, 79.508),
    "social_interactionB": (98.146, 98.170, 98.492, 98.321, 98.370, 98.544),
}


@pytest.mark.parametrize("name", PINNED)
def test_scores_are_those_of_the_reference(name: str) -> None:
    library = xrbench()
    for machine, pinned in zip(MACHINES, PINNED[name], strict=True):
        case = expand(library.scenario(name), library.machine(machine), rules="compatible")
        run = simulate(case, POLICIES["latency"](case))
        found = score(case.scenario, run).total
        assert math.isclose(found, pinned, abs_tol=0.001), machine
        assert math.isclose(check_stream_run(case.scenario, case.machine, run), found, abs_tol=1e-9)


def test_the_first_rows_are_those_of_the_published_timeline() -> None:
    """Dispatch and completion in ms of VR_gaming on Single_4K-WS, as the reference's own file has them."""
    library = xrbench()
    case = expand(library.scenario("VR_gaming"), library.machine("Single_4K-WS"), rules="compatible")
    done = [frame for frame in simulate(case, POLICIES["latency"](case)).frames if frame.state == "done"]
    assert len(done) == 115
    rows = [(f"{frame.start / 1e6:.6f}", f"{frame.end / 1e6:.6f}") for frame in done[:4]]
    assert rows == [
        ("0.000000", "1.503136"),
        ("1.503136", "5.725173"),
        ("5.725173", "14.286853"),
        ("16.000000", "17.503136"),
    ]
