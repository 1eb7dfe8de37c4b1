"""The code that a graph was captured from: written down with the plan, and compared before the plan is used.

Idea        Capture knows the code object of every function that it looked into. Their files are hashed, with
            the distributions that own them, and their byte code is hashed too.
Guarantee   Where nothing is found, every file has the bytes, and every function that is captured has the byte
            code, of the planning process; and each function is what its file compiles to.
Complexity  One hash per file and per function, and one compilation per file.
Gaps        What those functions call without capture looking inside, as kernels in libraries, is covered by a
            lock and not by the plan alone.
"""

import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Final

from tightrope.core import Graph, Plan
from tightrope.core.provenance import CodeDigest, Provenance, SourceFile
from tightrope.integrity.codes import Bytecode, code_digest, codes_in, compiled, without_collections
from tightrope.integrity.environment import Environment, running_environment
from tightrope.integrity.findings import Finding, FindingKind, Inspection, digest_of_file
from tightrope.integrity.lock import Lock
from tightrope.integrity.verify import startup_files, verify_files

_OTHER_FILE: Final = "is not the file of the plan"


def provenance_of(
    codes: Iterable[CodeType], *, constants: str = "", environment: Environment | None = None
) -> Provenance:
    """Write down what was captured.

    Args:
        codes: of the functions that capture looked into.
        constants: digest of the values of tensors that the graph holds.
        environment: default: that of this interpreter.

    Example:
        >>> def forward(x):
        ...     return x
        >>> [code.name for code in provenance_of([forward.__code__]).codes]
        ['forward']
    """
    environment = environment or running_environment()
    kept = {(code.co_filename, code.co_qualname, code.co_firstlineno, code_digest(code)) for code in codes}
    paths = sorted({os.path.abspath(path) for path, *_ in kept if os.path.isfile(path)})
    environment = environment.about([environment.name(path) for path in paths])
    files = [_source_file(environment, path) for path in paths]
    order = sorted(range(len(files)), key=lambda k: (files[k].path, paths[k]))
    place = {paths[k]: number for number, k in enumerate(order)}
    digests = sorted(
        (place.get(os.path.abspath(path), -1), name, line, digest) for path, name, line, digest in kept
    )
    return Provenance(
        tuple(files[k] for k in order),
        tuple(CodeDigest(*one) for one in digests),
        constants,
        sys.implementation.cache_tag or "",
    )


def _source_file(environment: Environment, path: str) -> SourceFile:
    name = environment.name(path)
    owners = environment.owners.get(name, ())
    digest = digest_of_file(path)
    if owners:
        owner = owners[0][0]
        return SourceFile(owner.name, owner.version, _below_root(environment, path), digest)
    return SourceFile("", "", _below_search_path(path), digest)


def _below_root(environment: Environment, path: str) -> str:
    for root in environment.roots:
        if path.startswith(f"{root}{os.sep}"):
            return path[len(str(root)) + 1 :].replace(os.sep, "/")
    return path


def _below_search_path(path: str) -> str:
    entries = [os.path.abspath(entry) + os.sep for entry in sys.path if entry]
    longest = max((entry for entry in entries if path.startswith(entry)), key=len, default="")
    return path[len(longest) :].replace(os.sep, "/")


@without_collections()
def check_provenance_of(
    plan: Plan,
    *,
    lock: Lock | None = None,
    graph: Graph | None = None,
    captured: Provenance | None = None,
    paths: Sequence[str | Path] = (),
    environment: Environment | None = None,
) -> Inspection:
    """Check that the code of a plan is the code that is here.

    In this order: files against their RECORD lines and their owners, against the lock, against the plan; byte
    code against sources; functions against fresh compilations, and as this process has them; the fingerprint
    and constants of the graph.

    Args:
        plan: with a provenance.
        lock: of the environment; None = RECORD files are believed.
        graph: as captured here, to compare fingerprints.
        captured: the provenance of that capture, to compare every function as it runs.
        paths: folders in which files of no distribution are looked for, before ``sys.path``.
        environment: default: that of this interpreter.
    """
    began = time.process_time()
    environment = environment or running_environment()
    planned = plan.provenance
    if planned is None:
        why = "the plan does not say which code it was made from: plan again, from FILE.py:FUNCTION"
        finding = Finding(FindingKind.CODE, "the plan", "", "a provenance", "", why)
        return Inspection((finding,), cpu_seconds=time.process_time() - began, locked=lock is not None)
    found = [_place(environment, file, paths) for file in planned.files]
    at_start = startup_files(environment) if lock is not None else ()
    environment = environment.about([environment.name(path) for path in (*found, *at_start) if path])
    verdict = verify_files(environment, [path for path in found if path], lock, began=began)
    problems = list(verdict.problems)
    reported = {one.path for one in problems}
    for file, path in zip(planned.files, found, strict=True):
        problems += _file_findings(environment, file, path, reported)
    if planned.interpreter != environment.interpreter:
        why = "byte code of another interpreter cannot be compared: plan again with this one"
        problems.append(
            Finding(FindingKind.VERSION, "the plan", "", planned.interpreter, environment.interpreter, why)
        )
    else:
        problems += _fresh_findings(environment, planned, found, {one.path for one in verdict.problems})
        problems += _live_findings(environment, planned, found)
    if captured is not None:
        problems += _captured_findings(planned, captured)
        problems = _without_harmless(problems, planned)
    if graph is not None and graph.fingerprint != plan.fingerprint:
        why = "what is captured here is another graph than was planned"
        problems.append(Finding(FindingKind.GRAPH, "the graph", "", plan.fingerprint, graph.fingerprint, why))
    return Inspection(
        tuple(problems),
        verdict.notes,
        verdict.num_distributions,
        len(planned.files),
        verdict.num_bytes,
        time.process_time() - began,
        lock is not None,
    )


