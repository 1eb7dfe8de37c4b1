"""``tightrope trace`` and ``tightrope record``: what they print, write, and refuse."""

import json
import pickle
import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.cli.command import run, run_process
from tightrope.cli.sound import read_sound
from tightrope.core import Plan, format_bytes, format_time
from tightrope.core.codec import load_graph
from tightrope.plan import solve
from tightrope.record import forecast
from tightrope_trace import read


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
    graph = read_sound(files[0], None).graph
    less = solve(graph, budget=plan.forecast.total - 1000, bound=True)
    price, more = answers["saving"]["price"], less.forecast.ns - plan.forecast.ns
    assert price["least_ns"] == max(0, less.certificate.ns_bound - plan.forecast.ns)
    assert price["most_ns"] == max(0, more)
    said = run("explain", files[0], "--save", "1kB")
    assert f"the plan for {format_bytes(less.budget)}" in said.out, said.err


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


@pytest.mark.slow
def test_a_planned_run_is_recorded(net: Path, tmp_path: Path) -> None:
    file = tmp_path / "planned.trace"
    done = run_process("record", f"{net}:build", "--budget", "90%", "-o", file, "--json")  # counts all held
    assert done.code == 0, done.err
    trace = read(file)
    assert json.loads(done.out)["file"] == str(file)
    assert trace.summary.producer == "run"
    assert trace.summary.budget > 0


@pytest.mark.slow
def test_a_fused_run_is_recorded(tmp_path: Path) -> None:
    code, file = tmp_path / "wide.py", tmp_path / "fused.trace"
    code.write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.up = nn.Linear(64, 256)\n"
        "    def forward(self, x):\n"
        "        y = self.up(x)\n"
        "        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))\n"
        "        return y.square().mean()\n"
        "def build():\n    return Net(), (torch.ones(512, 64),)\n"
    )
    done = run_process("record", f"{code}:build", "--budget", "200%", "--fuse", "-o", file)
    assert done.code == 0, done.err
    assert any(event.name.startswith("fused: ") for event in read(file).events)
    small = tmp_path / "small.py"
    small.write_text(
        "import torch\ndef build():\n"
        "    class Net(torch.nn.Linear):\n"
        "        def forward(self, x):\n            return super().forward(x).sum()\n"
        "    return Net(4, 4), (torch.ones(2, 4),)\n"
    )
    done = run_process("record", f"{small}:build", "--budget", "64MiB", "--fuse", "-o", file)
    assert done.code == 0, done.err
    assert "not fused: no stretch has several ops" in done.err


@pytest.mark.slow
def test_a_budget_that_is_refused_counts_no_optimizer_and_the_named_one_works(
    net: Path, tmp_path: Path
) -> None:
    refused = run_process("record", f"{net}:build", "--budget", "10kB", "-o", tmp_path / "a.trace")
    assert refused.code != 0
    assert "AdamW" not in refused.err
    found = re.search(r"Try budget=(\d+)", refused.err.replace("\n", " "))
    assert found is not None
    done = run_process("record", f"{net}:build", "--budget", found[1], "-o", tmp_path / "b.trace")
    assert done.code == 0, done.err


def test_a_profile_told_by_the_wrong_model_is_warned_about(tmp_path: Path) -> None:
    code = tmp_path / "nets.py"
    code.write_text(
        "import torch\nfrom torch.nn import Linear, Sequential\n"
        "def right():\n    return Sequential(*(Linear(8, 8) for _ in range(5))), (torch.ones(4, 8),)\n"
        "def wrong():\n    return Sequential(*(Linear(8, 8) for _ in range(7))), (torch.ones(4, 8),)\n"
    )
    file = tmp_path / "profile.json"
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    with profile(activities=[ProfilerActivity.CPU]) as watcher:
        model(torch.ones(4, 8)).sum().backward()
    watcher.export_chrome_trace(str(file))
    right = run("trace", file, "--model", f"{code}:right", "--json")
    assert right.code == 0
    assert "careful" not in right.err
    assert json.loads(right.out)["match"] == 1.0
    assert json.loads(right.out)["warning"] == ""
    out = tmp_path / "wrong.trace"
    wrong = run("trace", file, "--model", f"{code}:wrong", "--json", "-o", out)
    assert wrong.code == 0
    assert "careful: the profile and the model that names its modules match poorly (71 %)" in wrong.err
    assert json.loads(wrong.out)["match"] == 5 / 7
    assert "match poorly" in json.loads(wrong.out)["warning"]
    assert "careful" in run("trace", out).err
    assert "careful" in run("trace", file, "--model", f"{code}:right", "--against", out).err


