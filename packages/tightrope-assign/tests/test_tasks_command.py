"""The command: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest

from tightrope.cli import main
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph
from tightrope_assign.values.files import write_value

CLUSTER = """name = "two"
devices = [{ name = "a", bytes = 100 }, { name = "b", bytes = 60 }]
links = [{ name = "wire", latency = 1e-9, bandwidth = 1e9 }]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    tasks = [{"name": f"t{at}", "work": 10, "bytes": 50} for at in range(3)]
    write(tmp_path, tasks, [{"source": "t0", "target": "t1", "bytes": 4}])
    return tmp_path


def write(folder: Path, tasks: list, edges: list) -> None:
    (folder / "graph.json").write_text(json.dumps({"schema": 1, "tasks": tasks, "edges": edges}))


def run(*given: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["place-tasks", "graph.json", "--cluster", "cluster.toml", *given])
    return int(leaving.value.code or 0)


@pytest.mark.smoke
def test_a_plan_is_printed_written_and_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--method", "search", "-o", "plan.json", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"] == json.loads((folder / "plan.json").read_text())
    assert said["plan"]["makespan"] == 20 == said["plan"]["lower_bound"]
    assert [row["bytes"] for row in said["devices"]] == [100, 50]
    assert run("--method", "heft", "--page", "plan.html") == 0
    assert "Devices over time" in (folder / "plan.html").read_text()
    assert "3 tasks on 2 devices by heft: 20 ns; no plan ends before 20 ns" in capsys.readouterr().out


def test_a_lost_device_is_planned_around_in_two_seconds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import time

    (folder / "graph.json").write_bytes(write_value(made_up_graph(100, seed=1, bytes=100)))
    cluster = made_up_cluster(20, seed=1, bytes=4000, support=0.4)
    rows = [
        f'{{ name = "{one.name}", bytes = {one.bytes}, rates = {{ '
        + ", ".join(f"{kind} = {rate}" for kind, rate in one.rates.items())
        + " } }"
        for one in cluster.devices
    ]
    (folder / "cluster.toml").write_text(
        f'devices = [{", ".join(rows)}]\nlinks = [{{ name = "wire", latency = 1e-4, bandwidth = 4e8 }}]\n'
    )
    assert run("--method", "heft", "-o", "plan.json") == 0
    capsys.readouterr()
    begun = time.process_time()
    assert run("--replaces", "plan.json", "--without", "d3, d4", "--seconds", "1", "--json") == 0
    assert time.process_time() - begun < 2
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["moved_bytes"] > 0
    assert not {"d3", "d4"} & {one["device"] for one in plan["placed"]}


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--method", "magic"), 2, "method 'magic' is not known"),
        (("--without", "c"), 2, "no device 'c'"),
        (("--without", "a,b"), 2, "no device of cluster 'two' is left"),
        (("--without", "a"), 3, "150 bytes, and the devices have 60"),
        (("--policy", "graph.json", "--method", "policy"), 2, "policy"),
        (("--replaces", "graph.json"), 2, "task plan"),
        (("-o", "graph.json"), 2, "would be overwritten"),
    ],
)
def test_bad_input_ends_with_a_message_and_writes_nothing(
    folder: Path, given: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    output = () if "-o" in given else ("-o", "plan.json")
    assert run(*given, *output) == code
    assert said in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_task_larger_than_every_device_and_a_cycle_are_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, [{"name": "big", "work": 1, "bytes": 101}], [])
    assert run() == 3
    assert "'big' takes 101 bytes; no device" in capsys.readouterr().err
    tasks = [{"name": name, "work": 1} for name in "ab"]
    write(folder, tasks, [{"source": a, "target": b} for a, b in ("ab", "ba")])
    assert run() == 2
    assert "is a cycle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tasks", "edges", "said"),
    [
        ([{"name": "a", "work": 0}], [("a", "a")], "is a cycle"),
        ([{"name": name, "work": 0} for name in "ab"], [("a", "b"), ("b", "a")], "is a cycle"),
        ([{"name": "a", "work": 1}], [("a", "z")], "no task is called 'z'"),
        ([], [], "has 0 tasks"),
    ],
)
def test_graphs_that_cannot_be_are_refused_before_an_old_plan_is_judged(
    tasks: list, edges: list, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = [{"task": one["name"], "device": "d0", "start": 0, "end": 0} for one in tasks]
    plan = {"schema": 1, "placed": placed, "makespan": 0, "lower_bound": 0}
    (folder / "old.json").write_text(json.dumps(plan))
    write(folder, tasks, [{"source": a, "target": b} for a, b in edges])
    assert run("--replaces", "old.json") == 2
    assert said in capsys.readouterr().err
