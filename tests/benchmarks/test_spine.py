"""The spine's bars run on small nets, and their verdicts tell good rows from bad ones."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import tightrope
from benchmarks.__main__ import main
from benchmarks._measure import Bits, HighWater, Loop, bits, bootstrap, digest, live_peak, paired_ratio
from benchmarks.spine import BARS, curves, estimates, limits, monotone
from benchmarks.spine import main as command
from benchmarks.spine.bar import Bar, Row, Settings, Verdict
from benchmarks.spine.nets import native
from tightrope.native import compiler
from tightrope.run.ledger.accounts import accounts

TINY = Settings(scale="test", quick=True)
needs_allocator = pytest.mark.skipif(compiler() is None, reason="bytes are counted by the native allocator")


def _bar(name: str) -> Bar:
    return next(bar for bar in BARS if name in bar.ids)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs per ratio, three repetitions."""
    monkeypatch.setattr(Settings, "num_pairs", 2)
    monkeypatch.setattr(limits, "_NUM_TIMES", (3, 3))


# what is measured with


def test_a_loop_that_works_three_times_as_hard_takes_about_three_times_as_long() -> None:
    model = torch.nn.Linear(64, 64)
    data = torch.ones(256, 64)

    def work(times: int) -> Loop:
        return Loop(model, (data,), lambda x: sum((model(x).sum() for _ in range(times)), torch.zeros(())))

    ratio = paired_ratio(work(60), work(20), num_pairs=10)
    assert 2.0 < ratio.median < 4.5
    assert ratio.low <= ratio.median <= ratio.high


def test_the_interval_of_equal_ratios_is_a_point() -> None:
    ratio = bootstrap([1.5] * 9)
    assert (ratio.low, ratio.median, ratio.high) == (1.5, 1.5, 1.5)
    assert str(ratio) == "1.500 [1.500, 1.500]"


def test_a_digest_sees_values_shapes_dtypes_and_absence() -> None:
    zeros = torch.zeros(4)
    others = [torch.ones(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), None]
    assert digest([zeros]) == digest([torch.zeros(8)[::2]])
    assert len({digest([zeros]), *(digest([other]) for other in others)}) == 5


@needs_allocator
def test_the_live_peak_counts_what_a_step_makes_above_what_it_finds() -> None:
    counter = native()
    weight = torch.nn.Parameter(torch.ones(1024))
    holder = torch.nn.ParameterList([weight])
    peak = live_peak(Loop(holder, (), lambda: (weight * weight).sum()), counter)
    gradient = product = 4096
    assert gradient + product <= peak <= 4 * 4096


@needs_allocator
def test_the_high_water_mark_survives_resets() -> None:
    counter = native()
    base = counter.stats().charged
    with HighWater(counter) as water:
        large = torch.empty(2**20)
        del large
        counter.reset_peaks()
        small = torch.empty(16)
        del small
    assert water.bytes >= base + 2**22
    assert not {"reset_peaks", "begin_span", "end_span"} & set(vars(counter))


@needs_allocator
def test_the_high_water_mark_sees_what_a_part_of_a_planned_step_takes() -> None:
    x = torch.randn(256, 64)
    net = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6))
    )
    tightrope.compile(net, budget=native().stats().charged + 2**24, progress=False)
    for _ in range(3):
        net(x).square().mean().backward()
    with HighWater(native()) as water:
        net(x).square().mean().backward()
    found = tightrope.report(net)
    assert found.observed_total - 2**12 <= water.bytes + accounts().older <= found.observed_total


def test_bits_of_two_equal_runs_are_equal_and_name_what_differs() -> None:
    def run(noise: float) -> Bits:
        model = torch.nn.Linear(4, 4)
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.fill_(noise)
        return bits(Loop(model, (torch.ones(2, 4),), lambda x: model(x).square().sum()), num_steps=2)

    assert run(0.0).differences(run(0.0)) == ""
    assert run(0.0).differences(run(1.0)) == "losses, gradients"
    assert replace(run(0.0), random="other").differences(run(0.0)) == "random"


# every bar, on one small net


def _rows(name: str, net: str) -> list[Row]:
    rows = list(_bar(name).rows(net, TINY))
    assert rows
    for row in rows:
        assert row["net"] == net
        assert "failed" not in row, row
        json.dumps(row)
    return rows


@pytest.mark.slow
@needs_allocator
def test_budgets_and_limits_hold_on_a_small_net(few: None) -> None:
    rows = _rows("S1", "custom_function")
    assert [row["ask"] for row in rows] == ["90%", "75%", "60%", "50%", "smallest"]
    accepted = [row for row in rows if row["accepted"]]
    assert accepted
    for row in accepted:
        assert row["charged"] <= row["budget"]
        assert row["differs_from_captured"] == ""
        assert row["judge"] == []
    (limit,) = _rows("S3", "custom_function")
    assert (limit["passed"], limit["raised"], limit["recovered"], limit["leaked"]) == (3, 3, 3, 0)


