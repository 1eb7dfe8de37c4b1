"""Malformed plans, graphs, machines, budgets and arguments: one line and exit code 2 or 3, every time.

`run` lets an exception through, so a traceback fails the test by itself. Nothing that a file holds
is ever executed: some files here would leave a marker behind.
"""

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Outcome, run, run_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracles import random_graph
from tightrope.core.codec import dump_graph, dump_plan
from tightrope.plan import smallest

GRAPH = random_graph(3)
PLAN = smallest(GRAPH)
GRAPH_BYTES, PLAN_BYTES = dump_graph(GRAPH), dump_plan(PLAN)
HUGE = 10**30
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 63, 2**31, 2**62, -(2**62), 2**63, HUGE, 1.5, -0.5, 1e308, "", "a", "0" * 64,
    "compute", "\x00", "\u202e", [], {}, [[]], [0, 0], ["compute", 0], {"schema": 1},
]  # fmt: skip
Edit = Callable[[dict[str, Any]], object]


def refused(found: Outcome) -> None:
    """Demand one clear line and an exit code of an error."""
    assert found.code in (2, 3), found
    assert "Traceback" not in found.err + found.out
    said = found.err.strip().splitlines()
    assert said or found.out.startswith("refused: ")
    assert not said or said[0].startswith(("tightrope: ", "Usage: "))
    assert all(line.isprintable() for line in said)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """A well-formed plan and its graph, to be spoiled."""
    plan, graph = tmp_path / "step.plan.json", tmp_path / "step.graph.json"
    plan.write_bytes(PLAN_BYTES)
    graph.write_bytes(GRAPH_BYTES)
    return plan, graph


def put(*path: str | int, to: Any) -> Edit:
    """Set one value, given by its path."""

    def edit(tree: dict[str, Any]) -> None:
        where: Any = tree
        for key in path[:-1]:
            where = where[key]
        where[path[-1]] = to

    return edit


def without(*path: str | int) -> Edit:
    """Delete one value, given by its path."""

    def edit(tree: dict[str, Any]) -> None:
        where: Any = tree
        for key in path[:-1]:
            where = where[key]
        del where[path[-1]]

    return edit


PLAN_EDITS: dict[str, Edit] = {
    "no schema": without("schema"),
    "schema of tomorrow": put("schema", to=3),
    "schema of yesterday": put("schema", to=1),
    "schema as text": put("schema", to="1"),
    "schema true": put("schema", to=True),
    "no fingerprint": without("fingerprint"),
    "short fingerprint": put("fingerprint", to="abc"),
    "fingerprint of another graph": put("fingerprint", to="0" * 64),
    "fingerprint in capitals": put("fingerprint", to="A" * 64),
    "fingerprint null": put("fingerprint", to=None),
    "no schedule": without("schedule"),
    "schedule a list": put("schedule", to=[]),
    "no steps": without("schedule", "steps"),
    "steps empty": put("schedule", "steps", to=[]),
    "steps null": put("schedule", "steps", to=None),
    "unknown step": put("schedule", "steps", 0, to=["explode", 0]),
    "step without arguments": put("schedule", "steps", 0, to=["free"]),
    "step with too many": put("schedule", "steps", 0, to=["free", 0, 0, 0]),
    "step an object": put("schedule", "steps", 0, to={"op": 0}),
    "op beyond the graph": put("schedule", "steps", 0, to=["compute", 99]),
    "op negative": put("schedule", "steps", 0, to=["compute", -1]),
    "op enormous": put("schedule", "steps", 0, to=["compute", HUGE]),
    "op a float": put("schedule", "steps", 0, to=["compute", 0.5]),
    "free what is not there": put("schedule", "steps", 0, to=["free", 1]),
    "free the caller's": lambda tree: tree["schedule"]["steps"].append(["free", 0]),
    "a step dropped": lambda tree: tree["schedule"]["steps"].pop(0),
    "a step twice": lambda tree: tree["schedule"]["steps"].insert(0, tree["schedule"]["steps"][0]),
    "steps reversed": lambda tree: tree["schedule"]["steps"].reverse(),
    "drop what is not made": put("schedule", "steps", 0, to=["compute", 0, [0]]),
    "page to nowhere": put("schedule", "steps", 0, to=["page_out", 0, 99]),
    "no offsets": without("offsets"),
    "offsets empty": put("offsets", to=[]),
    "one offset too many": lambda tree: tree["offsets"].append(0),
    "offset -2": put("offsets", 0, to=-2),
    "offset odd": put("offsets", 0, to=1),
    "offset beyond the arena": put("offsets", 0, to=2**40),
    "offset enormous": put("offsets", 0, to=HUGE),
    "offset text": put("offsets", 0, to="0"),
    "all at zero": lambda tree: tree.update(offsets=[0] * len(tree["offsets"])),
    "budget negative": put("budget", to=-1),
    "budget zero": put("budget", to=0),
    "budget text": put("budget", to="8GiB"),
    "budget null": put("budget", to=None),
    "budget too small": put("budget", to=64),
    "peak too small": put("forecast", "peak", to=64),
    "peak negative": put("forecast", "peak", to=-64),
    "arena zero": put("forecast", "arena", to=0),
    "persistent wrong": put("forecast", "persistent", to=PLAN.forecast.persistent + 64),
    "time wrong": put("forecast", "ns", to=1),
    "joules negative": put("forecast", "joules", to=-1.0),
    "joules beyond a float": put("forecast", "joules", to=HUGE**12),
    "no forecast": without("forecast"),
    "bound above the total": put("certificate", "lower_bound", to=2**50),
    "witness beyond the graph": put("certificate", "witness", to=10_000),
    "claims a proof": put("certificate", to={"lower_bound": 0, "ns_bound": 2**60, "proved": True}),
    "reason for nothing": put("reasons", 0, "storage", to=9_999),
    "reason twice": lambda tree: tree["reasons"].append(tree["reasons"][0]),
    "unknown decision": put("reasons", 0, "decision", to="eaten"),
    "reason too long": put("reasons", 0, "text", to="x" * 20_000),
    "limits below the total": put("limits", to={"bytes": [64]}),
    "unknown field": put("__class__", to="os.system"),
    "python tag": put("py/object", to="os.system"),
    "machine a number": put("machine", to=7),
    "planner a list": put("planner", to=["anneal"]),
}

