"""Every command, in process: what it prints, writes, and leaves with."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command import run, run_process

from tightrope.cli import doctor
from tightrope.cli.machines import names
from tightrope.core import NativeError, Plan
from tightrope.core.codec import load_graph, read_file

Files = tuple[Path, Path]
COMMANDS = ("estimate", "plan", "explain", "judge", "doctor")


def printed(*arguments: str | Path, code: int = 0) -> Any:
    found = run(*arguments)
    assert found.code == code, found.err
    return json.loads(found.out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_one_per_line(command: str) -> None:
    found = run(command, "--help")
    assert found.code == 0
    lines = [line.strip() for line in found.out.splitlines()]
    examples = lines[lines.index("Examples:") + 1 :]
    assert examples
    assert all(line.startswith(f"tightrope {command}") for line in examples if line)


def test_the_top_level_lists_every_command_and_the_exit_codes() -> None:
    found = run("--help")
    assert found.code == 0
    assert all(f"\n  {command} " in found.out for command in COMMANDS)
    assert "3 it does not" in found.out


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_an_error() -> None:
    found = run()
    assert found.code == 2
    assert "Usage: tightrope" in found.out + found.err


def test_the_version_is_that_of_the_package() -> None:
    import tightrope

    assert run("--version").out == f"tightrope {tightrope.__version__}\n"


@pytest.mark.parametrize("function", ["build", "one", "keywords", "meta"])
def test_estimate_says_whether_a_step_fits(net: Path, function: str) -> None:
    found = printed("estimate", f"{net}:{function}", "--json")
    assert found["fits"]
    assert found["total_bytes"] == found["persistent_bytes"] + found["peak_bytes"]
    assert found["lower_bound_bytes"] <= found["total_bytes"] <= found["limit_bytes"]
    at_peak = sum(-(-row["bytes"] // 64) * 64 for row in found["alive_at_peak"])
    assert at_peak == found["peak_bytes"]


def test_a_forward_without_a_scalar_loss_is_said(net: Path) -> None:
    quiet = run("estimate", f"{net}:build").err.splitlines()
    assert all(line.startswith("tightrope: ") and line.endswith(" ...") for line in quiet)  # if it is slow
    for command in (("estimate",), ("plan", "--budget", "100%", "--machine", "laptop-16gb")):
        found = run(command[0], f"{net}:lossless", *command[1:])
        assert found.code == 0, found.err
        assert "no scalar loss alone: gradients start from outputs of shapes [(64, 16)]" in found.err
    assert "without a backward" in run("estimate", f"{net}:untrained").err


def test_a_module_on_the_meta_device_needs_the_same_bytes(net: Path) -> None:
    machine = ("--machine", "laptop-16gb", "--json")
    real, meta = (printed("estimate", f"{net}:{name}", *machine) for name in ("build", "meta"))
    assert real == meta
    assert "not included" in real["note"]
    here, there = (printed("estimate", f"{net}:{name}", "--json") for name in ("build", "meta"))
    assert here["smallest_bytes"] >= there["smallest_bytes"]
    assert "measured" in here["note"]


@pytest.mark.slow
def test_estimate_tells_for_every_batch_what_an_optimizer_takes(net: Path) -> None:
    command = ("estimate", f"{net}:build", "--batch", "1,2,4,8")
    done = run(*command, "--optimizer", "adamw")
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    assert head.split()[:6] == ["batch", "seq", "without", "a", "plan", "of"]
    assert [row.split()[0] for row in rows[:4]] == ["1", "2", "4", "8"]
    adamw, none = (printed(*command, "--optimizer", name, "--json")["rows"] for name in ("adamw", "none"))
    for one, other in zip(adamw, none, strict=True):
        assert one["state_bytes"] > 0 == other["state_bytes"]
        assert one["smallest_bytes"] >= other["smallest_bytes"] + one["state_bytes"]
        assert one["total_bytes"] >= other["total_bytes"] + one["state_bytes"]
    smallest = [row["smallest_bytes"] for row in adamw]
    assert smallest == sorted(smallest)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--batch", "0,2", "batch '0,2'"),
        ("--batch", "x", "sizes"),
        ("--optimizer", "lion", "there are none, sgd"),
    ],
)
def test_wrong_batches_and_optimizers_are_refused(net: Path, option: str, value: str, message: str) -> None:
    done = run("estimate", f"{net}:build", option, value)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "NET:build", "--budget", "80%", "-o", "absent/step.plan.json"),
        ("plan", "NET:build", "--budget", "80%", "--save-graph", "absent/step.graph.json"),
        ("report", "PLAN", "-o", "absent/run.html"),
    ],
)
def test_a_folder_that_is_missing_is_said_before_any_work(
    command: tuple[str, ...], net: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("tightrope.plan"), "solve", None)
    monkeypatch.setattr(import_module("tightrope.plan"), "plan_curve", None)
    monkeypatch.setattr(import_module("tightrope.cli.target"), "build", None)
    monkeypatch.setattr(import_module("tightrope.cli.sources"), "build", None)
    done = run(*(part.replace("NET", str(net)).replace("PLAN", str(files[0])) for part in command))
    assert done.code == 2
    assert "no folder 'absent'" in done.err


def test_a_link_to_itself_is_no_file(files: Files, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    done = run("report", files[0], "--against", loop, "-o", tmp_path / "x.html")
    assert done.code == 2
    assert f"{str(loop)!r}" in done.err


def test_estimate_leaves_with_3_one_byte_below_what_the_step_needs(net: Path) -> None:
    needs = printed("estimate", f"{net}:build", "--json")["once_bytes"]
    assert run("estimate", f"{net}:build", "--budget", str(needs)).code == 0
    short = run("estimate", f"{net}:build", "--budget", str(needs - 1))
    assert short.code == 3
    assert short.out.startswith("does not fit as it is, fits with a plan")


def test_brackets_in_module_names_are_printed_as_they_are(net: Path) -> None:
    assert "body.[batch].0.0" in run("estimate", f"{net}:build").out
    assert "float32[scalar]" in run("estimate", f"{net}:build").out


@pytest.mark.few(3)
@pytest.mark.parametrize("machine", names())
def test_every_machine_has_memory_and_rates(net: Path, machine: str) -> None:
    found = printed("estimate", f"{net}:meta", "--machine", machine, "--json")
    assert found["machine"] == machine
    assert found["estimated_seconds"] > 0


def test_a_slower_machine_takes_longer_and_a_smaller_one_holds_less(net: Path) -> None:
    small, large = (
        printed("estimate", f"{net}:meta", "--machine", machine, "--json")
        for machine in ("cortex-m4f-256k", "rtx3060-12gb")
    )
    assert small["estimated_seconds"] > large["estimated_seconds"]
    assert (small["limit_bytes"], large["limit_bytes"]) == (2**18, 12 * 2**30)


@pytest.mark.slow
def test_a_machine_of_ones_own_is_a_toml_file(net: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\ntiers = [{ name = "ram", bytes = 4096 }]\n')
    assert printed("estimate", f"{net}:meta", "--machine", file, "--json", code=3)["machine"] == "mine"


def test_plan_writes_a_plan_that_the_judge_accepts(files: Files) -> None:
    plan, graph = files
    assert run("judge", plan, "--graph", graph).code == 0
    found = Plan.load(plan)
    assert found.fingerprint == load_graph(read_file(graph)).fingerprint
    assert found.forecast.total <= found.budget


def test_the_graph_beside_a_plan_is_found_by_its_name(files: Files, tmp_path: Path) -> None:
    plan, _ = files
    assert run("judge", plan).code == 0
    alone = tmp_path / "step.plan.json"
    alone.write_bytes(plan.read_bytes())
    lost = run("judge", alone)
    assert lost.code == 2
    assert "--graph" in lost.err


def test_plan_prints_the_figures_and_the_sequence_as_json(files: Files) -> None:
    _, path = files
    found = printed("plan", path, "--budget", "75%", "--json")
    graph = load_graph(read_file(path))
    assert found["feasible"] is True
    assert found["planner"] in ("greedy", "anneal") or "Python" in found["planner"]
    assert found["total_bytes"] <= found["budget_bytes"]
    assert found["lower_bound_bytes"] <= found["total_bytes"]
    assert found["persistent_bytes"] + found["peak_bytes"] <= found["total_bytes"]
    assert found["cpu_seconds"] > 0
    assert found["base_seconds"] <= found["bound_seconds"] <= found["forecast_seconds"]
    runs = [graph.op(op) for op in found["sequence"]]
    again = 100 * (sum(op.ns for op in runs) / graph.base_ns - 1)
    assert found["tdi_percent"] == pytest.approx(again)


def test_equal_calls_give_equal_plans(files: Files) -> None:
    _, graph = files
    first, second = (printed("plan", graph, "--budget", "75%", "--json") for _ in range(2))
    assert first["sequence"] == second["sequence"]


def test_a_plan_that_cannot_exist_is_refused_with_its_figures(files: Files) -> None:
    found = run("plan", files[1], "--budget", "20%", "--json")
    assert found.code == 3
    refusal = json.loads(found.out)
    assert refusal["feasible"] is False
    assert refusal["asked"] < refusal["lower_bound_bytes"] <= refusal["smallest_found_bytes"]
    assert "net.py:" in refusal["op"]
    assert len(found.err.splitlines()) == 1


def test_the_smallest_budget_that_a_refusal_names_is_accepted(files: Files) -> None:
    refusal = printed("plan", files[1], "--budget", "1B", "--json", code=3)
    assert run("plan", files[1], "--budget", str(refusal["smallest_found_bytes"])).code == 0


def test_plan_takes_times_from_a_machine_for_a_module_on_meta(net: Path) -> None:
    refused = run("plan", f"{net}:meta", "--budget", "80%")
    assert refused.code == 2
    assert "--machine" in refused.err
    found = printed("plan", f"{net}:meta", "--budget", "80%", "--machine", "laptop-16gb", "--json")
    assert found["machine"] == "laptop-16gb"
    assert found["base_seconds"] > 0


def test_explain_names_tensors_and_modules_where_it_has_the_graph(files: Files, tmp_path: Path) -> None:
    plan, graph = files
    named = run("explain", plan, "--graph", graph, "--top", "5").out
    assert "body.[batch]" in named
    alone = tmp_path / "alone.json"
    alone.write_bytes(plan.read_bytes())
    found = run("explain", alone, "--top", "5")
    assert found.code == 0
    assert "body.[batch]" not in found.out
    assert found.out.count("  storage ") == 5


def test_explain_prints_the_largest_reasons_as_json(files: Files) -> None:
    found = printed("explain", files[0], "--top", "3", "--json")
    sizes = [reason["bytes"] for reason in found["reasons"]]
    assert sizes == sorted((reason.bytes for reason in Plan.load(files[0]).reasons), reverse=True)[:3]


def test_judge_leaves_with_3_on_a_plan_that_does_not_hold(files: Files, tmp_path: Path) -> None:
    plan, graph = files
    tree = json.loads(plan.read_text())
    tree["forecast"]["peak"] -= 64
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(tree))
    found = run("judge", wrong, "--graph", graph)
    assert found.code == 3
    assert found.out.startswith("refused: ")
    assert printed("judge", wrong, "--graph", graph, "--json", code=3)["holds"] is False


def test_doctor_lists_versions_and_the_native_parts() -> None:
    found = printed("doctor", "--json")
    assert found["tightrope"]
    assert found["native allocator"].startswith(("ready", "unavailable"))
    assert "native allocator" in run("doctor").out


def test_no_command_of_the_core_fuses() -> None:
    assert not [command for command in COMMANDS if "--fuse" in run(command, "--help").out]


def test_doctor_says_why_a_native_part_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise NativeError(f"the library {name!r} was built but does not load")

    monkeypatch.setattr(doctor, "load", load)
    found = printed("doctor", "--json")["native batch norm"]
    assert found == "unavailable: the library 'batch_norm' was built but does not load"


def test_a_user_function_that_fails_is_an_error_of_one_line(net: Path) -> None:
    for function, said in (
        ("fails", "no such data"),
        ("leaves", "SystemExit"),
        ("wrong", "must return (model, inputs)"),
        ("mismatch", "fails with these arguments"),
        ("breaks", "cannot be captured"),
        ("number", "must return"),
        ("absent", "no function"),
    ):
        found = run("estimate", f"{net}:{function}")
        assert found.code == 2, function
        assert said in found.err
        assert len(found.err.splitlines()) == 1


def test_a_process_is_plain_when_piped_and_quiet_on_standard_error(files: Files) -> None:
    plan, graph = files
    for colour in ({}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}):
        found = run_process("judge", plan, "--graph", graph, **colour)
        assert (found.code, found.err) == (0, "")
        assert found.out.startswith("the plan holds")
        assert "\x1b" not in found.out


def test_a_process_leaves_with_3_and_one_line_when_nothing_fits(files: Files) -> None:
    found = run_process("plan", files[1], "--budget", "1KiB", "--json")
    assert found.code == 3
    assert json.loads(found.out)["feasible"] is False
    assert found.err.startswith("tightrope: the budget is 1.00 KiB")


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tightrope", "plan", "none.json", "--budget", "1x"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("tightrope: budget '1x'")


def test_a_page_of_nothing_says_which_file_is_missing(tmp_path: Path) -> None:
    done = run("report", tmp_path / "absent.trace", "-o", tmp_path / "run.html")
    assert done.code == 2
    assert (
        f"{str(tmp_path / 'absent.trace')!r} is not a file: give the path of one that is there." in done.err
    )
