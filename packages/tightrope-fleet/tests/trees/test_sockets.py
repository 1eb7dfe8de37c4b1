"""Parties in processes of their own train the forest of one process, to the last bit, or give up together."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tightrope.core.errors import TightropeError
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.parties import PartyTable
from tightrope_fleet.trees.rows import train_over_rows
from tightrope_fleet.trees.sockets import PartyLink
from tightrope_fleet.trees.table import read_table

pytest.importorskip("cryptography")


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def tables(folder: Path, count: int) -> list[Path]:
    """Write tables of rows with weights and three classes."""
    random, files = np.random.default_rng(0), []
    for number in range(count):
        rows = ["a,b,y,w"]
        for _ in range(40 + number):
            a, b = random.normal(size=2).round(2)
            rows.append(f"{a},{b},{int(np.digitize(a, [-0.4, 0.4]))},{random.integers(0, 3)}")
        files.append(folder / f"t{number}.csv")
        files[-1].write_text("\n".join(rows) + "\n")
    return files


def start(file: Path, place: int, count: int, port: int, *more: str) -> "subprocess.Popen[str]":
    """Start a party."""
    given = ["trees", str(file), "--join", f"127.0.0.1:{port}", "--party", f"{place + 1}/{count}", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "tightrope", *given],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


ASKED = (
    "--loss",
    "softmax",
    "--weight",
    "w",
    "--min-rows",
    "3",
    "--trees",
    "4",
    "--depth",
    "3",
    "--stop",
    "9",
)


@pytest.mark.slow
def test_processes_train_the_forest_of_one_process(tmp_path: Path) -> None:
    files, port = tables(tmp_path, 3), free_port()
    given = [*ASKED, "--protection", "masks", "-o"]
    running = [
        start(file, place, 3, port, *given, str(tmp_path / f"f{place}.json"))
        for place, file in enumerate(files)
    ]
    for one in running:
        out, err = one.communicate(timeout=120)
        assert one.returncode == 0, err
        assert "bytes handed to others" in out
    forests = {(tmp_path / f"f{place}.json").read_bytes() for place in range(3)}
    parties = []
    for file in files:
        read = read_table(file, weight="w")
        parties.append(PartyTable(file.name, read.table, read.labels, read.weights))
    params = Boosting(trees=4, depth=3, loss="softmax", classes=3, min_rows=3, stop=9)
    assert forests == {train_over_rows(parties, params, features=("a", "b"))[0].dump()}


LEAVES = """
import os, sys
from tightrope_fleet.trees.sockets import PartyLink
PartyLink(sys.argv[1], 1, 2)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["settings", "gone"])
def test_parties_that_differ_or_end_are_told(tmp_path: Path, how: str) -> None:
    files, port = tables(tmp_path, 2), free_port()
    one = start(files[0], 0, 2, port, *ASKED)
    if how == "gone":
        other = subprocess.Popen([sys.executable, "-c", LEAVES, f"127.0.0.1:{port}"])
    else:
        other = start(files[1], 1, 2, port, *ASKED, "--rate", "0.2")
    out, err = one.communicate(timeout=120)
    other.communicate(timeout=60)
    assert one.returncode == 2, out
    assert ("asks for other settings" if how == "settings" else "a party ended") in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("address", "place", "count"), [("x", 0, 2), ("h:0", 0, 2), ("h:1", 2, 2), ("h:1", 0, 1)]
)
def test_addresses_and_places_that_are_none_are_refused(address: str, place: int, count: int) -> None:
    with pytest.raises(TightropeError, match=r"HOST:PORT|a place from 0"):
        PartyLink(address, place, count)
