"""The commands ``lock`` and ``verify``: installed code, and the code that a plan was made from."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import Bytes, Plan, TightropeError, format_bytes

if TYPE_CHECKING:
    from tightrope_verify import Environment, Inspection, Lock

_LOCK = """\b
Examples:
  tightrope lock -o ../env.lock.json
  tightrope lock --site .venv -o env.lock.json
  tightrope lock --update env.lock.json -o env.lock.json
  tightrope lock --allow '*/site-packages/_virtualenv.*' -o env.lock.json --json"""
_VERIFY = """\b
Examples:
  tightrope verify
  tightrope verify env.lock.json
  tightrope verify env.lock.json --site .venv --json
  tightrope verify env.lock.json --load torch --load mymodel
  tightrope verify --plan step.plan.json
  tightrope verify env.lock.json --plan step.plan.json --target train.py:build"""
_MOST_LINES = 50

Site = Annotated[
    Path | None, typer.Option(help="A virtual environment or a site-packages; default: the running one.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(help="Pattern of paths that may be there without owner or digest, or as links; repeat it."),
]
Unrecorded = Annotated[
    bool,
    typer.Option("--unrecorded", help="Take packages without RECORD files; say what can be checked then."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("lock", short_help="Write down what an environment holds.", epilog=_LOCK)(lock)
    app.command("verify", short_help="Check that code is what was installed.", epilog=_VERIFY)(verify)


def lock(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write the lock here, outside of the packages.")
    ],
    site: Site = None,
    update: Annotated[
        Path | None, typer.Option(help="An earlier lock: what has the same version must be as it was.")
    ] = None,
    allow: Allow = None,
    unrecorded: Unrecorded = False,
    json: Json = False,
) -> None:
    """Check an environment against its RECORD files and write down the digest of every file.

    Nothing is written where something is wrong. Exit code 0: written; 3: something is wrong; 2: error.
    """
    check_outputs([output])
    from tightrope_verify import make_lock, read_lock, write_lock

    before = read_lock(update) if update is not None else None
    environment = _environment(site, unrecorded=unrecorded)
    made, verdict = make_lock(
        environment, allow=allow or (), update=before, unrecorded=unrecorded, progress=_progress()
    )
    if verdict.holds:
        write_lock(output, made, environment)
    changes = _changes(before, made) if before is not None else []
    if json:
        emit_json(_as_json(verdict) | {"written": str(output) if verdict.holds else None, "changes": changes})
    else:
        for line in changes:
            console().print(line, markup=False, soft_wrap=True)
        _say(verdict)
        if verdict.holds:
            console().print(f"written: {output}", markup=False, soft_wrap=True)
    if not verdict.holds:
        raise typer.Exit(DOES_NOT_FIT)


def verify(
    lock: Annotated[
        Path | None, typer.Argument(metavar="[LOCK]", help="Made by tightrope lock; without: RECORD files.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Check the code that this plan was made from.")] = None,
    target: Annotated[
        str | None, typer.Option(help="FILE.py:FUNCTION: capture it, and compare with the plan.")
    ] = None,
    machine: Annotated[str | None, typer.Option(help="The machine of the plan, if it has one.")] = None,
    site: Site = None,
    load: Annotated[
        list[str] | None, typer.Option(help="Import this module and check all that is loaded; repeat it.")
    ] = None,
    allow: Allow = None,
    bytecode: Annotated[
        bool, typer.Option("--bytecode/--no-bytecode", help="Compare byte code with its sources.")
    ] = True,
    unrecorded: Unrecorded = False,
    json: Json = False,
) -> None:
    """Check that installed files, byte code included, are what was installed and locked.

    Exit code 0: everything is as it should be; 3: something is not, or cannot be checked; 2: error.
    """
    from tightrope_verify import read_lock, verify_environment

    known = read_lock(lock) if lock is not None else None
    if target is not None and plan is None:
        raise TightropeError("--target is compared with a plan: add --plan FILE.")
    if machine is not None and target is None:
        raise TightropeError("--machine prices what --target captures: add --plan FILE and --target.")
    if plan is not None:
        if site is not None or load or allow or not bytecode or unrecorded:
            raise TightropeError("a plan is checked in the running environment: leave out the other options.")
        verdict = _plan_verdict(plan, target, machine, known)
    elif load:
        if site is not None or allow or not bytecode or unrecorded:
            raise TightropeError("--load checks the running environment: leave out the other options.")
        verdict = _loaded_verdict(load, known)
    else:
        verdict = verify_environment(
            _environment(site, unrecorded=unrecorded), known, allow=allow or (), bytecode=bytecode,
            unrecorded=unrecorded, progress=_progress(),
        )  # fmt: skip
    if json:
        emit_json(_as_json(verdict))
    else:
        _say(verdict)
    if not verdict.holds:
        raise typer.Exit(DOES_NOT_FIT)


def _environment(site: Path | None, *, unrecorded: bool) -> "Environment":
    from tightrope_verify import environment_at, running_environment

    return running_environment() if site is None else environment_at(site, unrecorded=unrecorded)


def _plan_verdict(path: Path, target: str | None, machine: str | None, lock: "Lock | None") -> "Inspection":
    from tightrope_verify import check_provenance_of

    plan = Plan.load(path)
    folders = [Path.cwd(), path.resolve().parent]
    if target is None:
        return check_provenance_of(plan, lock=lock, paths=folders)
    from tightrope.cli.machines import find_machine
    from tightrope.cli.target import build

    profile, built = find_machine(machine) if machine is not None else None, build(target)
    from tightrope.cli.capturing import priced_program, provenance_of_program

    program = priced_program(target, built, profile)
    folders.insert(0, Path(target.rpartition(":")[0]).resolve().parent)
    here = provenance_of_program(program)
    return check_provenance_of(plan, lock=lock, graph=program.graph, captured=here, paths=folders)


def _loaded_verdict(names: list[str], lock: "Lock | None") -> "Inspection":
    from importlib import import_module

    from tightrope_verify import verify_loaded

    sys.path.insert(0, str(Path.cwd()))
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise TightropeError(f"--load {name!r} cannot be imported: {error}.") from error
    return verify_loaded(lock)


def _changes(before: "Lock", after: "Lock") -> list[str]:
    was = {one.name: one.version for one in before.distributions}
    now = {one.name: one.version for one in after.distributions}
    return [
        f"{name}: {was.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


def _as_json(verdict: "Inspection") -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(verdict)
    return {"holds": verdict.holds} | fields


def _progress() -> Any:
    """A line on standard error while files are read, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(num_files: int, num_bytes: Bytes) -> None:
        sys.stderr.write(f"\r{num_files} files, {format_bytes(num_bytes)} \x1b[K")
        sys.stderr.flush()

    return show


def _say(verdict: "Inspection") -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    show = console()
    for finding in verdict.problems[:_MOST_LINES]:
        show.print(str(finding), markup=False, soft_wrap=True)
    if (more := len(verdict.problems) - _MOST_LINES) > 0:
        show.print(f"and {more} more: --json lists all")
    for note in verdict.notes:
        show.print(f"note: {note}", markup=False, soft_wrap=True)
    against = "RECORD files and the lock" if verdict.locked else "RECORD files"
    state = "as it should be" if verdict.holds else f"problems found: {len(verdict.problems)}"
    code = f", and {verdict.num_bytecode} of byte code" * bool(verdict.num_bytecode)
    show.print(
        f"{state}: {verdict.num_files} files of {verdict.num_distributions} distributions, "
        f"{format_bytes(verdict.num_bytes)}{code}, against {against}; {verdict.cpu_seconds:.2f} CPU s",
        markup=False,
        soft_wrap=True,
    )