@pytest.mark.slow
@needs_allocator
def test_refusals_estimates_and_limits_beforehand_on_a_small_net() -> None:
    for row in _rows("S9", "custom_function"):
        assert row["refused"]
        assert row["untouched"]
    (row,) = _rows("S11", "custom_function")
    assert row["estimate"] > 0
    assert row["observed"] == row["estimate"] + row["temporaries"] + row["residual"]
    (row,) = _rows("S13", "custom_function")
    assert row["charged"] <= row["limit"]


@pytest.mark.slow
@needs_allocator
def test_curves_have_the_peers_and_the_planned_points(few: None) -> None:
    rows = {row["who"]: row for row in _rows("S5", "vit")}
    assert {"eager again", "per block", "aot_eager 0.5", "tightrope smallest"} <= set(rows)
    assert rows["eager again"]["share"] == pytest.approx(1.0, abs=0.01)
    assert rows["per block"]["share"] <= 1.0
    assert rows["per block"]["equal"]
    assert all(math.isfinite(row["ratio"]) for row in rows.values() if "ratio" in row)


@pytest.mark.slow
@needs_allocator
def test_monotone_speed_and_replay_on_a_small_net(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monotone, "_NUM_BUDGETS", 3)
    rows = list(_bar("S6").rows("custom_function", TINY))
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert not any(row["inversion"] for row in rows)
    assert all(row["never_worse"] for row in _rows("S7", "inplace_tied"))
    (row,) = _rows("S8", "custom_function")
    assert row["hits"] > 0
    assert row["losses_equal"]


def test_the_bars_that_tests_show_name_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    for name in ("S10", "S12"):
        rows = _rows(name, name)
        assert all((root / row["file"]).is_file() and row["tests"] > 0 for row in rows)


def test_every_bar_of_the_issue_is_there_once() -> None:
    ids = [name for bar in BARS for name in bar.ids]
    assert sorted(ids) == sorted(
        ["E1", *(f"S{number}" for number in range(1, 14)), *(f"U{number}" for number in range(1, 7))]
    )


# verdicts: rows that are good, and the same rows with one thing wrong


GOOD: dict[str, Row] = {
    "S1": {
        "net": "x", "ask": "smallest", "accepted": True, "budget": 100, "charged": 90, "high_water": 95,
        "gap": 0, "divergences": 0, "judge": [], "differs_from_captured": "", "differs_from_eager": "",
        "captured_differs_from_eager": "",
    },
    "S3": {"net": "x", "times": 5, "passed": 5, "raised": 3, "less": 2, "recovered": 5, "leaked": 0},
    "S9": {
        "net": "x", "refused": True, "asked": 1, "bound": 2, "smallest": 3, "untouched": True,
        "op": "aten.mm.default in net.fc (model.py:3)", "message": "asked",
    },
    "S11": {"net": "x", "residual": 0},
    "S13": {"net": "x", "ok": True},
    "S6": {"net": "x", "inversion": False, "room": 1},
    "S8": {"net": "x", "hits": 9, "misses": 0, "outside": 0, "losses_equal": True, "ratio": 1.0},
    "S7": {"net": "gpt2_deep", "ops": 1000, "capture": 1.0, "first": 0.5, "never_worse": True},
}  # fmt: skip

WRONG: list[tuple[str, Row]] = [
    ("S1", {"charged": 101}),
    ("S1", {"high_water": 101}),
    ("S1", {"gap": -64}),
    ("S1", {"divergences": 1}),
    ("S1", {"judge": ["offsets overlap"]}),
    ("S1", {"accepted": False}),
    ("S2", {"differs_from_captured": "losses"}),
    ("S2", {"differs_from_eager": "random"}),
    ("S3", {"passed": 4}),
    ("S3", {"raised": 2}),
    ("S3", {"less": 1}),
    ("S3", {"recovered": 4}),
    ("S3", {"leaked": 64}),
    ("S9", {"refused": False}),
    ("S9", {"smallest": None}),
    ("S9", {"bound": 1}),
    ("S9", {"untouched": False}),
    ("S9", {"op": "aten.mm.default (model.py:3)"}),
    ("S11", {"residual": 64}),
    ("S13", {"ok": False}),
    ("S6", {"inversion": True}),
    ("S6", {"room": -1}),
    ("S8", {"misses": 1}),
    ("S8", {"outside": 64}),
    ("S8", {"losses_equal": False}),
    ("S8", {"ratio": 1.04}),
    ("S7", {"capture": 5.1}),
    ("S7", {"first": 1.1}),
    ("S7", {"never_worse": False}),
]


def _verdict(name: str, rows: list[Row]) -> Verdict:
    return next(v for v in _bar(name).verdicts(rows, TINY) if v.bar == name)


@pytest.mark.parametrize("name", [*GOOD, "S2"])
def test_good_rows_meet_their_bar_and_no_rows_do_not(name: str) -> None:
    assert _verdict(name, [GOOD["S1" if name == "S2" else name]]).met is True
    assert _verdict(name, []).met is False


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_one_wrong_figure_misses_the_bar(name: str, change: Row) -> None:
    row = GOOD["S1" if name == "S2" else name]
    assert _verdict(name, [row, row | change]).met is False


