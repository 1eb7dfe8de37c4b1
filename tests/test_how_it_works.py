"""docs/how-it-works.md: its table of rooms is the graph of imports, and the files that it names exist."""

import re
from pathlib import Path

import pytest

from tests.test_architecture import ORDER, SOURCE, arrows

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
ROW = re.compile(r"(?m)^\| `(\w+)` \| .* \| (nothing|`.*`) \|$")


def rooms_of(page: str) -> dict[str, set[str]]:
    """Read the table: room -> rooms that it may import."""
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in ROW.findall(page)}


def differences(page: str) -> list[str]:
    """Compare the table with what the modules of src/tightrope import."""
    stated = {(room, other) for room, others in rooms_of(page).items() for other in others}
    missing = [f"{room} imports {other}, which the page does not list" for room, other in arrows() - stated]
    return sorted(missing + [f"{room} does not import {other}" for room, other in stated - arrows()])


def test_the_table_of_rooms_is_the_graph_of_imports() -> None:
    assert differences(PAGE) == []
    assert tuple(rooms_of(PAGE)) == ORDER


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        (
            "| `judge` | independent checkers | `core` |",
            "| `judge` | it | `core`, `native` |",
            "judge does not",
        ),
        ("| `judge` | independent checkers | `core` |", "| `judge` | it | nothing |", "judge imports core"),
        ("| `judge` | independent checkers | `core` |\n", "", "judge imports core"),
    ],
)
def test_a_wrong_table_is_noticed(right: str, wrong: str, found: str) -> None:
    assert right in PAGE
    assert [found in one for one in differences(PAGE.replace(right, wrong))] == [True]


def test_the_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|cpp|hpp))?)`", PAGE)
    assert len(named) > 60
    under = (SOURCE, ROOT, *(SOURCE / room for room in ORDER))
    assert [name for name in named if not any((folder / name).exists() for folder in under)] == []