GRAPH_EDITS: dict[str, Edit] = {
    "no schema": without("schema"),
    "schema of tomorrow": put("schema", to=7),
    "no ops": without("ops"),
    "ops an object": put("ops", to={}),
    "storages empty": put("storages", to=[]),
    "id not its position": put("ops", 0, "id", to=5),
    "storage id not its position": put("storages", 1, "id", to=0),
    "storage negative": put("storages", 1, "bytes", to=-64),
    "storage enormous": put("storages", 1, "bytes", to=2**62),
    "storage beyond 2^62": put("storages", 1, "bytes", to=2**63),
    "storage a fraction": put("storages", 1, "bytes", to=64.5),
    "alignment three": put("storages", 1, "alignment", to=3),
    "alignment zero": put("storages", 1, "alignment", to=0),
    "alignment enormous": put("storages", 1, "alignment", to=2**61),
    "unknown kind": put("storages", 1, "kind", to="secret"),
    "caller's storage made by an op": put("storages", 1, "external", to=True),
    "storage made by nobody": put("storages", 0, "external", to=False),
    "reads beyond the end": put("ops", 0, "reads", to=[999]),
    "reads its own result": lambda tree: put("ops", 0, "reads", to=tree["ops"][0]["creates"])(tree),
    "reads twice": put("ops", 0, "reads", to=[0, 0]),
    "reads text": put("ops", 0, "reads", to=["0"]),
    "creates what exists": put("ops", 1, "creates", to=[0]),
    "mutates what it does not read": put("ops", 0, "mutates", to=[3]),
    "time negative": put("ops", 0, "ns", to=-5),
    "flags unknown": put("ops", 0, "flags", to=2**20),
    "flags negative": put("ops", 0, "flags", to=-1),
    "phase unknown": put("ops", 0, "phase", to="lunch"),
    "replay beyond the end": put("ops", 0, "replay", to=999),
    "allocation of another op": put("ops", 0, "allocations", to=[[64, 0, 0, -1]]),
    "allocation too small": put("ops", 0, "allocations", to=[[1, 1, 0, -1]]),
    "temporary that never ends": put("ops", 0, "allocations", to=[[64, -1, 0, -1]]),
    "temporary that ends before it begins": put("ops", 0, "allocations", to=[[64, -1, 5, 2]]),
    "allocation at 2^40": put("ops", 0, "allocations", to=[[64, -1, 2**40, 2**41]]),
    "split beyond the end": put("split", to=99),
    "split -2": put("split", to=-2),
    "environment a text": put("environment", to="cpu"),
    "name too long": put("name", to="n" * 20_000),
    "unknown field": put("hooks", to=["os.system"]),
}