def _place(environment: Environment, file: SourceFile, paths: Sequence[str | Path]) -> str:
    """Where a file of a plan is here: where import would find it; empty = nowhere."""
    folders = [*environment.roots] if file.distribution else [*paths, *(entry for entry in sys.path if entry)]
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, file.path))
        if os.path.isfile(path):
            return path
    return ""


def _said(file: SourceFile) -> str:
    return f"{file.distribution} {file.version}".strip()


def _file_findings(
    environment: Environment, file: SourceFile, path: str, reported: set[str]
) -> Iterable[Finding]:
    name = environment.name(path) if path else file.path
    owner = environment.owner(name) or _said(file)
    if not path:
        yield Finding(FindingKind.MISSING, name, owner, file.sha256, "", "a file of the plan is not there")
        return
    if file.distribution and _said(file) not in owner.split(" and "):
        why = "another version is installed than was planned with"
        yield Finding(FindingKind.VERSION, name, owner, _said(file), owner, why)
    digest = digest_of_file(path)
    if digest != file.sha256 and name not in reported:
        yield Finding(FindingKind.CODE, name, owner, file.sha256, digest, _OTHER_FILE)


def _code_of(environment: Environment, path: str, wrong: set[str]) -> CodeType | None:
    """What a file compiles to: its byte code where that was just compared, as where it has an owner."""
    cached = importlib.util.cache_from_source(path)
    names = environment.name(path), environment.name(cached)
    with suppress(OSError):
        if names[0] in environment.owners and not wrong.intersection(names):
            bytecode = Bytecode(cached, path)
            if bytecode.is_loaded():
                return bytecode.code()
    with suppress(SyntaxError, ValueError):
        return compiled(Path(path).read_bytes(), path, sys.flags.optimize)
    return None


def _without_harmless(problems: Sequence[Finding], planned: Provenance) -> list[Finding]:
    """Leave out files of nobody that changed, as by a comment, where every function of theirs is as planned.

    Only where the call was captured here: its functions, and its graph, are what counts then.
    """
    mine = {file.sha256 for file in planned.files if not file.distribution}
    other = {one.path for one in problems if one.why != _OTHER_FILE}
    return [
        one for one in problems if one.why != _OTHER_FILE or one.expected not in mine or one.path in other
    ]


def _fresh_findings(
    environment: Environment, planned: Provenance, found: Sequence[str], wrong: set[str]
) -> Iterable[Finding]:
    """Compare functions of the plan with what their files compile to here."""
    wanted: dict[int, list[CodeDigest]] = {}
    for code in planned.codes:
        wanted.setdefault(code.file, []).append(code)
    for number, codes in wanted.items():
        path = found[number] if number >= 0 else ""
        if not path:
            continue
        whole = _code_of(environment, path, wrong)
        inside = list(codes_in(whole)) if whole is not None else []
        by_name: dict[str, list[CodeType]] = {}
        for one in inside:
            by_name.setdefault(one.co_qualname, []).append(one)
        for code in codes:
            digests = [code_digest(one) for one in by_name.get(code.name, ())]
            if code.digest not in digests:
                name, file = environment.name(path), planned.files[number]
                why = f"{code.name} of the plan is not what this file compiles to"
                have = " or ".join(sorted(set(digests)))
                yield Finding(FindingKind.CODE, name, _said(file), code.digest, have, why)


def _live_findings(environment: Environment, planned: Provenance, found: Sequence[str]) -> Iterable[Finding]:
    """Compare functions of the plan with those that this process would call, where their module is loaded."""
    last = tuple(
        os.path.basename(path) for path in found if path
    )  # which of thousands of modules can be meant
    loaded = {
        os.path.abspath(path): module
        for module in list(sys.modules.values())
        if isinstance(path := getattr(module, "__file__", None), str) and path.endswith(last)
    }
    for code in planned.codes:
        path = found[code.file] if code.file >= 0 else ""
        live: object = loaded.get(path)
        for part in code.name.split("."):
            live = inspect.getattr_static(live, part, None) if live is not None else None
        have = getattr(inspect.unwrap(live), "__code__", None) if callable(live) else None
        if isinstance(have, CodeType) and code_digest(have) != code.digest:
            why = f"{code.name} was replaced in this process"
            name, owner = environment.name(path), _said(planned.files[code.file])
            yield Finding(FindingKind.CODE, name, owner, code.digest, code_digest(have), why)


def _captured_findings(planned: Provenance, captured: Provenance) -> Iterable[Finding]:
    """Compare functions, as they were captured here, with those of the plan."""

    def table(one: Provenance) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for code in one.codes:
            path = one.files[code.file].path if code.file >= 0 else "code without a file"
            found.setdefault((path, code.name), set()).add(code.digest)
        return found

    owners = {file.path: _said(file) for one in (planned, captured) for file in one.files}
    before, here = table(planned), table(captured)
    for key in sorted({*before, *here}):
        if before.get(key) == here.get(key):
            continue
        path, name = key
        expected, found = (" or ".join(sorted(one.get(key, ()))) for one in (before, here))
        why = f"{name} ran here, and not where the plan was made"
        if expected:
            why = (
                f"{name} is not the function of the plan" if found else f"{name} of the plan did not run here"
            )
        yield Finding(FindingKind.CODE, path, owners.get(path, ""), expected, found, why)
    if planned.constants != captured.constants:
        why = "tensors that the graph holds have other values than where the plan was made"
        yield Finding(FindingKind.GRAPH, "constants", "", planned.constants, captured.constants, why)
