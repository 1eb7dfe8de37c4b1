"""Machine profiles in TOML."""

from pathlib import Path

import msgspec
import pytest

from tightrope.core import Machine, Tier, TightropeError
from tightrope.core.machine import check_machine

PROFILE = """
name = "board"
watts = 5
device = "cpu"
[flops]
matmul = 2e9
[[tiers]]
name = "ram"
bytes = 262144
alignment = 16
[[tiers]]
name = "flash"
bytes = 1048576
read = 20e6
write = 1e5
latency = 1e-4
joules_per_byte = 2e-9
"""
TIER = '[[tiers]]\nname = "ram"\nbytes = 1024\n'


def test_a_profile_is_read() -> None:
    machine = Machine.parse(PROFILE)
    assert machine.name == "board"
    assert machine.flops == {"matmul": 2e9}
    assert machine.watts == 5.0
    assert machine.tiers[0] == Tier("ram", 262144, 16)
    assert machine.tiers[1] == Tier(
        "flash", 1048576, read=20e6, write=1e5, latency=1e-4, joules_per_byte=2e-9
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name = ",
        "name",
        'name = "x"',
        TIER,
        'name = "x"\ntiers = []',
        "name = 5\n" + TIER,
        "[[tiers]",
        'name = "x"\n[[tiers]]\nname = "ram"',
        'name = "x"\n[[tiers]]\nbytes = 5',
        'name = "x"\ntiers = 3',
        'name = "x"\n[[tiers]]\nname = "ram"\nbytes = 0',
        'name = "x"\n[[tiers]]\nname = "ram"\nbytes = -5',
        'name = "x"\n[[tiers]]\nname = "ram"\nbytes = "8GiB"',
        'name = "x"\n[[tiers]]\nname = "ram"\nbytes = 1.5',
        'name = "x"\nwatts = "many"\n' + TIER,
        'name = "x"\nname = "y"\n' + TIER,
        'name = "x"\nflops = [1]\n' + TIER,
        'name = "x"\n' + TIER + 'read = "fast"',
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(TightropeError, match="machine"):
        Machine.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 3\n" + TIER, "name is a whole number: give text in quotes"),
        ('name = "x"\n', "has no tiers; it has name"),
        ('name = "x"\n' + TIER + 'read = "fast"', "read is text in quotes: give a number"),
        ('name = "x"\n' + TIER + "color = 3", "has 'color', which is not known"),
    ],
)
def test_what_is_wrong_is_said_in_words_of_the_file(text: str, said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        Machine.parse(text)


def test_a_machine_with_a_value_of_another_kind_is_refused_by_its_field() -> None:
    tier = msgspec.structs.replace(Machine.here().tiers[0], bytes="many")
    with pytest.raises(TightropeError, match="tiers 'dram', bytes is text in quotes: give a whole number"):
        check_machine(msgspec.structs.replace(Machine.here(), tiers=(tier,)))


def test_a_profile_is_loaded_from_a_small_file(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    file.write_text(PROFILE, encoding="utf-8")
    assert Machine.load(file) == Machine.load(str(file)) == Machine.parse(PROFILE)
    file.write_text("#" * 2**20 + PROFILE, encoding="utf-8")
    for path in (file, tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(TightropeError, match="no machine profile"):
            Machine.load(path)


def test_this_machine_has_memory() -> None:
    (tier,) = Machine.here().tiers
    assert tier.bytes > 2**20
