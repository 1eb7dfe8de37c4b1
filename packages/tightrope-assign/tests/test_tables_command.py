"""The commands for tables: what they print, write and refuse."""

import json
from pathlib import Path

import msgspec
import pytest

from tightrope.cli import main
from tightrope.native.processor import described
from tightrope_assign.lookups.bench import MeasuredSet
from tightrope_assign.tables import CONSTANTS, TableSet
from tightrope_assign.values.files import write_value

TABLES = """name = "ads"
batch = 256
tables = [
  { name = "user", rows = 40000, dim = 64 },
  { name = "item", rows = 30000, dim = 64, pooling = 20, skew = 1.05 },
  { name = "city", rows = 2000, dim = 16 },
]
"""
CLUSTER = """devices = [{ name = "a", bytes = 12000000 }, { name = "b", bytes = 20000000, rate = 5e8 }]
links = [{ name = "wire", latency = 1e-6, bandwidth = 1e9 }]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.toml").write_text(TABLES)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return tmp_path


def run(*given: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["tables", *given])
    return int(leaving.value.code or 0)


def plan(*given: str) -> int:
    return run("plan", "tables.toml", "--seconds", "1", *given)


@pytest.mark.smoke
def test_a_plan_is_printed_written_and_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--devices", "3", "--bytes", "12MiB", "-o", "plan.json", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"] == json.loads((folder / "plan.json").read_text())
    assert sum(row["bytes"] for row in said["devices"]) == 4 * (70_000 * 64 + 2000 * 16)
    assert all(row["bytes"] <= row["limit"] for row in said["devices"])
    assert plan("--cluster", "cluster.toml", "--method", "table", "--page", "plan.html") == 0
    page = (folder / "plan.html").read_text()
    assert "Devices over time" in page
    assert "rows to their samples" in page
    assert "2 devices, table-wise" in capsys.readouterr().out


def test_a_lost_device_is_planned_around(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--devices", "4", "--bytes", "12MiB", "-o", "plan.json") == 0
    capsys.readouterr()
    again = ("--devices", "4", "--bytes", "12MiB", "--replaces", "plan.json", "--without", "d1", "--json")
    assert plan(*again) == 0
    said = json.loads(capsys.readouterr().out)["plan"]
    assert "d1" not in {one["device"] for one in said["placed"]}
    assert said["planner"] == "replan"


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ((), 2, "either --devices N, with --bytes, or --cluster FILE"),
        (("--devices", "2", "--cluster", "cluster.toml"), 2, "either --devices N"),
        (("--cluster", "cluster.toml", "--bytes", "1GiB"), 2, "--bytes '1GiB' is for --devices"),
        (("--devices", "2", "--bytes", "many"), 2, "--bytes 'many' is not an amount"),
        (("--devices", "2", "--method", "magic"), 2, "method 'magic' is not known"),
        (("--devices", "2", "--without", "d7"), 2, "no device 'd7'"),
        (
            ("--devices", "2", "--bytes", "500KB"),
            3,
            "'user': 4 columns take 625.0 KiB, and the largest device",
        ),
        (("--devices", "2", "--bytes", "8MiB"), 3, "and the devices have 16.00 MiB"),
        (("--devices", "2", "--costs", "other.json"), 2, "were measured on 'other machine'"),
        (("--devices", "2", "--costs", "later.json"), 2, "the file has schema 2"),
        (("--devices", "2", "--costs", "nan.json"), 2, "NaN"),
        (("--devices", "2", "--costs", "negative.json"), 2, "level holds -5.0"),
        (("--devices", "2", "--replaces", "later.json"), 2, "the file has schema 2"),
        (("--devices", "2", "-o", "tables.toml"), 2, "would be overwritten"),
        (("--devices", "2", "-o", "one", "--page", "one"), 2, "'one' is given for two outputs"),
        (("--cluster", "twice.toml"), 2, "'b' and 'a' are joined twice: keep one of them"),
        (("--devices", "2", "--replaces", "huge.json"), 2, "an integer beyond 2^80: integers must lie"),
    ],
)
def test_bad_input_ends_with_a_message_and_writes_nothing(
    folder: Path, given: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = msgspec.structs.replace
    (folder / "other.json").write_bytes(
        write_value(replace(CONSTANTS, machine="other machine", processor="0"))
    )
    (folder / "later.json").write_text('{"schema": 2}')
    (folder / "negative.json").write_bytes(write_value(replace(CONSTANTS, level=-5.0)))
    (folder / "nan.json").write_text(write_value(CONSTANTS).decode().replace('"level": 0.0', '"level": NaN'))
    pairs = 'pairs = [{ one = "a", other = "b" }, { one = "b", other = "a" }]'
    (folder / "twice.toml").write_text(f"{CLUSTER}{pairs}")
    (folder / "huge.json").write_text(f'{{"schema": 1, "placed": [], "cost": {2**90}}}')
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    output = () if "-o" in given else ("-o", "plan.json")
    assert plan(*given, *output) == code
    assert said in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rows = 2000", "rows = -2000", "table 'city': rows=-2000"),
        ('"city"', '"user"', "table 'user' is there twice"),
        ('"city"', r'"ci\u001b[2Jty"', r"'ci\x1b[2Jty': give a name of 1 to 200 printable characters"),
        ('"ads"', r'"a\u0007ds"', r"tables 'a\x07ds': give a name"),
        ("rows = 2000", f"rows = {2**90}", f"table 'city': rows={2**90}: give 1 to 2^40"),
        ("pooling = 20", f"pooling = {10**400}", "'item', pooling: number out of range"),
        ("pooling = 20", "pooling = nan", "'item': pooling=nan"),
        ("dim = 16", "dim = 1.5", "give a whole number"),
        ("batch = 256", "batch = 0", "batch=0"),
        ("dim = 16", "dim = 16, colour = 1", "'colour', which is not known"),
        ("tables = [", "tables = {", "is not TOML"),
    ],
)
def test_tables_that_cannot_be_are_refused(
    folder: Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tables.toml").write_text(TABLES.replace(old, new))
    assert plan("--devices", "2", "-o", "plan.json") == 2
    assert said in capsys.readouterr().err
    assert not (folder / "plan.json").exists()


def test_prices_of_this_machine_are_measured_saved_and_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = ("measure", "-o", "costs.json", "--seconds", "1", "--no-exchange", "--json")
    one = MeasuredSet(TableSet(()), 1, 0.0, "elsewhere")
    (folder / "costs.json.part").write_bytes(msgspec.json.encode(one) + b"\n")
    assert run(*measure) == 2
    assert "was measured on another machine" in capsys.readouterr().err
    (folder / "costs.json.part").unlink()
    assert run(*measure) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["machine"] == described()[0]
    assert said["figures"]["median_error"] < 0.6
    assert not (folder / "costs.json.part").exists()
    assert plan("--devices", "2", "--costs", "costs.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["costs"] == " ".join(described())
