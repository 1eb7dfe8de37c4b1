"""Tampered packages in throw-away environments: what is found, what is named, and what is no alarm."""

import gc
import importlib.util
import json
import marshal
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import msgspec
import pytest

import tightrope
from benchmarks.fleet.integrity import CLASSES, Prepared, by_plan, by_verify, false_alarms, prepare
from benchmarks.fleet.toy import IMPLANTED, NET, Toy
from tests.cli.command import run, run_process
from tightrope.core import Plan
from tightrope_verify import (
    FindingKind,
    check_provenance_of,
    environment_at,
    make_lock,
    read_lock,
    running_environment,
    verify_environment,
    verify_loaded,
    write_lock,
)
from tightrope_verify.verify import loaded_files

KINDS = {
    "A": {FindingKind.CHANGED},
    "B": {FindingKind.CHANGED, FindingKind.OWNERS},
    "C": {FindingKind.LOCK},
    "D": {FindingKind.UNOWNED},
    "E": {FindingKind.BYTECODE},
    "F": {FindingKind.CODE},
    "G": {FindingKind.GRAPH},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def toy(made: Prepared, tmp_path: Path) -> Toy:
    return made.toy.copy(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_found_and_said_by_file_and_owner(made: Prepared, name: str) -> None:
    found = by_verify(made, name)
    assert KINDS[name] <= {one.kind for one in found.problems}
    with pytest.raises(tightrope.IntegrityError) as refused:
        found.demand()
    if name in "ABCEF":
        assert "toynet" in str(refused.value)
        assert "toynet 1.0" in str(refused.value)
    assert found.problems[0].expected != found.problems[0].found


@pytest.mark.parametrize("name", CLASSES)
def test_a_plan_from_before_is_refused(made: Prepared, name: str) -> None:
    assert not by_plan(made, name).holds


def test_a_plan_runs_where_nothing_was_changed(made: Prepared) -> None:
    made = Prepared(made.toy, made.lock, made.plan, {"clean": made.toy})
    assert by_plan(made, "clean").problems == ()


@pytest.mark.slow
def test_normal_changes_are_no_alarm(made: Prepared, tmp_path: Path) -> None:
    assert set(false_alarms(made, tmp_path).values()) == {0}


def test_without_a_lock_a_record_that_was_changed_with_its_file_is_believed(made: Prepared) -> None:
    environment = environment_at(made.changed["C"].root)
    assert verify_environment(environment).holds
    assert not verify_environment(environment_at(made.changed["E"].root)).holds
    assert verify_environment(environment_at(made.changed["E"].root), bytecode=False).holds


def bytecode(
    toy: Toy,
    source: str,
    *,
    flags: int = 0,
    level: int = 0,
    change: Callable[[CodeType], CodeType] | None = None,
) -> Path:
    """Write byte code for the net's file that Python loads: its head tells of the source as it is."""
    code = compile(source, str(toy.net), "exec", dont_inherit=True, optimize=level)
    state = toy.net.stat()
    stamp = struct.pack("<II", int(state.st_mtime), state.st_size)
    if flags:
        stamp = importlib.util.source_hash(toy.net.read_bytes())
    cached = Path(importlib.util.cache_from_source(str(toy.net), optimization=level or ""))
    cached.parent.mkdir(exist_ok=True)
    head = importlib.util.MAGIC_NUMBER + struct.pack("<I", flags) + stamp
    cached.write_bytes(head + marshal.dumps(change(code) if change else code))
    return cached


def moved_lines(code: CodeType) -> CodeType:
    return code.replace(co_firstlineno=code.co_firstlineno + 1)


def elsewhere(code: CodeType) -> CodeType:
    inner = tuple(elsewhere(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="build/net.py", co_consts=inner)


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("flags", [0, 1, 3])
def test_other_byte_code_is_found_whatever_its_head_says(
    toy: Toy, made: Prepared, *, flags: int, level: int, lock: bool
) -> None:
    environment, known = environment_at(toy.root), made.lock if lock else None
    bytecode(toy, NET, flags=flags, level=level)
    clean = verify_environment(environment, known)
    assert clean.holds
    assert clean.num_bytecode == 3 + (level > 0)  # pip compiled both packages
    cached = bytecode(toy, IMPLANTED, flags=flags, level=level)
    found = verify_environment(environment, known).problems
    assert [one.kind for one in found] == [FindingKind.BYTECODE]
    assert found[0].path.endswith(cached.name)
    assert found[0].owner == "toynet 1.0"


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (NET.replace("width=8", "width=9"), None),  # a default of an inner function
        (NET.replace("torch.relu", "torch.tanh"), None),  # a name
        (NET.replace('"""A net."""', '"""A nut."""'), None),
        (NET, moved_lines),
    ],
)
def test_byte_code_that_differs_in_one_place_is_found(
    toy: Toy, source: str, change: Callable[[CodeType], CodeType] | None
) -> None:
    bytecode(toy, source, change=change)
    found = verify_environment(environment_at(toy.root)).problems
    assert [one.kind for one in found] == [FindingKind.BYTECODE]


def test_byte_code_that_was_compiled_elsewhere_or_is_not_loaded_is_no_alarm(toy: Toy) -> None:
    bytecode(toy, NET, change=elsewhere)
    assert verify_environment(environment_at(toy.root)).holds
    bytecode(toy, IMPLANTED, change=elsewhere)
    assert not verify_environment(environment_at(toy.root)).holds
    os.utime(
        toy.net, (1, 1)
    )  # as it is no longer of the time that the head tells, Python compiles the source
    found = verify_environment(environment_at(toy.root))
    assert found.holds
    assert any("older than their sources" in note for note in found.notes)


@pytest.mark.parametrize("was", [True, False])
def test_collections_are_switched_on_again(toy: Toy, *, was: bool) -> None:
    bytecode(toy, NET)
    try:
        gc.enable() if was else gc.disable()
        verify_environment(environment_at(toy.root))
        assert gc.isenabled() is was
    finally:
        gc.enable()


def damage(change: Callable[[str], str]) -> Callable[[Toy], None]:
    def apply(toy: Toy) -> None:
        record = toy.site / "toynet-1.0.dist-info" / "RECORD"
        record.write_text(change(record.read_text()))

    return apply


DAMAGES = {
    "is cut": damage(lambda text: text[: len(text) // 2]),
    "is empty": damage(lambda text: ""),
    "leads outside": damage(lambda text: text + "../../../../../../../etc/passwd,,\n"),
    "is absolute": damage(lambda text: text + "/etc/passwd,sha256=" + "A" * 43 + ",1\n"),
    "names a file twice": damage(lambda text: text + text),
    "has a weak digest": damage(lambda text: text.replace("sha256=", "md5=")),
    "has an open quote": damage(lambda text: text + '"toynet\n'),
    "is binary": lambda toy: (toy.site / "toynet-1.0.dist-info" / "RECORD").write_bytes(b"\xff\x00") and None,
    "is not there": lambda toy: (toy.site / "toynet-1.0.dist-info" / "RECORD").unlink(),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_record_is_said_and_nothing_is_locked(toy: Toy, what: str, tmp_path: Path) -> None:
    DAMAGES[what](toy)
    target = tmp_path / "lock.json"
    assert run("lock", "--site", toy.root, "-o", target).code == 3
    assert not target.exists()
    _, found = make_lock(environment_at(toy.root))
    assert any("toynet" in str(one) for one in found.problems)


def test_a_link_in_the_place_of_a_file_is_found(toy: Toy, made: Prepared, tmp_path: Path) -> None:
    other = tmp_path / "net.py"
    other.write_text(NET)
    toy.net.unlink()
    toy.net.symlink_to(other)
    found = verify_environment(environment_at(toy.root), made.lock)
    assert FindingKind.SYMLINK in {one.kind for one in found.problems}


def test_a_file_that_is_gone_is_found(toy: Toy) -> None:
    toy.net.unlink()
    found = verify_environment(environment_at(toy.root))
    assert [one.kind for one in found.problems] == [FindingKind.MISSING]


def test_a_lock_goes_to_a_file_and_back(made: Prepared, tmp_path: Path) -> None:
    environment = environment_at(made.toy.root)
    write_lock(tmp_path / "lock.json", made.lock, environment)
    assert read_lock(tmp_path / "lock.json") == made.lock
    with pytest.raises(tightrope.TightropeError, match="lies inside of what it locks"):
        write_lock(made.toy.site / "lock.json", made.lock, environment)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda lock: lock | {"files": lock["files"][::-1]}, "behind the path before it"),
        (lambda lock: lock | {"files": [["a", 99, 1, "x" * 43, ""]]}, r"files\[0\]"),
        (lambda lock: lock | {"files": [["a", 0, 1, "short", ""]]}, "SHA-256"),
        (lambda lock: lock | {"schema": 99}, "schema"),
        (lambda lock: [lock], "array"),
    ],
)
def test_a_malformed_lock_is_refused(
    made: Prepared, tmp_path: Path, change: Callable[[object], object], named: str
) -> None:
    file = tmp_path / "lock.json"
    file.write_text(json.dumps(change(msgspec.to_builtins(made.lock))))
    with pytest.raises(tightrope.PlanFileError, match=named):
        read_lock(file)


def test_the_command_line_locks_and_verifies(toy: Toy, tmp_path: Path) -> None:
    lock = tmp_path / "env.lock.json"
    assert run("lock", "--site", toy.root, "-o", lock).code == 0
    clean = run("verify", lock, "--site", toy.root)
    assert clean.code == 0
    assert "as it should be" in clean.out
    toy.edit_with_record()
    changed = run("verify", lock, "--site", toy.root, "--json")
    assert changed.code == 3
    found = json.loads(changed.out)
    assert not found["holds"]
    assert found["problems"][0]["owner"] == "toynet 1.0"
    assert run("verify", lock, "--site", tmp_path / "nothing").code == 2


NET_FILE = """import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Scaled()), (torch.ones(4, 8),)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(x).sum() * 2
"""


@pytest.mark.slow
def test_a_plan_from_the_command_line_holds_until_its_file_changes(tmp_path: Path) -> None:
    source, plan = tmp_path / "net.py", tmp_path / "net.plan.json"
    source.write_text(NET_FILE)
    target = f"{source}:build"
    assert run("plan", target, "--budget", "100%", "-o", plan).code == 0
    assert run("verify", "--plan", plan, "--target", target).code == 0
    source.write_text("# a comment\n" + NET_FILE)
    assert run_process("verify", "--plan", plan, "--target", target, cwd=tmp_path).code == 0
    assert run("verify", "--plan", plan).code == 3  # whether every function is as planned, no capture says
    source.write_text(NET_FILE.replace("* 2", "* 3"))
    done = run_process("verify", "--plan", plan, "--target", target, "--json", cwd=tmp_path)
    assert done.code == 3, done.err
    said = json.loads(done.out)["problems"]
    assert any("net.py" in one["path"] for one in said)
    assert any("Scaled.forward" in one["why"] for one in said)


def test_a_plan_without_provenance_loads_and_is_not_believed(made: Prepared, tmp_path: Path) -> None:
    bare = msgspec.structs.replace(made.plan, provenance=None)
    bare.save(tmp_path / "plan.json")
    found = Plan.load(tmp_path / "plan.json")
    assert found.provenance is None
    assert [one.kind for one in check_provenance_of(found).problems] == [FindingKind.CODE]


def test_some_of_what_this_process_has_loaded_is_as_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = sorted(loaded_files(running_environment()))
    assert len(loaded) > 500
    monkeypatch.setattr("tightrope_verify.verify.loaded_files", lambda environment: set(loaded[::20]))
    found = verify_loaded()
    assert found.num_files > 25
    assert found.problems == ()


@pytest.mark.slow
def test_what_this_process_has_loaded_is_as_it_was_installed() -> None:
    found = verify_loaded()
    assert found.num_files > 500
    assert found.problems == ()


@pytest.mark.parametrize(
    "path", ["toynet/net.py", "./toynet/net.py", '"toynet/net.py"', "x/../toynet/net.py"]
)
def test_a_second_owner_is_seen_however_its_record_writes_the_path(
    made: Prepared, path: str, toy: Toy
) -> None:
    record = toy.site / "helpers-1.0.dist-info" / "RECORD"
    record.write_text(f"{record.read_text()}{path},sha256={'A' * 43},5\n")
    found = check_provenance_of(made.plan, environment=environment_at(toy.root))
    assert {FindingKind.OWNERS, FindingKind.CHANGED} <= {one.kind for one in found.problems}
    assert any("helpers 1.0" in one.owner for one in found.problems)
