"""The code that a graph was captured from: written down with its plan, and compared with what is here.

Idea        Capture knows the code object of every function that it looked into. Their files are hashed, with
            the distributions that own them, and their byte code is hashed too.
Guarantee   Where nothing is found, every file has the bytes of the planning process, and every function that
            was captured here has its byte code.
Complexity  One hash per file and per function.
Gaps        Files are not compared with RECORD files or a lock here, and byte code not with its sources:
            `tightrope_verify.provenance` does.
"""

import marshal
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Final

from tightrope.core.provenance import CodeDigest, Provenance, SourceFile
from tightrope_verify.environment import Environment, running_environment
from tightrope_verify.findings import Finding, FindingKind, digest_of, digest_of_file

OTHER_FILE: Final = "is not the file of the plan"


def code_digest(code: CodeType) -> str:
    """Hash what a code object does: byte code, constants, names; neither its file nor its lines.

    >>> one, other = (compile("x = 1", name, "exec") for name in ("a.py", "b.py"))
    >>> code_digest(one) == code_digest(other)
    True
    """
    return digest_of(marshal.dumps(_bare(code), 2))


def _bare(code: CodeType) -> CodeType:
    constants = tuple(_bare(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="", co_linetable=b"", co_firstlineno=1, co_consts=constants)


def provenance_of(
    codes: Iterable[CodeType], *, constants: bytes = b"", environment: Environment | None = None
) -> Provenance:
    """Write down what was captured.

    Args:
        codes: of the functions that capture looked into.
        constants: the values of tensors that the graph holds; empty = it holds none.
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
        digest_of(constants) if constants else "",
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


def without_provenance() -> Finding:
    """What is wrong with a plan that does not say where it came from."""
    why = "the plan does not say which code it was made from: plan again, from FILE.py:FUNCTION"
    return Finding(FindingKind.CODE, "the plan", "", "a provenance", "", why)


def other_interpreter(planned: Provenance, environment: Environment) -> Finding:
    """What is wrong with a plan that another interpreter made."""
    why = "byte code of another interpreter cannot be compared: plan again with this one"
    return Finding(FindingKind.VERSION, "the plan", "", planned.interpreter, environment.interpreter, why)


def place_of(environment: Environment, file: SourceFile, paths: Sequence[str | Path]) -> str:
    """Where a file of a plan is here: where import would find it; empty = nowhere."""
    folders = [*environment.roots] if file.distribution else [*paths, *(entry for entry in sys.path if entry)]
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, file.path))
        if os.path.isfile(path):
            return path
    return ""


def said(file: SourceFile) -> str:
    """Name the distribution of a file, with its version; empty = it has none."""
    return f"{file.distribution} {file.version}".strip()


def file_findings(
    environment: Environment, file: SourceFile, path: str, reported: set[str]
) -> Iterable[Finding]:
    """Compare a file with that of the plan; ``reported`` are paths of which something is known already."""
    name = environment.name(path) if path else file.path
    owner = environment.owner(name) or said(file)
    if not path:
        yield Finding(FindingKind.MISSING, name, owner, file.sha256, "", "a file of the plan is not there")
        return
    if file.distribution and said(file) not in owner.split(" and "):
        why = "another version is installed than was planned with"
        yield Finding(FindingKind.VERSION, name, owner, said(file), owner, why)
    digest = digest_of_file(path)
    if digest != file.sha256 and name not in reported:
        yield Finding(FindingKind.CODE, name, owner, file.sha256, digest, OTHER_FILE)


def without_harmless(problems: Sequence[Finding], planned: Provenance) -> list[Finding]:
    """Leave out files of nobody that changed, as by a comment, where every function of theirs is as planned.

    Only where the call was captured here: its functions, and its graph, are what counts then.
    """
    mine = {file.sha256 for file in planned.files if not file.distribution}
    other = {one.path for one in problems if one.why != OTHER_FILE}
    return [one for one in problems if one.why != OTHER_FILE or one.expected not in mine or one.path in other]


def captured_findings(planned: Provenance, captured: Provenance) -> Iterable[Finding]:
    """Compare functions, as they were captured here, with those of the plan."""

    def table(one: Provenance) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for code in one.codes:
            path = one.files[code.file].path if code.file >= 0 else "code without a file"
            found.setdefault((path, code.name), set()).add(code.digest)
        return found

    owners = {file.path: said(file) for one in (planned, captured) for file in one.files}
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