@pytest.mark.slow
def test_a_run_by_a_plan_of_its_own_is_the_plan_to_the_byte(
    net: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    out, again, graph = (tmp_path / name for name in ("a.trace", "again.plan.json", "again.graph.json"))
    arguments = ("--plan", files[0], "-o", out, "--save-plan", again, "--save-graph", graph)
    done = run_process("record", f"{net}:build", *arguments)
    assert done.code == 0, done.err
    plan, trace = Plan.load(files[0]), read(out)
    assert Plan.load(again) == plan
    assert run("judge", again).code == 0
    said = forecast(load_graph(graph.read_bytes()), plan)
    assert trace.profile() == said.profile()
    assert [b.offset for b in trace.buffers] == list(plan.offsets)
    assert trace.summary.budget == plan.budget
    assert any(event.phase.value == "recompute" for event in trace.events)
    assert run("report", out, "--forecast", again, "-o", tmp_path / "run.html").code == 0


def test_a_plan_of_another_model_or_a_wrong_one_is_not_run(
    net: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "x.trace"
    other = run("record", f"{net}:one", "--plan", files[0], "-o", out)
    assert other.code == 2
    assert "the plan was made for graph" in other.err
    plan, graph = tmp_path / "bent.plan.json", tmp_path / "bent.graph.json"
    made = Plan.load(files[0])
    msgspec.structs.replace(made, offsets=(0,) * len(made.offsets)).save(plan)
    graph.write_bytes(files[1].read_bytes())
    bent = run("record", f"{net}:build", "--plan", plan, "-o", out)
    assert bent.code == 2
    assert "does not hold" in bent.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "90%", "--plan", "step.plan.json"), "leave out --budget"),
        (("--save-plan", "new.plan.json"), "an eager run has no plan to write"),
        (("--save-graph", "new.graph.json"), "an eager run has no plan to write"),
        (("--graph", "step.graph.json"), "add --plan FILE"),
        (("--fuse",), "add --budget"),
        (("--plan", "step.plan.json", "--save-plan", "step.plan.json"), "would be overwritten"),
    ],
)
def test_options_of_record_that_contradict_each_other_are_refused(
    net: Path, files: tuple[Path, Path], arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    known = [str(files[0].with_name(word)) if word.endswith(".json") else word for word in arguments]
    done = run("record", f"{net}:build", "-o", tmp_path / "x.trace", *known)
    assert done.code == 2
    assert message in done.err
    assert not files[0].with_name("new.plan.json").exists()


def test_the_page_and_the_terminal_give_one_step_time(observed: Path) -> None:
    trace = read(observed)
    answers = json.loads(run("trace", observed, "--json").out)
    assert answers["ns"] == trace.ns
    assert answers["operator_ns"] == sum(trace.self_times()) != trace.ns
    assert f"step time {format_time(trace.ns)}" in run("trace", observed).out


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


@pytest.mark.parametrize("option", ["--graph", "--machine", "--model"])
def test_options_that_no_file_would_use_are_refused(option: str, observed: Path) -> None:
    done = run("trace", observed, option, "odd.json")
    assert done.code == 2
    assert re.search(rf"{option} 'odd.json' goes with a (plan|profile), .*leave it out", done.err)


def test_a_trace_where_a_plan_belongs_is_told_apart(observed: Path) -> None:
    done = run("explain", observed)
    assert done.code == 2
    assert "It is a trace: tightrope trace reads it" in done.err


@pytest.mark.parametrize(
    "command",
    [("trace", "PLAN", "--perfetto", "absent/run.json"), ("record", "NET:build", "-o", "absent/run.trace")],
)
def test_a_folder_that_is_missing_is_said_before_any_work(
    command: tuple[str, ...],
    net: Path,
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("tightrope.plan"), "solve", None)
    monkeypatch.setattr(import_module("tightrope.cli.target"), "build", None)
    done = run(*(part.replace("NET", str(net)).replace("PLAN", str(files[0])) for part in command))
    assert done.code == 2
    assert "no folder 'absent'" in done.err


def test_a_name_that_is_too_long_is_said_before_any_work(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tightrope.cli.target"), "build", None)
    done = run("record", f"{net}:build", "--budget", "100%", "--save-plan", "a" * 300)
    assert done.code == 2
    assert "no file can be called 'aaa" in done.err
    assert "File name too long. Give another path." in done.err
    assert len(done.err) < 200
    done = run("record", f"{net}:build", "--budget", "100%", "--save-plan", "a\0b")
    assert done.code == 2
    assert "embedded null" in done.err


def test_no_step_is_recorded_without_values(net: Path, tmp_path: Path) -> None:
    done = run("record", f"{net}:meta", "-o", tmp_path / "run.trace")
    assert done.code == 2
    assert "lie on the meta device, so no step can run" in done.err
    assert not list(tmp_path.iterdir())


def test_only_record_fuses_and_its_help_says_so() -> None:
    assert "No other command fuses" in " ".join(run("record", "--help").out.split())
