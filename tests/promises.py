"""The shortest test of every promise, on the installed package: `python -m tests.promises`, `make smoke`."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.packages import ROOT, packages

PAGE = ROOT / "docs" / "compat.md"


def named(page: str | None = None) -> list[str]:
    """List the tests in the table of docs/compat.md, but for those of plug-ins that are not here."""
    found = re.findall(r"`((?:packages/[\w-]+/)?tests/[^`]+)`", PAGE.read_text() if page is None else page)
    return [name for name in found if name.startswith("tests/") or folder_of(name).is_dir()]


def folder_of(name: str) -> Path:
    """Name the folder of the plug-in that has a test."""
    return ROOT.joinpath(*name.split("/")[:2])


def main(*arguments: str) -> int:
    """Run them in pytest, with more arguments of it."""
    for package in packages():
        found = importlib.import_module(package.name).__file__ or ""
        if Path(found).is_relative_to(package):
            sys.exit(f"this Python imports {package.name} from {package}: `make smoke` installs a wheel")
        print(f"{package.name} of {Path(found).parent}", flush=True)
    return int(pytest.main([*named(), *arguments]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
