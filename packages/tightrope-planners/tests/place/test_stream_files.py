"""Ops on parallel streams as files."""

import json
from pathlib import Path
from typing import Any

import pytest
from stream_cases import FILE

from tightrope.core import TightropeError
from tightrope_planners.place.streams import has_streams, place_streams, read_streams, write_streams


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step.streams.json"
    path.write_text(json.dumps(FILE))
    return path


def test_a_written_file_reads_back_with_its_waits(file: Path, tmp_path: Path) -> None:
    graph, alignments = read_streams(file)
    assert alignments == (1, 1, 64)
    placement = place_streams(graph)
    write_streams(tmp_path / "out.json", graph, placement.offsets, alignments=alignments)
    again, same = read_streams(tmp_path / "out.json")
    assert (again.storages(), again.wait_pairs(), same) == (graph.storages(), ((0, 1),), alignments)


def test_only_files_that_say_so_hold_streams(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"streams": []}')
    assert has_streams(file)
    assert not has_streams(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "tightrope-streams-2"}, "must be 'tightrope-streams'"),
        ({"streams": [0, 1.5, 1, 0]}, r"Expected `int`, got `float` - at `\$.streams\[1\]`"),
        ({"streams": [0, -1, 1, 0]}, "streams run from -1"),
        ({"waits": [[1, 0]]}, "op can wait only for ops issued before"),
        ({"waits": [[0, 9]]}, "waits run from 0 to 9"),
        ({"storages": [{"bytes": 2**63}]}, r"\$.storages\[0\].bytes"),
        ({"storages": [{"bytes": -1}]}, "sizes run from -1"),
        ({"storages": [{"bytes": 1, "alignment": 0}]}, r"\$.storages\[0\].alignment is 0"),
        ({"storages": [{"writer": 1}]}, "missing required field `bytes`"),
        ({"extra": 1}, "unknown field `extra`"),
    ],
)
def test_malformed_files_are_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**FILE, **change}))
    with pytest.raises(TightropeError, match=message) as refusal:
        read_streams(path)
    assert str(refusal.value).startswith(str(path))
