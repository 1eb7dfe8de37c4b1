"""Input that once gave wrong answers."""

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest

from tightrope.core import TightropeError
from tightrope_planners.place import Block, Piece, place_blocks, place_file, read_csv, repack


def test_a_hint_never_costs_room() -> None:
    block = Block((Piece(3, 0, 2),), hint=9)
    assert place_blocks([block], seconds=0.05).peaks == (3,)
    found = place_blocks([block], capacity=7, seconds=0.05)
    assert (found.status, found.offsets[0] + 3 <= 7) == ("optimal", True)
    kept = place_blocks([Block((Piece(3, 0, 2),), hint=4)], capacity=7, stop_at=7)
    assert kept.offsets == (4,)


def test_one_hint_leaves_the_search_on(tmp_path: Path) -> None:
    rows = [f"b{i},{i % 7},{i % 7 + 1 + i % 5},{64 * (1 + i * 37 % 11)}" for i in range(60)]
    plain, hinted = tmp_path / "plain.csv", tmp_path / "hinted.csv"
    plain.write_text("id,lower,upper,size\n" + "\n".join(rows) + "\n")
    marks = [f"{row},{0 if number == 3 else ''}" for number, row in enumerate(rows)]
    hinted.write_text("id,lower,upper,size,hint\n" + "\n".join(marks) + "\n")
    with_hint, without = (place_file(file, minimize=True, seconds=0.2)[1] for file in (hinted, plain))
    assert with_hint.peak <= without.peak


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"previous": {7: 0}}, "buffer 7.*buffers 0 to 1"),
        ({"previous": {0: 0.5}}, r"previous offset 0\.5 of buffer 0"),
        ({"previous": {"a": 0}}, "of buffer 'a'"),
        ({"previous": [0, 8]}, r"mapping from buffers, not \[0, 8\]"),
        ({"capacity": None}, "capacity is None"),
        ({"capacity": "16"}, "capacity is '16'"),
        ({"capacity": 16.5}, r"capacity is 16\.5"),
        ({"alignments": [0, 1]}, "alignment outside"),
        ({"alignments": [1]}, "one alignment each"),
        ({"buffers": None}, "buffers must be"),
        ({"buffers": [(8, 0)]}, "buffers must be"),
        ({"seconds": None}, "seconds=None: give"),
        ({"seed": 1.5}, r"seed is 1\.5"),
    ],
)
def test_repack_refuses_nonsense_and_quotes_it(changed: dict[str, Any], message: str) -> None:
    arguments = {"buffers": [(8, 0, 2)] * 2, "previous": {0: 0}, "capacity": 16, **changed}
    with pytest.raises(TightropeError, match=message):
        repack(arguments.pop("buffers"), arguments.pop("previous"), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Block.bucket(((8, 0, 1),), alignment=0), "alignment is 0"),
        (lambda: Block.bucket(((8, 0, 1),), alignment="a"), "alignment is 'a'"),  # type: ignore[arg-type]
        (lambda: Block.bucket(((8, 0),)), r"\(size, start, end\).*not \(8, 0\)"),  # type: ignore[arg-type]
        (lambda: Block.bucket(((8.5, 0, 1),)), r"not \(8\.5, 0, 1\)"),  # type: ignore[arg-type]
        (lambda: Block.bucket(None), "not None"),  # type: ignore[arg-type]
        (lambda: Block.alias(8, (("a", 1),)), r"\(start, end\).*not \('a', 1\)"),  # type: ignore[arg-type]
    ],
)
def test_blocks_are_not_made_of_nonsense(make: Callable[[], Block], message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        make()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("lower,upper,size,alignment,id,gaps\n0,4,8,0,kept,1-2", "buffer 'kept' has alignment 0"),
        ("lower,upper,size,offset,id\n0,2,8,0,low\n1,3,8,4,high", "'low' at 0 and 'high' at 4 overlap"),
        ("lower,upper,size,offset,alignment,id\n0,2,8,3,4,odd", "buffer 'odd' has offset or hint 3"),
        ("lower,upper,size,id\n0,4611686018427387904,8,old", r"buffer 'old' has lifetime \[0, 4611"),
    ],
)
def test_buffers_of_a_file_are_called_by_their_names(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(rows + "\n")
    with pytest.raises(TightropeError, match=message):
        place_file(tmp_path / "a.csv", minimize=True)


def test_a_byte_order_mark_is_no_part_of_a_name_and_offsets_are_not_negative(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbfid,lower,upper,size\nfirst,0,2,8\n")
    assert read_csv(file).names == ("first",)
    file.write_text("id,lower,upper,size,offset\na,0,2,8,-5\n")
    with pytest.raises(TightropeError, match="offset is -5"):
        read_csv(file)


def test_seconds_of_blocks_are_a_number() -> None:
    with pytest.raises(TightropeError):
        place_blocks([Block.of(1, 0, 2)], seconds=nan)
