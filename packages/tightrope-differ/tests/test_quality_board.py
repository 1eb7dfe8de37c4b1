"""Nets on a board: all limits at once, refusals that name a limit, and a judge that is fed wrong answers."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace as changed
from torch import nn

from tightrope.cli.machines import find_machine
from tightrope.core import JudgeError, Limits, TightropeError
from tightrope.core.plan import load_plan
from tightrope_differ.judge.quality import check_choice
from tightrope_differ.nets.board import Board, _window, _with_plain_pools
from tightrope_differ.quality import Application, find_region, limit_of
from tightrope_differ.quality.choose import VariantSearch, choose, forms_of, search_guided
from tightrope_differ.quality.show import choice
from tightrope_differ.values.quality import BoardFigures, QualityReport

SAMPLE = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
MACHINE = changed(find_machine("nrf52840"), flash=65536)


def net(channels: int) -> nn.Module:
    torch.manual_seed(channels)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * channels, 2),
    ).eval()  # fmt: skip


def application(**more: Any) -> Application:
    """Errors are distances from what larger nets answer."""
    right = {name: net(channels)(SAMPLE).detach() for name, channels in (("a", 6), ("b", 4))}

    def measure(nets: dict[str, nn.Module]) -> dict[str, float]:
        return {name: float((one(SAMPLE).detach() - right[name]).abs().max()) for name, one in nets.items()}

    given: dict[str, Any] = {
        "nets": {"a": net(6), "b": net(4)},
        "measure": measure,
        "perceive": measure,
        "samples": {"a": SAMPLE, "b": SAMPLE},
    }
    axes = {"a": (0.0, 4.0), "b": (0.0, 4.0)}
    return Application(axes, dict, lambda e: 0.3 - e["a"] - e["b"], **(given | more))


APP = application()
FORMS = {name: [one for one in found if "as it is" in one.name] for name, found in forms_of(APP).items()}
REGION = find_region("app", APP, budget=20)


def searched(ram: int = 8192, flash: int = 65536, seconds: float | None = 0.1) -> QualityReport:
    board = Board(changed(MACHINE, flash=flash), Limits((ram,), seconds))
    found = choose(APP, FORMS, REGION, board=board)
    limits = changed(board.limits, quality=limit_of(REGION))
    return QualityReport(REGION, "flops", found.tried, limits, flash)


@pytest.fixture(autouse=True)
def _plug_in() -> None:
    pytest.importorskip("tightrope_micro")


def test_nets_on_a_board_keep_all_limits_and_say_so_in_their_plan(tmp_path: Path) -> None:
    board = Board(MACHINE, Limits((8192,), 0.1))
    search = choose(APP, FORMS, REGION, board=board)
    assert search.lowered is not None
    limits = changed(board.limits, quality=limit_of(REGION))
    report = QualityReport(REGION, "flops", search.tried, limits, MACHINE.flash)
    check_choice(report)
    (one,) = search.tried
    assert one.board is not None
    assert one.board.numbers == "int8"
    assert 0 < max(one.values.values()) < 0.1  # of the C in integers, not of the nets in floats
    search.lowered.write(tmp_path / "out", limits, one.values)
    plan = load_plan((tmp_path / "out/step.plan.json").read_bytes())
    assert plan.limits.quality == limit_of(REGION)
    assert plan.forecast.quality == tuple(one.values.values())
    with pytest.raises(JudgeError, match="limits: quality: a is 2"):
        search.lowered.write(tmp_path / "worse", limits, {"a": 2.0, "b": 0.0})


@pytest.mark.slow
def test_the_emulated_board_has_the_bits_of_this_computer() -> None:
    emulate = pytest.importorskip("tightrope_micro.emulate")
    if missing := emulate.missing_tools():
        pytest.skip(missing)
    lowered = Board(MACHINE, Limits((8192,))).lowered(APP.nets, APP.samples)
    found = lowered.measured()
    assert found.instructions > 0
    assert not found.broken(Limits((8192,)), MACHINE.flash)


@pytest.mark.parametrize(
    ("limit", "given", "said"),
    [
        (
            "ram",
            {"ram": 2100},
            "excludes forms is ram: 1 break it and keep all other limits. The smallest",
        ),
        ("flash", {"flash": 64}, "excludes forms is flash: .* give more --flash"),
        ("seconds", {"seconds": 1e-9}, "excludes forms is seconds: .* give more --seconds"),
    ],
)
def test_a_refusal_names_the_limit(limit: str, given: dict[str, Any], said: str) -> None:
    report = searched(**given)
    check_choice(report)
    assert report.chosen is None
    assert report.excluding[0] == [limit]
    assert re.search(said, choice(report))


def test_the_judge_refuses_choices_that_break_a_limit() -> None:
    report = searched()
    check_choice(report)
    (one,) = report.tried
    assert one.board is not None
    quality = report.limits.quality
    assert quality is not None
    falling = changed(quality, rising=(False, True))
    for change, said in (
        ({"limits": changed(report.limits, bytes=(one.board.ram - 1,))}, "breaks .'ram'. of the board"),
        ({"limits": changed(report.limits, seconds=one.board.seconds / 2)}, "breaks .'seconds'."),
        ({"flash": one.board.flash - 1}, "breaks .'flash'."),
        ({"limits": changed(report.limits, quality=None)}, "without a limit on quality"),
        ({"limits": changed(report.limits, quality=changed(quality, corners=()))}, "0 corners"),
        (
            {"limits": changed(report.limits, quality=falling)},
            "unlike the region",
        ),
        ({"tried": [changed(one, board=changed(one.board, ram=-1))]}, "breaks .'ram'."),
        ({"tried": [changed(one, board=changed(one.board, seconds=float("nan")))]}, "breaks .'seconds'."),
        ({"tried": [changed(one, broken=["ram"])]}, "breaks no limits of the board"),
        ({"emulated": BoardFigures("int8", 9000, 1, 0.0)}, "emulated board .* break ram"),
    ):
        with pytest.raises(JudgeError, match=said):
            check_choice(changed(report, **change))
    again = msgspec.json.decode(msgspec.json.encode(report), type=QualityReport)
    check_choice(again)


def test_without_the_plug_in_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope_differ.nets.board.installed", lambda group: {})
    with pytest.raises(TightropeError, match=r"part of tightrope-micro: pip install 'tightrope\[micro\]'"):
        searched()


@pytest.mark.parametrize("size", [(6, 8), (3, 4), (7, 5), (9, 2), (4, 4)])
def test_adaptive_pools_become_plain_ones_where_that_is_the_same(size: tuple[int, int]) -> None:
    given = torch.randn(2, 3, *size)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d((2, 2)))
    plain = _with_plain_pools(pooled, given)
    assert torch.allclose(plain(given), pooled(given), atol=1e-6)
    assert [_window(old, 2) for old in (3, 4, 6, 8)] == [(2, 1), (2, 2), (3, 3), (4, 4)]
    assert _window(5, 3) is None


def test_guided_search_finds_the_cheapest_by_few_runs() -> None:
    forms = forms_of(APP)
    calls: list[object] = []

    def run(errors: dict[str, float]) -> float:
        calls.append(errors)
        return 2.5 - errors["a"] - errors["b"]

    app = replace(APP, run=run)
    region, guided = search_guided("app", app, forms)
    num = len(calls)
    plain = choose(app, forms, None, most_runs=200)
    assert guided.nets
    assert num == len(region.runs) < 8
    assert guided.tried[-1].flops == plain.tried[-1].flops
    report = QualityReport(region, "flops", guided.tried, Limits(quality=limit_of(region)))
    check_choice(report)
    _, none = search_guided("app", replace(app, run=lambda errors: -1.0), forms)
    assert none == VariantSearch(none.tried, {})
    for budget in range(1, num):
        region, few = search_guided("app", app, forms, budget=budget)
        report = QualityReport(region, "flops", few.tried, Limits(quality=limit_of(region)))
        check_choice(report)
        assert len(region.runs) == budget
        unrun = sum("runs" in one.broken for one in few.tried)
        assert not unrun or f"{unrun} cheaper forms were not run" in choice(report)
    for wrong in (float("nan"), float("inf"), 99.0):
        far = replace(app, measure=lambda nets, wrong=wrong: {"a": 0.1, "b": wrong})
        region, found = search_guided("app", far, forms)
        assert (region.runs, found.nets) == ([], {})
        check_choice(QualityReport(region, "flops", found.tried, Limits(quality=limit_of(region))))
    better, found = search_guided("app", replace(app, measure=lambda nets: {"a": -1.0, "b": 0.1}), forms)
    check_choice(QualityReport(better, "flops", found.tried, Limits(quality=limit_of(better))))
    assert found.nets
