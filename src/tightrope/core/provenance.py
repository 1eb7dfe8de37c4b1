"""Which code a plan was made from: files with their distributions, code objects, constants.

A plan names its graph by a fingerprint. Its provenance names what that graph was captured from, so
that an installed check can tell whether the same code is there before the plan is used.
"""

import re
from typing import Final

import msgspec

from tightrope.core.checking import MAX_ID, few, refuse, within

CHECKS: Final = "tightrope.checks"
"""The group of entry points of checks: ``code`` writes a provenance, ``provenance`` compares that of a plan.

``code(codes, constants=values)`` is given the code objects that capture looked into, and the bytes of tensors
that the graph holds. ``provenance(plan, captured=found).demand()`` raises `IntegrityError`.
"""
DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}")
"""A SHA-256 digest as RECORD files write it: base64 for URLs, without padding."""
_MAX_FILES: Final = 100_000


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of source code.

    Attributes:
        distribution: name of the installed distribution that owns it; empty = none does.
        version: of the distribution.
        path: below the folder of installed packages where it is owned, else below an entry of
            ``sys.path``, else absolute; always with ``/``.
        sha256: of its bytes, as RECORD files write it: 43 letters and digits.
    """

    distribution: str
    version: str
    path: str
    sha256: str


class CodeDigest(msgspec.Struct, frozen=True, array_like=True):
    """The byte code of a function that a graph was captured from.

    Attributes:
        file: position among the files; -1 = it has none, as code that was made at run time.
        name: qualified, such as ``Net.forward``.
        line: where it begins.
        digest: SHA-256 of its byte code, constants and names; lines are left out.
    """

    file: int
    name: str
    line: int
    digest: str


class Provenance(msgspec.Struct, frozen=True):
    """What a graph was captured from.

    Attributes:
        files: in the order of their paths.
        codes: of every function that capture looked into, in a fixed order.
        constants: digest of the values of tensors that the graph holds itself; empty = it holds none.
        interpreter: whose byte code the digests are of, such as ``cpython-311``.
    """

    files: tuple[SourceFile, ...]
    codes: tuple[CodeDigest, ...]
    constants: str = ""
    interpreter: str = ""


def check_provenance(found: Provenance, where: str) -> None:
    """Check that a provenance is well formed.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    few(found.files, f"{where}.files", most=_MAX_FILES)
    few(found.codes, f"{where}.codes", most=_MAX_FILES)
    for position, file in enumerate(found.files):
        if not DIGEST.fullmatch(file.sha256):
            refuse(
                f"{where}.files[{position}].sha256",
                file.sha256,
                "43 letters and digits, as RECORD files write SHA-256",
            )
        if not file.path:
            refuse(f"{where}.files[{position}].path", file.path, "the path of a file")
    for position, code in enumerate(found.codes):
        within(code.file, f"{where}.codes[{position}].file", low=-1, high=len(found.files) - 1)
        within(code.line, f"{where}.codes[{position}].line", high=MAX_ID)
        if not DIGEST.fullmatch(code.digest):
            refuse(
                f"{where}.codes[{position}].digest",
                code.digest,
                "43 letters and digits, as RECORD files write SHA-256",
            )
    if found.constants and not DIGEST.fullmatch(found.constants):
        refuse(f"{where}.constants", found.constants, "a digest as RECORD files write it, or empty")