@pytest.mark.parametrize(
    ("changes", "met"),
    [([{}, {}], True), ([{}, {"both fall": 0.04}], False), ([{}, {}, {"same": False}], False), ([{}], False)],
)
def test_two_nets_need_less_and_all_train_alike(changes: list[Row], met: bool) -> None:
    good: Row = {"net": "x", "freed fall": 0.0, "both fall": 0.05, "same": True}
    assert _verdict("U5", [good | change for change in changes]).met is met


def _points(planned: tuple[float, float], block: tuple[float, float], *, equal: bool = True) -> list[Row]:
    return [
        {"net": "x", "who": "per block", "share": block[0], "ratio": block[1], "equal": True},
        {"net": "x", "who": "tightrope 0.41", "share": planned[0], "ratio": planned[1], "equal": equal},
    ]


@pytest.mark.parametrize(
    ("rows", "met"),
    [
        (_points((0.40, 1.20), (0.5, 1.3)), True),
        (_points((0.42, 1.20), (0.5, 1.3)), False),
        (_points((0.40, 1.23), (0.5, 1.3)), False),
        (_points((0.40, 1.20), (0.39, 1.3)), False),
        (_points((0.40, 1.20), (0.5, 1.1)), False),
        (_points((0.40, 1.20), (0.5, 1.3), equal=False), False),
    ],
)
def test_the_curve_of_gpt2_is_judged_on_bytes_time_bits_and_the_peer(rows: list[Row], met: bool) -> None:
    assert curves.gpt2_verdicts(rows, TINY)[0].met is met


def test_the_curve_of_images_is_judged_on_bytes_and_bits() -> None:
    assert curves.image_verdicts(_points((0.6, 9.0), (0.5, 1.0)), TINY)[0].met is True
    assert curves.image_verdicts(_points((0.61, 1.0), (0.5, 1.0)), TINY)[0].met is False
    assert curves.image_verdicts(_points((0.5, 1.0), (0.5, 1.0), equal=False), TINY)[0].met is False


# the command


def _toy(rows: list[Row]) -> Bar:
    return replace(estimates.BAR, cases=lambda _: ("x",), rows=lambda _case, _settings: iter(rows))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Measure in this process; fill the list with what the only bar should yield."""
    rows: list[Row] = []
    monkeypatch.setattr(command, "BARS", (_toy(rows),))
    monkeypatch.setattr(command, "run_case", lambda bar, case, settings: bar.rows(case, settings))
    return rows


@pytest.mark.parametrize(("residual", "strict"), [(0, 0), (64, 1)])
def test_figures_are_written_and_only_strict_runs_fail_on_a_missed_bar(
    here: list[Row], tmp_path: Path, residual: int, strict: int
) -> None:
    here.append({"net": "x", "estimate": 1, "temporaries": 0, "observed": 1, "residual": residual})
    file = tmp_path / "deep" / "spine.json"
    console = Console(width=200, file=(tmp_path / "out.txt").open("w"))
    assert command.run(["--scale", "test", "--json", str(file)], console) == 0
    assert command.run(["--scale", "test", "--json", str(file), "--strict"], console) == strict
    written = json.loads(file.read_text())
    assert written["bars"][0]["rows"][0]["residual"] == residual
    assert written["verdicts"][0]["met"] is (residual == 0)
    assert written["versions"]["torch"] == torch.__version__
    console.file.close()
    assert ("MISSED" in (tmp_path / "out.txt").read_text()) == bool(residual)


def test_a_case_that_fails_makes_its_bar_missed(here: list[Row], tmp_path: Path) -> None:
    good = {"net": "x", "estimate": 1, "temporaries": 0, "observed": 1, "residual": 0}
    here.extend([good, {"net": "y", "failed": "Traceback\nKeyError: 'z'"}])
    with (tmp_path / "out.txt").open("w") as out:
        _, verdicts = command.measure(_toy(here), TINY, Console(width=200, file=out))
    assert [verdict.met for verdict in verdicts] == [False]
    assert "y: KeyError: 'z'" in verdicts[0].figure


def test_unknown_questions_bars_and_nets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["fog"]) == 2
    assert "spine" in capsys.readouterr().err
    for arguments in (["--only", "S99"], ["--nets", "resnet19"]):
        with pytest.raises(SystemExit, match="unknown"):
            command.run(arguments, Console())


@pytest.mark.slow
@needs_allocator
def test_one_bar_from_the_command_line_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "spine.json"
    arguments = ["spine", "--only", "S9", "--scale", "test", "--nets", "custom_function", "--json", str(file)]
    assert main(arguments) == 0
    written = json.loads(file.read_text())
    assert [row["ask"] for row in written["bars"][0]["rows"]] == ["nothing", "bound - 64"]
    assert written["num_threads"] == 1
