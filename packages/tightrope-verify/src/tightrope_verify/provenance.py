"""Whether the code that is here is the code that a plan was made from, on disk and in this process.

Idea        `tightrope_verify.captured` writes down files and functions with a plan. Here the files are
            compared with RECORD files and a lock too, and functions with fresh compilations.
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

from tightrope.core import Graph, Plan
from tightrope.core.collector import collector_paused
from tightrope.core.provenance import CodeDigest, Provenance
from tightrope_verify.captured import (
    captured_findings,
    code_digest,
    file_findings,
    other_interpreter,
    place_of,
    said,
    without_harmless,
    without_provenance,
)
from tightrope_verify.codes import Bytecode, codes_in, compiled
from tightrope_verify.environment import Environment, running_environment
from tightrope_verify.findings import Finding, FindingKind, Inspection
from tightrope_verify.lock import Lock
from tightrope_verify.verify import startup_files, verify_files


@collector_paused()
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
        finding = without_provenance()
        return Inspection((finding,), cpu_seconds=time.process_time() - began, locked=lock is not None)
    found = [place_of(environment, file, paths) for file in planned.files]
    at_start = startup_files(environment) if lock is not None else ()
    environment = environment.about([environment.name(path) for path in (*found, *at_start) if path])
    verdict = verify_files(environment, [path for path in found if path], lock, began=began)
    problems = list(verdict.problems)
    reported = {one.path for one in problems}
    for file, path in zip(planned.files, found, strict=True):
        problems += file_findings(environment, file, path, reported)
    if planned.interpreter != environment.interpreter:
        problems.append(other_interpreter(planned, environment))
    else:
        problems += _fresh_findings(environment, planned, found, {one.path for one in verdict.problems})
        problems += _live_findings(environment, planned, found)
    if captured is not None:
        problems += captured_findings(planned, captured)
        problems = without_harmless(problems, planned)
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
                yield Finding(FindingKind.CODE, name, said(file), code.digest, have, why)


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
            name, owner = environment.name(path), said(planned.files[code.file])
            yield Finding(FindingKind.CODE, name, owner, code.digest, code_digest(have), why)
