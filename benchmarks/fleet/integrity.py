"""I1 to I4: tampered packages, what finds them, and what that takes.

I1: the seven classes on copies of a toy environment. A to E change files, and are looked for by `verify`
with a lock; F replaces ``forward`` in the process and G builds another graph from the same files, and are
looked for by the provenance of a plan. False alarms: after a normal upgrade, a downgrade and an editable
install with the lock brought up to date, and on the environment that runs this.

I2: CPU seconds of one thread: the files that ``tightrope verify LOCK --load torch`` has loaded; those of a
plan of a GPT-2, and its capture; everything in the environment that runs this: hashes, hashes and byte code
that a lock knows, hashes and byte code that is compiled again. A GB is of what is checked; RECORD files and
their digests know nothing of byte code, so the figure per GB of hashed files is said too.

I3: the same seven beside ``pip check``, ``uv pip check`` where uv is installed, and a scan of RECORD files by
``importlib.metadata`` that is written here.

I4: a plan of the toy net, made before, in each tampered environment: refused, by file, owner and digests.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import torch
from rich.console import Console

import tightrope
from benchmarks.fleet.asked import print_asked
from benchmarks.fleet.toy import FILE_CLASSES, NET, Toy, digest
from benchmarks.micro.rows import Row
from benchmarks.zoo import build
from tightrope.capture import Program, capture_program, measured
from tightrope.cli.capturing import provenance_of_program
from tightrope.core import Plan
from tightrope.native.hook.allocator import allocator
from tightrope_verify import (
    Inspection,
    Lock,
    check_provenance_of,
    environment_at,
    make_lock,
    provenance_of,
    running_environment,
    verify_environment,
    write_lock,
)

CLASSES = "ABCDEFG"
_NAMED: Final = dict.fromkeys("ACF", "toynet/net.py (owner: toynet 1.0)") | {
    "B": "toynet/net.py (owner: colours 2.0 and toynet 1.0)",
    "D": "helpful.pth (owner: no distribution)",
    "E": "net.cpython-",
    "G": "the graph",
}
"""What a refusal has to name first."""


@dataclass(slots=True)
class Prepared:
    """A clean environment, its lock, and a plan of its net.

    Attributes:
        toy: the environment.
        lock: made when it was clean.
        plan: of a call of the net, with the code that it was captured from.
        changed: one tampered copy per class of files.
    """

    toy: Toy
    lock: Lock
    plan: Plan
    changed: dict[str, Toy] = field(default_factory=dict)


def prepare(folder: Path) -> Prepared:
    """Build the clean environment, and a tampered copy of it for each class."""
    toy = Toy(folder)
    lock, found = make_lock(environment_at(toy.root))
    found.demand()
    with toy.imported() as module:
        program = capture_net(module.Net())
        known = provenance_of(program.codes, environment=environment_at(toy.root))
    plan = tightrope.plan(program.graph, budget=2**20)
    made = Prepared(toy, lock, msgspec.structs.replace(plan, provenance=known))
    for name, tamper in FILE_CLASSES.items():
        (folder / name).mkdir()
        copy = toy.copy(folder / name)
        tamper(copy)
        made.changed[name] = copy
    return made


def capture_net(net: torch.nn.Module) -> Program:
    """Capture a call of the toy net."""
    program, real = capture_program(net, (torch.ones(3, 4),))
    return measured(program, real, allocator())


def by_verify(made: Prepared, name: str) -> Inspection:
    """Look for a class the way that is meant for it."""
    if name in FILE_CLASSES:
        return verify_environment(environment_at(made.changed[name].root), made.lock)
    environment = environment_at(made.toy.root)
    with made.toy.imported() as module:
        if name == "F":
            module.Net.forward = lambda self, x: self.second(torch.relu(self.first(x))) * 3
        program = capture_net(module.Net(width=8 if name == "F" else 16))
        captured = provenance_of(program.codes, environment=environment)
        return check_provenance_of(
            made.plan, lock=made.lock, graph=program.graph, captured=captured, environment=environment
        )


def by_plan(made: Prepared, name: str) -> Inspection:
    """Check the plan in a tampered environment, as it is checked before it runs."""
    toy = made.changed.get(name)
    if toy is None:
        return by_verify(made, name)
    with toy.imported() as module:
        program = capture_net(module.Net())
        environment = environment_at(toy.root)
        captured = provenance_of(program.codes, environment=environment)
        return check_provenance_of(
            made.plan, lock=made.lock, graph=program.graph, captured=captured, environment=environment
        )


def by_records(site: Path) -> bool:
    """Tell whether RECORD files alone show that something is wrong: another digest, or a file of nobody."""
    owned: set[str] = set()
    for one in importlib.metadata.distributions(path=[str(site)]):
        for file in one.files or ():
            path = Path(str(one.locate_file(file)))
            owned.add(os.path.normpath(path))
            if file.hash is not None and digest(path.read_bytes()) != file.hash.value:
                return True
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return any(os.path.normpath(path) not in owned for path in files)


def by_pip(toy: Toy) -> bool:
    """Tell whether ``pip check`` finds something wrong."""
    try:
        toy.pip("check")
    except subprocess.CalledProcessError:
        return True
    return False


def by_uv(uv: str, toy: Toy) -> bool:
    """Tell whether ``uv pip check`` finds something wrong."""
    python = str(toy.root / "bin" / "python")
    return subprocess.run([uv, "pip", "check", "--python", python], capture_output=True).returncode != 0


def false_alarms(made: Prepared, folder: Path) -> dict[str, int]:
    """Count findings after each normal change, with the lock brought up to date by ``update``."""
    toy, lock, found = made.toy.copy(folder), made.lock, dict[str, int]()
    editable = folder / "source"
    (editable / "mine").mkdir(parents=True)
    (editable / "mine" / "__init__.py").write_text("here = True\n")
    pth = {"__editable__.mine-1.0.pth": f"{editable}\n"}
    changes: dict[str, Callable[[], None]] = {
        "upgrade": lambda: toy.install(
            "toynet", "1.1", {"toynet/__init__.py": "", "toynet/net.py": NET + "\n"}
        ),
        "downgrade": lambda: toy.install("toynet", "0.9", {"toynet/__init__.py": "", "toynet/net.py": NET}),
        "editable install": lambda: toy.install("mine", "1.0", pth),
    }
    for name, change in changes.items():
        change()
        lock, inspected = make_lock(environment_at(toy.root), update=lock)
        again = verify_environment(environment_at(toy.root), lock)
        found[name] = len(inspected.problems) + len(again.problems)
    return found


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """The bars by name."""

    def with_toys(run: Callable[[Console, Prepared, Path], list[Row]]) -> list[Row]:
        with tempfile.TemporaryDirectory() as folder:
            return run(console, prepare(Path(folder)), Path(folder))

    return {
        "I1": lambda: with_toys(_i1),
        "I2": lambda: _i2(console),
        "I3": lambda: with_toys(_i3),
        "I4": lambda: with_toys(_i4),
    }


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("verify", (rows,), arguments, console)


def _i1(console: Console, made: Prepared, folder: Path) -> list[Row]:
    caught = 0
    for name in CLASSES:
        found = by_verify(made, name)
        caught += not found.holds
        console.print(f"{name}: {found.problems[0] if found.problems else 'not found'}", markup=False)
    (folder / "changes").mkdir()
    alarms = false_alarms(made, folder / "changes")
    here = verify_environment(running_environment())
    alarms[f"the running environment, {here.num_files} files"] = len(here.problems)
    said = ", ".join(f"{count} after {name}" for name, count in alarms.items())
    held = caught == len(CLASSES) and not any(alarms.values())
    return [Row("I1", "7 of 7 classes, 0 false alarms", f"{caught} of 7; false alarms: {said}", held)]


def _i2(console: Console) -> list[Row]:
    lock, _ = make_lock(running_environment())
    return [*_loaded(console, lock), *_everything(console, lock)]


def _loaded(console: Console, lock: Lock) -> list[Row]:
    """Check the files of a process with torch, and those of a plan, beside its capture."""
    case = build("gpt2", scale="bench")
    began = time.process_time()
    program, real = capture_program(case.model, case.inputs)
    capturing = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lock.json"
        write_lock(file, lock, running_environment())
        command = [sys.executable, "-m", "tightrope", "verify", str(file), "--load", "torch", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = msgspec.json.decode(done.stdout, type=Inspection)
    plan = tightrope.plan(measured(program, real, allocator()).graph, budget="100%")
    plan = msgspec.structs.replace(plan, provenance=provenance_of_program(program))
    began = time.process_time()
    check_provenance_of(plan, lock=lock)
    of_plan = time.process_time() - began
    console.print(
        f"loaded files: {loaded.num_files}, {loaded.num_bytes / 1e6:.0f} MB, {loaded.cpu_seconds:.2f} CPU s; "
        f"a plan: {of_plan:.2f} CPU s, {100 * of_plan / capturing:.1f} % of {capturing:.1f} s of capture"
    )
    return [
        Row(
            "I2",
            "loaded files <= 1.0 CPU s",
            f"{loaded.cpu_seconds:.2f} CPU s for {loaded.num_files} files",
            loaded.cpu_seconds <= 1.0,
        ),
        Row(
            "I2 capture",
            "files of a plan <= 3 % of capture",
            f"{of_plan:.2f} CPU s, {100 * of_plan / capturing:.1f} % of {capturing:.1f} s",
            of_plan <= 0.03 * capturing,
        ),
    ]


def _everything(console: Console, lock: Lock) -> list[Row]:
    """Check every file: hashes alone, with a lock, and with every source compiled."""
    found = {
        "RECORD": verify_environment(running_environment(), bytecode=False),
        "RECORD, byte code, lock": verify_environment(running_environment(), lock),
        "RECORD, byte code": verify_environment(running_environment()),
    }
    rows = []
    for what, one in found.items():
        hashed, whole = one.num_bytes / 1e9, (one.num_bytes + one.bytecode_bytes) / 1e9
        console.print(
            f"all files, {what}: {one.num_files} files of {hashed:.2f} GB hashed, {one.num_bytecode} of "
            f"byte code of {whole - hashed:.2f} GB compared, {one.cpu_seconds:.1f} CPU s"
        )
        said = f"{one.cpu_seconds / whole:.1f} per GB checked"
        if one.num_bytecode:
            said += f" ({one.cpu_seconds / hashed:.1f} where byte code is checked and not counted)"
        held = one.holds and one.cpu_seconds <= 20 * whole
        rows.append(Row(f"I2 all, {what}", "everything <= 20 CPU s per GB", said, held))
    began = time.process_time()
    alarm = any(by_records(root) for root in running_environment().roots)
    spent = time.process_time() - began
    console.print(
        f"a scan by importlib.metadata, hashes alone: {spent:.1f} CPU s, "
        f"{spent / (found['RECORD'].num_bytes / 1e9):.1f} per GB{', with an alarm' * alarm}"
    )
    return rows


def _i3(console: Console, made: Prepared, _: Path) -> list[Row]:
    uv = shutil.which("uv")
    counts = dict.fromkeys(("tightrope", "RECORD scan", "pip check", *(["uv pip check"] if uv else [])), 0)
    for name in CLASSES:
        toy = made.changed.get(name, made.toy)
        found = {
            "tightrope": not by_verify(made, name).holds,
            "RECORD scan": by_records(toy.site),
            "pip check": by_pip(toy),
        }
        if uv:
            found["uv pip check"] = by_uv(uv, toy)
        for who, caught in found.items():
            counts[who] += caught
        console.print(f"{name}: {', '.join(who for who, caught in found.items() if caught) or 'nobody'}")
    peers = "; ".join(f"{who} {count} of 7" for who, count in counts.items() if who != "tightrope")
    held = counts["tightrope"] == 7 and counts["RECORD scan"] == 3 and counts["pip check"] == 0
    ours = f"{counts['tightrope']} of 7"
    return [Row("I3", "7 of 7 beside pip check 0 and a RECORD scan 3", ours, held, peers)]


def _i4(console: Console, made: Prepared, _: Path) -> list[Row]:
    refused = 0
    clean = by_plan(Prepared(made.toy, made.lock, made.plan, {"clean": made.toy}), "clean")
    for name in CLASSES:
        found = by_plan(made, name)
        said = "; ".join(str(problem) for problem in found.problems) or "runs"
        refused += _NAMED[name] in said  # stale byte code beside a changed file may be named before it
        console.print(f"{name}: {said}", markup=False)
    held = refused == len(CLASSES) and clean.holds
    state = "runs" if clean.holds else f"is refused: {clean.problems[0]}"
    return [
        Row(
            "I4",
            "refused in a tampered environment, runs in the clean one",
            f"refused for {refused} of 7; in the clean one it {state}",
            held,
        )
    ]
