"""`lock` and `verify`: make a lock of an environment, and compare the environment with it.

Order of the checks: RECORD, ownership, files of nobody, byte code, and then the lock, where there is one.
`verify_loaded` looks at the files that this process has loaded, and at nothing else.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tightrope.core import TightropeError
from tightrope_verify.environment import Environment, running_environment
from tightrope_verify.findings import Finding, FindingKind, Inspection
from tightrope_verify.lock import Lock, LockedDistribution, LockedFile
from tightrope_verify.scan import Progress, Scan, SeenFile, scan

_AT_START: Final = ("sitecustomize.py", "usercustomize.py")


def make_lock(
    environment: Environment,
    *,
    allow: Sequence[str] = (),
    update: Lock | None = None,
    unrecorded: bool = False,
    progress: Progress | None = None,
) -> tuple[Lock, Inspection]:
    """Read an environment and write down what it holds.

    Args:
        environment: where.
        allow: patterns of paths that may be there without an owner or digest, or as links.
        update: an earlier lock. Distributions of the same version must be as they were; others are new.
        unrecorded: files that no RECORD names are no problem; see `verify_environment`.
        progress: called now and then.

    Returns:
        The lock, and the verdict; a lock is worth keeping only where the verdict holds.
    """
    began = time.process_time()
    found = scan(environment, allow=allow, known=_known(update), unrecorded=unrecorded, progress=progress)
    places = {str(one): number for number, one in enumerate(environment.distributions)}
    files = []
    for name in sorted(found.files):
        owners = environment.owners.get(name, ())
        seen = found.files[name]
        owner = places[str(owners[0][0])] if owners else -1
        files.append(LockedFile(name, owner, seen.bytes, seen.digest, seen.bytecode))
    distributions = tuple(LockedDistribution(one.name, one.version) for one in environment.distributions)
    lock = Lock(environment.interpreter, distributions, tuple(files), tuple(sorted(found.links.items())))
    problems = list(found.problems)
    if update is not None:
        problems += _differences(environment, found, update, upgraded=True)
    return lock, _verdict(environment, found, problems, began, locked=update is not None)


def verify_environment(
    environment: Environment,
    lock: Lock | None = None,
    *,
    allow: Sequence[str] = (),
    bytecode: bool = True,
    unrecorded: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Check every file of an environment.

    Args:
        environment: where.
        lock: made of it earlier; None = RECORD files are believed.
        allow: patterns of paths that may be there without an owner or digest, or as links.
        bytecode: compare byte code with its sources.
        unrecorded: files that no RECORD names, and distributions without one, are no problem: a note counts
            them, and says that only their byte code was checked. For Fedora's packages and Bazel's folders.
        progress: called now and then.

    Raises:
        TightropeError: the lock is of another interpreter.
    """
    began = time.process_time()
    _same_interpreter(environment, lock)
    found = scan(environment, allow=[*allow, *_allowed(lock)], known=_known(lock), bytecode=bytecode,
                 digests=False, unrecorded=unrecorded, progress=progress)  # fmt: skip
    problems = list(found.problems)
    if lock is not None:
        problems += _differences(environment, found, lock, upgraded=False)
    return _verdict(environment, found, problems, began, locked=lock is not None)


def verify_loaded(lock: Lock | None = None, *, environment: Environment | None = None) -> Inspection:
    """Check the files that this process has loaded from its environment: sources and libraries.

    Byte code is compared by its digest in the lock; without one it is compiled again.

    Args:
        lock: made earlier; None = RECORD files are believed.
        environment: default: that of this interpreter.

    Example:
        Above everything else in a program whose environment was locked:
        ``verify_loaded(read_lock("env.lock.json")).demand()``
    """
    began = time.process_time()
    environment = environment or running_environment()
    _same_interpreter(environment, lock)
    return verify_files(environment, loaded_files(environment), lock, began=began)


def verify_files(
    environment: Environment, paths: Iterable[str], lock: Lock | None, *, began: float | None = None
) -> Inspection:
    """Check some files of an environment; with a lock, also those that run whenever Python starts.

    Args:
        environment: where.
        paths: of files, absolute; those elsewhere are counted in a note.
        lock: made earlier; None = RECORD files are believed.
        began: CPU seconds at the beginning, where there is something to add.
    """
    began = time.process_time() if began is None else began
    inside = {environment.name(path) for path in paths}
    if lock is not None:
        inside |= {environment.name(path) for path in startup_files(environment)}
    elsewhere = {name for name in inside if os.path.isabs(name)}
    environment = environment.about(inside)
    lock = lock and lock.about(inside)
    found = scan(environment, known=_known(lock), allow=_allowed(lock), only=inside - elsewhere,
                 digests=False)  # fmt: skip
    problems = list(found.problems)
    if lock is not None:
        problems += _differences(environment, found, lock, upgraded=False, only=inside - elsewhere)
    verdict = _verdict(environment, found, problems, began, locked=lock is not None)
    if elsewhere:
        found.notes.append(f"files outside of the environment, which no RECORD names: {len(elsewhere)}")
        verdict = _verdict(environment, found, problems, began, locked=lock is not None)
    return verdict


