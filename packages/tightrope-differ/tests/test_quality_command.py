"""The command: what it prints, writes and refuses; and the example."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tightrope.cli import main
from tightrope.core import JudgeError
from tightrope_differ.judge.quality import check_choice, check_region
from tightrope_differ.quality import read_region
from tightrope_differ.values.quality import QualityReport

APP = """
from tightrope_differ.quality import Application


def margin(errors):
    return 0.9 - errors["a"] - 0.6 * errors["b"]


def build():
    return Application({"a": (0.0, 1.0), "b": (0.0, 1.0)}, dict, margin)


def with_nets():
    import torch

    def measure(nets):
        return {name: 1 / (1 + sum(p.numel() for p in net.parameters()) / 99) for name, net in nets.items()}

    torch.manual_seed(0)
    nets = {name: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)) for name in "ab"}
    samples = dict.fromkeys(nets, torch.zeros(2, 16))
    axes = {"a": (0.0, 1.0), "b": (0.0, 1.0)}
    return Application(axes, dict, margin, nets, measure, measure, samples)


def on_board():
    import torch

    torch.manual_seed(0)
    given = torch.randn(8, 16)
    nets = {"a": torch.nn.Linear(16, 4).eval()}
    right = nets["a"](given).detach()

    def measure(nets):
        return {"a": float((nets["a"](given).detach() - right).abs().max())}

    axes = {"a": (0.0, 1.0)}
    return Application(axes, dict, lambda e: 0.5 - e["a"], nets, measure, measure, {"a": given})


def never():
    return Application({"a": (0.0, 1.0)}, dict, lambda errors: -1.0)


def broken():
    return Application({"a": (0.0, 1.0)}, dict, lambda errors: 1 / (errors["a"] < 0.5))


def other():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def run(*given: str, function: str = "build") -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["quality", f"app.py:{function}", *given])
    return int(leaving.value.code or 0)


def test_a_region_is_printed_kept_and_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--budget-runs", "10", "--region", "region.toml", "--page", "page.html") == 0
    assert "app.py:build: 10 runs. Of the box of metrics, the application works in" in capsys.readouterr().out
    page = (folder / "page.html").read_text()
    assert page.count("<circle") == 10
    assert "a and b" in page
    assert run("--budget-runs", "12", "--region", "region.toml", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    kept = read_region(folder / "region.toml")
    check_region(kept)
    assert [one["values"] for one in said["region"]["runs"]] == [one.values for one in kept.runs]
    assert len(kept.runs) == 12


@pytest.mark.parametrize("goal", ["flops", "bytes"])
def test_nets_are_chosen_drawn_and_written(
    folder: Path, goal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    given = ("--smallest", goal, "--save", "nets.pt", "--page", "page.html")
    assert run(*given, function="with_nets") == 0
    assert f"Chosen for the fewest {goal}: a " in capsys.readouterr().out
    assert "operations" in (folder / "page.html").read_text()
    assert run("--smallest", goal, "--json", function="with_nets") == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=QualityReport)
    check_choice(report)
    assert report.chosen is not None
    nets = torch.load(folder / "nets.pt", weights_only=False)
    assert sum(p.nbytes for net in nets.values() for p in net.parameters()) == report.chosen.bytes
    for change, said in (
        ({"tried": [*report.tried[:-1], replace(report.chosen, margin=None)]}, "inside of the region"),
        ({"tried": [replace(report.chosen, values={"a": 0.9, "b": 0.9})]}, "outside of the region"),
        ({"tried": [replace(report.chosen, values={"a": 0.1})]}, "outside of the region"),
        ({"tried": [report.chosen, report.chosen]}, "were tried after it"),
        (
            {"tried": [replace(report.chosen, margin=-1.0), replace(report.chosen, flops=0, bytes=0)]},
            "more exp",
        ),
    ):
        with pytest.raises(JudgeError, match=said):
            check_choice(replace(report, **change))


def test_nets_are_written_for_a_board_or_the_limit_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tightrope_micro")
    given = ("--smallest", "flops", "--micro", "nrf52840", "--budget-runs", "6")
    assert run(*given, "--ram", "8KiB", "-o", "out", "--json", function="on_board") == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=QualityReport)
    check_choice(report)
    assert report.limits.bytes == (8192,)
    assert (folder / "out" / "step.plan.json").is_file()
    assert run(*given, "--ram", "2KiB", "-o", "none", function="on_board") == 3
    assert "What excludes forms is ram" in capsys.readouterr().out
    assert not (folder / "none").exists()


def test_what_never_works_has_no_region(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(function="never") == 3
    assert "No metrics are accepted" in capsys.readouterr().out


def test_runs_before_one_that_fails_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--region", "region.toml", function="broken") == 2
    assert "ZeroDivisionError: division by zero at app.py:46" in capsys.readouterr().err
    assert len(read_region(folder / "region.toml").runs) >= 1


@pytest.mark.parametrize(
    ("given", "function", "said"),
    [
        ((), "other", "returns a int: return a tightrope_differ.quality.Application"),
        ((), "absent", "no function 'absent'"),
        (("--region", "app.py"), "build", "is not TOML"),
        (("--page", "no/such/page.html"), "build", "no/such"),
        (("--smallest", "time"), "build", "--smallest is 'time': give one of flops, bytes"),
        (("--save", "nets.pt"), "build", "give both"),
        (("--smallest", "flops"), "build", "no nets, measure and perceive"),
        (("--micro", "nrf52840"), "build", "--micro writes nets that --smallest chooses: give both"),
        (("--ram", "4KiB"), "build", "--ram is of a board: name it by --micro"),
        (("--smallest", "flops", "--micro", "nrf52840"), "build", "give --ram, such as --ram 64KiB"),
        (("--smallest", "flops", "--micro", "z80", "--ram", "4KiB"), "build", "z80"),
        (("--smallest", "flops", "--micro", "nrf52840", "--ram", "4 cats"), "build", "4 cats"),
        (
            ("--smallest", "flops", "--micro", "nrf52840", "--ram", "4KiB", "--seconds", "nan"),
            "build",
            "--seconds is nan: give a finite number above 0",
        ),
    ],
)
def test_bad_input_ends_with_a_message(
    folder: Path, given: tuple[str, ...], function: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*given, function=function) == 2
    assert said in capsys.readouterr().err


def test_the_example_has_a_region(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "examples")
    with pytest.raises(SystemExit) as leaving:
        main(["quality", "crop_rows.py:build", "--budget-runs", "8", "--json"])
    assert not leaving.value.code
    assert json.loads(capsys.readouterr().out)["region"]["accepted_share"] > 0.1