TEXTS: dict[str, bytes] = {
    "empty": b"",
    "a space": b" ",
    "null": b"null",
    "a number": b"12",
    "a text": b'"plan"',
    "a list": b"[]",
    "an empty object": b"{}",
    "half a plan": PLAN_BYTES[: len(PLAN_BYTES) // 2],
    "a plan and more": PLAN_BYTES + b"{}",
    "two schemas": b'{"schema": 1, "schema": 1}',
    "not a number": b'{"schema": NaN}',
    "infinity": b'{"schema": Infinity}',
    "a comment": b"// a plan\n" + PLAN_BYTES,
    "a trailing comma": b'{"schema": 1,}',
    "single quotes": b"{'schema': 1}",
    "byte order mark": b"\xef\xbb\xbf" + PLAN_BYTES,
    "utf-16": PLAN_BYTES.decode().encode("utf-16"),
    "not utf-8": b'{"schema": "\xff"}',
    "nul bytes": b"\x00" * 64,
    "half a surrogate": b'{"schema": 1, "planner": "\\ud800"}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "long integer": b'{"schema": ' + b"9" * 10_000 + b"}",
    "large exponent": b'{"schema": 1e999999}',
    "a zip": b"PK\x03\x04" + b"\x00" * 30,
    "an elf": b"\x7fELF" + b"\x00" * 60,
    "html": b"<!doctype html><title>404</title>",
    "toml": b'name = "plan"\n',
    "yaml": b"schema: !!python/object/apply:os.system ['touch marker']\n",
}

BUDGETS = (
    "", " ", "0", "-1", "-8GiB", "0.9", "1.5", "8.5", ".5GiB", "8GiBs", "8 Q", "8XB", "GiB", "%", "0%", "-5%",
    "90%%", "eight", "1e9", "0x100", "1_000_000", "1,000", "NaN", "inf", "8GiB 8GiB", "\u0663", "8\u200bGiB",
    "80", "9" * 40, "9" * 400 + "B", "99999999TiB", "1/2", "$(id)", "__import__('os').system('true')", "\n",
    "8GiB\x00", "None", "True", "[8]",
)  # fmt: skip

MACHINES: dict[str, bytes] = {
    "empty": b"",
    "no tiers": b'name = "a"\n',
    "tiers empty": b'name = "a"\ntiers = []\n',
    "tier without bytes": b'name = "a"\n[[tiers]]\nname = "ram"\n',
    "no memory": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 0\n',
    "negative memory": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = -5\n',
    "memory as text": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = "8GiB"\n',
    "memory enormous": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = ' + b"9" * 50 + b"\n",
    "no bandwidth": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\nread = 0\n',
    "infinite bandwidth": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\nread = inf\n',
    "bandwidth not a number": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\nread = nan\n',
    "no arithmetic": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\n[flops]\nmatmul = 0\n',
    "arithmetic as text": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\n[flops]\nmatmul = "fast"\n',
    "a misspelt field": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\nbandwith = 5\n',
    "json": GRAPH_BYTES,
    "not utf-8": b'name = "\xff"\n',
    "deep": b"a = " + b"[" * 20_000,
    "twice": b'name = "a"\nname = "b"\n',
}

ARGUMENTS: tuple[tuple[str, ...], ...] = (
    ("fly",),
    ("--fast",),
    ("plan",),
    ("plan", "GRAPH"),
    ("plan", "--budget", "8GiB"),
    ("plan", "absent.json", "--budget", "8GiB"),
    ("plan", ".", "--budget", "8GiB"),
    ("plan", "/dev/null", "--budget", "8GiB"),
    ("plan", "/dev/zero", "--budget", "8GiB"),
    ("plan", "GRAPH\x00", "--budget", "8GiB"),
    ("plan", "x" * 5000, "--budget", "8GiB"),
    ("plan", "PLAN", "--budget", "8GiB"),
    ("plan", "GRAPH", "--budget", "8GiB", "--planner", "magic"),
    ("plan", "GRAPH", "--budget", "8GiB", "--planner", "__class__"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seconds", "-1"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seconds", "nan"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seconds", "inf"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seconds", "1e40"),
    ("curve", "GRAPH", "--seconds", "1e40"),
    ("report", "PLAN", "--seconds", "1e40", "-o", "run.html"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seconds", "soon"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seed", "-1"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seed", "1e3"),
    ("plan", "GRAPH", "--budget", "8GiB", "--seed", "9" * 30),
    ("plan", "GRAPH", "--budget", "8GiB", "-o", "absent/folder/step.plan.json"),
    ("plan", "GRAPH", "--budget", "8GiB", "-o", "."),
    ("plan", "GRAPH", "--budget", "8GiB", "--save-graph", "absent/folder/step.graph.json"),
    ("plan", "GRAPH", "--budget", "8GiB", "--machine", "no-such-machine"),
    ("plan", "GRAPH", "--budget", "8GiB", "--machine", "../machines/laptop-16gb"),
    ("plan", "train.py:build", "--budget", "8GiB"),
    ("plan", "train.py:", "--budget", "8GiB"),
    ("plan", "GRAPH", "GRAPH", "--budget", "8GiB"),
    ("estimate",),
    ("estimate", "GRAPH"),
    ("estimate", "train.py"),
    ("estimate", "train.py:build"),
    ("estimate", ":build"),
    ("estimate", "train.py:build()"),
    ("estimate", "train.py:a.b"),
    ("estimate", "train.py:os;system"),
    ("estimate", "train\x00.py:build"),
    ("explain",),
    ("explain", "absent.json"),
    ("explain", "GRAPH"),
    ("explain", "PLAN", "--graph", "PLAN"),
    ("explain", "PLAN", "--graph", "absent.json"),
    ("explain", "PLAN", "--top", "0"),
    ("explain", "PLAN", "--top", "many"),
    ("explain", "PLAN", "--top", "99999999999999999999"),
    ("judge",),
    ("judge", "GRAPH"),
    ("judge", "PLAN", "--graph", "PLAN"),
    ("judge", "GRAPH", "--graph", "PLAN"),
    ("judge", "PLAN", "--graph", "."),
    ("judge", "PLAN", "--graph"),
    ("doctor", "--fix"),
)


@pytest.mark.few(20)
@pytest.mark.parametrize("edit", PLAN_EDITS.values(), ids=PLAN_EDITS)
def test_a_plan_with_one_thing_wrong_is_refused_and_explained_or_refused(
    place: tuple[Path, Path], edit: Edit
) -> None:
    plan, graph = place
    tree = json.loads(PLAN_BYTES)
    edit(tree)
    plan.write_text(json.dumps(tree))
    refused(run("judge", plan, "--graph", graph))
    found = run("explain", plan, "--graph", graph)
    if found.code:
        refused(found)


@pytest.mark.parametrize("count", [0, -1, 1])
def test_a_plan_with_offsets_for_other_allocations_is_not_explained(
    place: tuple[Path, Path], count: int
) -> None:
    plan, graph = place
    tree = json.loads(PLAN_BYTES)
    tree["offsets"] = [*tree["offsets"], 0][: len(tree["offsets"]) + count]
    plan.write_text(json.dumps(tree))
    found = run("explain", plan, "--graph", graph)
    assert bool(found.code) == bool(count), found
    if count:
        refused(found)
        assert "offsets" in found.err


@pytest.mark.parametrize("edit", GRAPH_EDITS.values(), ids=GRAPH_EDITS)
def test_a_graph_with_one_thing_wrong_is_refused(place: tuple[Path, Path], edit: Edit) -> None:
    plan, graph = place
    tree = json.loads(GRAPH_BYTES)
    edit(tree)
    graph.write_text(json.dumps(tree))
    refused(run("plan", graph, "--budget", "8GiB"))
    refused(run("judge", plan, "--graph", graph))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_plan_is_refused_wherever_one_is_read(
    place: tuple[Path, Path], text: bytes
) -> None:
    plan, graph = place
    plan.write_bytes(text)
    refused(run("explain", plan))
    refused(run("judge", plan, "--graph", graph))
    refused(run("plan", plan, "--budget", "8GiB"))


@pytest.mark.parametrize("budget", BUDGETS, ids=ascii)
def test_a_budget_that_is_no_amount_is_refused(place: tuple[Path, Path], budget: str) -> None:
    refused(run("plan", place[1], f"--budget={budget}"))


@pytest.mark.parametrize("profile", MACHINES.values(), ids=MACHINES)
def test_a_machine_that_is_none_is_refused(place: tuple[Path, Path], tmp_path: Path, profile: bytes) -> None:
    file = tmp_path / "machine.toml"
    file.write_bytes(profile)
    refused(run("plan", place[1], "--budget", "8GiB", "--machine", file))


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda words: ascii(" ".join(words))[:60])
def test_arguments_that_make_no_sense_are_refused(
    place: tuple[Path, Path], arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, graph = place
    monkeypatch.chdir(plan.parent)
    refused(run(*(word.replace("GRAPH", str(graph)).replace("PLAN", str(plan)) for word in arguments)))


def paths(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the path of every value below the top."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from paths(value, (*above, key))


@st.composite
def spoiled(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with bytes changed, or with values of it replaced, deleted or doubled."""
    if draw(st.booleans()):
        data = bytearray(whole)
        for _ in range(draw(st.integers(1, 4))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(data)
    tree = json.loads(whole)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(tree))))
        where = tree
        for key in path[:-1]:
            where = where[key]
        how = draw(st.sampled_from(("replace", "delete", "double")))
        if how == "replace" or (how == "double" and not isinstance(where, list)):
            where[path[-1]] = copy.deepcopy(draw(st.sampled_from(ODD)))  # or it may come to hold itself
        elif how == "delete":
            del where[path[-1]]
        else:
            where.insert(path[-1], copy.deepcopy(where[path[-1]]))
    return json.dumps(tree).encode()


CALM = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@CALM
@given(data=spoiled(PLAN_BYTES))
def test_a_spoiled_plan_never_ends_in_a_traceback(place: tuple[Path, Path], data: bytes) -> None:
    plan, graph = place
    plan.write_bytes(data)
    for found in (run("judge", plan, "--graph", graph), run("explain", plan, "--graph", graph)):
        if found.code:
            refused(found)


@pytest.mark.slow
@CALM
@given(data=spoiled(GRAPH_BYTES))
def test_a_spoiled_graph_never_ends_in_a_traceback(place: tuple[Path, Path], data: bytes) -> None:
    plan, graph = place
    graph.write_bytes(data)
    for found in (run("judge", plan, "--graph", graph), run("plan", graph, "--budget", "90%")):
        if found.code:
            refused(found)


@pytest.mark.slow
@CALM
@given(budget=st.text(max_size=30) | st.from_regex(r"[0-9.]{0,6} ?[kKmMgGiIbB%]{0,3}", fullmatch=True))
def test_a_random_budget_never_ends_in_a_traceback(place: tuple[Path, Path], budget: str) -> None:
    found = run("plan", place[1], f"--budget={budget}")
    if found.code:
        refused(found)


class Bomb:
    """Unpickling this makes the marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


def bombs(marker: Path) -> dict[str, bytes]:
    """Files that leave the marker behind when they are unpickled, imported or evaluated."""
    code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
    tree = json.loads(PLAN_BYTES)
    tree["planner"] = f"__import__('os').system({'touch ' + str(marker)!r})"
    tree["reasons"][0]["text"] = f"$(touch {marker}) `touch {marker}` {{{{ {code} }}}}"
    return {
        "step.pickle": pickle.dumps(Bomb(marker)),
        "step.py": code.encode(),
        "step.json": json.dumps(tree).encode(),
        "step.yaml": f"!!python/object/apply:os.system ['touch {marker}']".encode(),
    }


@pytest.mark.parametrize("name", ["step.pickle", "step.py", "step.json", "step.yaml"])
def test_nothing_in_a_file_is_executed(tmp_path: Path, name: str) -> None:
    marker, file, graph = tmp_path / "marker", tmp_path / name, tmp_path / "graph.json"
    file.write_bytes(bombs(marker)[name])
    graph.write_bytes(GRAPH_BYTES)
    outcomes = [
        run("explain", file),
        run("judge", file, "--graph", graph),
        run("judge", graph, "--graph", file),
        run("plan", file, "--budget", "8GiB"),
        run("plan", graph, "--budget", "8GiB", "--machine", file),
        run("estimate", str(file)),
    ]
    assert not marker.exists()
    assert all(found.code in (0, 2, 3) for found in outcomes)
    if name != "step.json":
        for found in outcomes:
            refused(found)


def test_the_bombs_would_go_off(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(bombs(marker)["step.pickle"])
    assert marker.exists()
    marker.unlink()
    exec(bombs(marker)["step.py"])
    assert marker.exists()


PROCESSES: tuple[tuple[str, ...], ...] = (
    ("plan", "bomb.py", "--budget", "8GiB", "--json"),
    ("fly",),
    ("judge", "half.json", "--graph", "graph.json"),
    ("plan", "deep.json", "--budget", "8GiB"),
    ("plan", "graph.json", "--budget", "0.9"),
    ("estimate", "absent.py:build"),
)


@pytest.mark.parametrize(
    "arguments",
    [*PROCESSES[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in PROCESSES[2:])],
    ids=" ".join,
)
def test_a_process_leaves_with_2_and_no_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "half.json").write_bytes(TEXTS["half a plan"])
    (tmp_path / "deep.json").write_bytes(TEXTS["deep lists"])
    (tmp_path / "graph.json").write_bytes(GRAPH_BYTES)
    (tmp_path / "bomb.py").write_bytes(bombs(marker)["step.py"])
    found = run_process(*arguments, cwd=tmp_path)
    refused(found)
    assert (found.code, found.out) == (2, "")
    assert not marker.exists()
