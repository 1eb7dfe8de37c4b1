"""The shortest test of every promise, on the installed package: `python -m tests.promises`, `make smoke`."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compat.md"


def named(page: str | None = None) -> list[str]:
    """List the tests in the table of docs/compat.md."""
    return re.findall(r"`(tests/[^`]+)`", PAGE.read_text() if page is None else page)


def main(*arguments: str) -> int:
    """Run them in pytest, with more arguments of it."""
    import tightrope

    if Path(tightrope.__file__).is_relative_to(ROOT / "src"):
        sys.exit("this Python imports tightrope from src: `make smoke` installs a wheel")
    print(f"tightrope of {Path(tightrope.__file__).parent}", flush=True)
    return int(pytest.main([*named(), *arguments]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
