"""Scenario files: what is wrong, and where."""

from pathlib import Path

import pytest

from tightrope.core import TightropeError
from tightrope_fleet.streams import expand, parse_library, read_library, xrbench
from tightrope_fleet.values.streams import StreamScenario, check_streams

GOOD = """
[[scenarios]]
name = "kitchen"
models = [{ name = "ears", fps = 10 }, { name = "eyes", fps = 30, after = ["ears"] }]
[[machines]]
name = "board"
processors = ["big", "big"]
[kinds.big]
ears = { ns = 2000000, mj = 1.5 }
eyes = { ns = 9000000 }
"""


def test_a_good_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "kitchen.toml"
    file.write_text(GOOD)
    library = read_library(file)
    assert [p.name for p in library.machine("board").processors] == ["big#0", "big#1"]
    assert expand(library.scenario("kitchen"), library.machine("board")).num_requests == 7 + 21


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("fps = 10 }", 'fps = 10, after = ["eyes"] }', "is a cycle"),
        ("fps = 10", "fps = -1", "fps=-1"),
        ("fps = 10", "fps = 10, probability = 2", "probability=2"),
        ("fps = 10", "fps = 10, weights = -5", "weights=-5"),
        ('after = ["ears"]', 'after = ["nose"]', "no model is called that"),
        ('name = "eyes"', 'name = "ears"', "there twice"),
        ('["big", "big"]', '["small"]', "has no costs"),
        ("fps = 10", "speed = 10", "models 'ears' has 'speed', which is not known"),
        ("[[machines]]", "[machines]", "machines is a table: give a list"),
        ("ns = 2000000", "ns = '2 ms'", "kinds, in one of its tables, ns is text in quotes: give a whole"),
        ("[kinds.big]", "[kinds.big", "is not TOML: .*line 8"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(TightropeError, match=said) as caught:
        parse_library(GOOD.replace(old, new, 1), "kitchen.toml")
    assert "kitchen.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("eyes = { ns = 9000000 }", "", "no cost of model 'eyes'"),
        ("ns = 2000000", "ns = 0", "ns=0"),
        ('name = "board"', 'name = "board"\narena = -1', "arena=-1"),
        ('name = "board"', 'name = "board"\npage_rate = 0.0', "page_rate=0"),
        ("fps = 30", "fps = 30, weights = 99", "needs 99 bytes"),
    ],
)
def test_machines_that_cannot_be_are_refused(old: str, new: str, said: str) -> None:
    text = GOOD.replace(old, new, 1)
    if "weights" in new:
        text = text.replace('name = "board"', 'name = "board"\narena = 50')
    library = parse_library(text, "kitchen.toml")
    with pytest.raises(TightropeError, match=said):
        expand(library.scenario("kitchen"), library.machine("board"))


def test_names_files_and_sizes(tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match="no scenario is called 'x'"):
        xrbench().scenario("x")
    with pytest.raises(TightropeError, match="give a TOML file"):
        read_library(tmp_path / "none.toml")
    with pytest.raises(TightropeError, match="1 to 64 models"):
        check_streams(StreamScenario("empty", ()))
    scenario, machine = xrbench().scenario("VR_gaming"), xrbench().machine("Single_4K-WS")
    with pytest.raises(TightropeError, match="horizon"):
        expand(scenario, machine, horizon=10**18)