def startup_files(environment: Environment) -> Iterator[str]:
    """List files that may run whenever Python starts: ``.pth`` files, and what ``site`` imports."""
    for root in environment.roots:
        for name in sorted(os.listdir(root)):
            if name.endswith(".pth") or name in _AT_START:
                yield str(root / name)


def loaded_files(environment: Environment) -> set[str]:
    """List files that this process has loaded: modules, and libraries below the environment's base."""
    found = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isfile(path):
            found.add(os.path.abspath(path))
    return found | set(_mapped(environment))


def _mapped(environment: Environment) -> Iterator[str]:
    """Libraries in the address space of this process, where the system tells."""
    maps = Path("/proc/self/maps")
    roots = tuple(f"{root}{os.sep}" for root in environment.roots)
    for line in maps.read_text(errors="replace").splitlines() if maps.exists() else ():
        path = line[line.find("/") :] if "/" in line else ""
        if path.startswith(roots) and os.path.isfile(path):
            yield path


def _known(lock: Lock | None) -> dict[str, SeenFile] | None:
    if lock is None:
        return None
    return {file.path: SeenFile(file.digest, file.bytes, file.bytecode) for file in lock.files}


def _allowed(lock: Lock | None) -> list[str]:
    """Files without an owner that were allowed when the lock was made; their digests are compared."""
    if lock is None:
        return []
    return [_literal(file.path) for file in lock.files if file.owner < 0]


def _literal(path: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def _same_interpreter(environment: Environment, lock: Lock | None) -> None:
    if lock is not None and lock.interpreter != environment.interpreter:
        raise TightropeError(
            f"the lock is of {lock.interpreter}, and these packages are for {environment.interpreter}: "
            "give the lock of this environment, or make one."
        )


def _differences(
    environment: Environment, found: Scan, lock: Lock, *, upgraded: bool, only: set[str] | None = None
) -> Iterator[Finding]:
    """Compare with a lock, one finding per distribution of another version and per other file."""
    here = {one.name: one.version for one in environment.distributions}
    before = {one.name: one.version for one in lock.distributions}
    other = {name for name in {*here, *before} if here.get(name) != before.get(name)}
    if not upgraded:
        for name in sorted(other):
            was, now = (f"{name} {known[name]}" if name in known else "" for known in (before, here))
            why = (
                "another version is installed than was locked" if was and now else "installed since the lock"
            )
            why = why if now else "was removed since the lock"
            yield Finding(FindingKind.VERSION, name, now or was, was, now, why)
    reported = {one.path for one in found.problems}
    locked = {file.path: file for file in lock.files}
    for name, seen in sorted(found.files.items()):
        file = locked.get(name)
        owner = environment.owner(name)
        theirs = {str(one) for one, _ in environment.owners.get(name, ())}
        if any(one.rpartition(" ")[0] in other for one in theirs) or name in reported:
            continue
        if file is None:
            yield Finding(FindingKind.LOCK, name, owner, "", seen.digest, "is not in the lock")
        elif file.digest != seen.digest:
            yield Finding(FindingKind.LOCK, name, owner, file.digest, seen.digest, "is not as it was locked")
    for name in sorted(locked.keys() - found.files.keys() - reported):
        owner = lock.owner(locked[name])
        if (only is None or name in only) and owner.rpartition(" ")[0] not in other:
            yield Finding(
                FindingKind.LOCK, name, owner, locked[name].digest, "", "was locked and is not there"
            )
    links = dict(lock.links)
    for name, target in sorted(found.links.items()):
        if links.get(name) != target:
            expected = f"a link to {links[name]}" if name in links else ""
            owner = environment.owner(name)
            yield Finding(
                FindingKind.SYMLINK, name, owner, expected, f"a link to {target}", "is not as locked"
            )


def _verdict(
    environment: Environment, found: Scan, problems: Sequence[Finding], began: float, *, locked: bool
) -> Inspection:
    ordered = sorted(problems, key=lambda one: (one.kind is FindingKind.VERSION, one.path, one.kind))
    return Inspection(
        tuple(ordered),
        tuple(found.notes),
        len(environment.distributions),
        len(found.files),
        found.num_bytes,
        time.process_time() - began,
        locked,
        found.num_bytecode,
        found.bytecode_bytes,
    )
