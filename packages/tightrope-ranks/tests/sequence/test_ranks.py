"""Real ranks: numbers against the serial model, plans with the bits of the module."""

from typing import Any

import pytest
import workers

from benchmarks.sequence.ranks import on_ranks

MESSAGE = workers.S * workers.B * workers.H * 4
MODES = ("sequence", "sequence again", "tensor")


def check(found: dict[str, Any], modes: tuple[str, ...]) -> None:
    for mode in modes:
        assert found[mode]["bits"]
        assert found[mode]["error"] < 1e-6
        assert found[mode]["again"] > 0
        observed, forecast = found[mode]["peak"]
        assert (
            forecast - 256 <= observed <= forecast + 2 * MESSAGE
        )  # the backend's thread lets go when it may
    assert "hold different plans" in found["differ"]


def test_two_ranks_give_what_one_gives_and_different_plans_do_not_run() -> None:
    for found in on_ranks(2, workers.several, 2, ["sequence"]):
        check(found, ("sequence",))
        assert found["sequence"]["counted True"]["gather"] >= found["sequence"]["counted False"]["gather"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_what_one_gives_in_every_mode(ranks: int) -> None:
    gathers = {}
    for mode in MODES:  # each in new processes: what a mode leaves behind ends in the next one's step
        for found in on_ranks(ranks, workers.several, ranks, [mode]):
            check(found, (mode,))
            gathers[mode] = found[mode]["counted False"].get("gather", 0)
    assert gathers["sequence again"] == gathers["sequence"] + 2 * workers.L  # norms
