"""``tightrope trace`` and ``tightrope record``: what they print, write, and refuse."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from command import run, run_process
from torch.profiler import ProfilerActivity, profile

from tightrope.core import Plan
from tightrope.record import read


@pytest.fixture(scope="module")
def observed(net: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of an eager step."""
    file = tmp_path_factory.mktemp("traces") / "eager.trace"
    done = run("record", f"{net}:build", "-o", file)
    assert done.code == 0, done.err
    assert f"{file}: {len(read(file).events)} events" in done.out
    return file


def test_a_plan_is_simulated_with_the_graph_beside_it(files: tuple[Path, Path]) -> None:
    plan = Plan.load(files[0])
    done = run("trace", files[0], "--save", "1kB", "--json")
    assert done.code == 0, done.err
    answers = json.loads(done.out)
    assert answers["peak"] == plan.forecast.peak
    assert answers["ns"] == plan.forecast.ns
    assert answers["alive"]
    assert answers["saving"]["bytes"] >= 1000 == answers["saving"]["asked"]


def test_a_plan_without_its_graph_says_what_to_add(files: tuple[Path, Path], tmp_path: Path) -> None:
    alone = tmp_path / "alone.plan.json"
    alone.write_bytes(files[0].read_bytes())
    done = run("trace", alone)
    assert done.code == 2
    assert "--graph" in done.err
    assert run("trace", alone, "--graph", files[1]).code == 0


def test_an_eager_trace_answers_in_words_and_names_its_modules(observed: Path) -> None:
    done = run("trace", observed, "--top", "3")
    assert done.code == 0, done.err
    assert "dominates" in done.out
    paths = {module.path for module in read(observed).modules}
    assert "body.[batch].0.0" in paths


def test_what_changed_is_told_against_an_earlier_trace(observed: Path, files: tuple[Path, Path]) -> None:
    done = run("trace", observed, "--against", files[0], "--json")
    assert done.code == 0, done.err
    changed = json.loads(done.out)["changed"]
    assert changed["peak"] == [Plan.load(files[0]).forecast.peak, read(observed).peak]
    assert f"against {files[0]}" in run("trace", observed, "--against", files[0]).out


def test_exports_hold_every_event_and_every_buffer(observed: Path, tmp_path: Path) -> None:
    copy, perfetto, snapshot = (tmp_path / name for name in ("a.trace", "a.json", "a.pickle"))
    done = run("trace", observed, "-o", copy, "--perfetto", perfetto, "--snapshot", snapshot)
    assert done.code == 0, done.err
    trace = read(observed)
    assert read(copy) == trace
    rows = json.loads(perfetto.read_text())["traceEvents"]
    assert sum(row["ph"] == "X" for row in rows) == len(trace.events)
    kept = pickle.loads(snapshot.read_bytes())["device_traces"][0]
    assert sum(row["action"] == "alloc" for row in kept) == len(trace.buffers)


def test_a_profile_finds_the_modules_of_the_model_that_is_named(net: Path, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
    file, code, out = tmp_path / "profile.json", tmp_path / "small.py", tmp_path / "found.trace"
    code.write_text(
        "import torch\ndef build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()), (torch.ones(4, 16),)\n"
    )
    with profile(activities=[ProfilerActivity.CPU]) as watcher:
        model(torch.ones(4, 16)).sum().backward()
    watcher.export_chrome_trace(str(file))
    assert run("trace", file, "--model", f"{code}:build", "-o", out).code == 0
    trace = read(out)
    owners = {event.name: trace.modules[event.module].path for event in trace.events}
    assert (owners["aten::linear"], owners["aten::gelu"], owners["aten::gelu_backward"]) == ("0", "1", "1")
    assert run("trace", file, "-o", out).code == 0
    assert len(read(out).modules) == 1


def test_a_planned_run_is_recorded(net: Path, tmp_path: Path) -> None:
    file = tmp_path / "planned.trace"
    done = run_process("record", f"{net}:build", "--budget", "90%", "-o", file, "--json")  # counts all held
    assert done.code == 0, done.err
    trace = read(file)
    assert json.loads(done.out)["file"] == str(file)
    assert trace.summary.producer == "run"
    assert trace.summary.budget > 0


@pytest.mark.parametrize("data", [b"", b"{}", b"\x89PNG", b'{"traceEvents": 3}', b"TIGHTROP"])
def test_files_that_are_none_of_these_are_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "what"
    file.write_bytes(data)
    done = run("trace", file)
    assert done.code == 2
    assert done.err
    assert "Traceback" not in done.err


def test_a_loss_is_needed_to_record(tmp_path: Path) -> None:
    file = tmp_path / "no_loss.py"
    file.write_text("import torch\ndef build():\n    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)\n")
    done = run("record", f"{file}:build", "-o", tmp_path / "x.trace")
    assert done.code == 2
    assert "must return the loss" in done.err
