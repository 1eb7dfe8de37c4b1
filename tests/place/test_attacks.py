"""Input that once gave wrong answers."""

from math import nan
from pathlib import Path

import pytest

from tightrope.core import Block, Piece, TightropeError
from tightrope.place import place, place_blocks, place_file, read_csv


def test_a_hint_never_costs_room() -> None:
    block = Block((Piece(3, 0, 2),), hint=9)
    assert place_blocks([block]).peaks == (3,)
    found = place_blocks([block], capacity=7)
    assert (found.status, found.offsets[0] + 3 <= 7) == ("optimal", True)
    kept = place_blocks([Block((Piece(3, 0, 2),), hint=4)], capacity=7, stop_at=7)
    assert kept.offsets == (4,)


def test_one_hint_leaves_the_search_on(tmp_path: Path) -> None:
    rows = [f"b{i},{i % 7},{i % 7 + 1 + i % 5},{64 * (1 + i * 37 % 11)}" for i in range(60)]
    plain, hinted = tmp_path / "plain.csv", tmp_path / "hinted.csv"
    plain.write_text("id,lower,upper,size\n" + "\n".join(rows) + "\n")
    marks = [f"{row},{0 if number == 3 else ''}" for number, row in enumerate(rows)]
    hinted.write_text("id,lower,upper,size,hint\n" + "\n".join(marks) + "\n")
    assert place_file(hinted, minimize=True)[1].peak <= place_file(plain, minimize=True)[1].peak


@pytest.mark.parametrize(
    "ask",
    [
        lambda: place([(1.5, 0, 2), (1.5, 0, 2)]),  # type: ignore[list-item]
        lambda: place([(1, 0, 2)], fixed={0: 0.5}),  # type: ignore[dict-item]
        lambda: place([(1, 0, 2)], alignments=[1.5]),  # type: ignore[list-item]
        lambda: place([(1, 0, 2)], seconds=nan),
        lambda: place([(1, 0, 2)], capacity=nan),  # type: ignore[arg-type]
        lambda: place_blocks([Block.of(1, 0, 2)], seconds=nan),
    ],
)
def test_what_is_no_whole_number_is_refused(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(TightropeError):
        ask()


def test_a_byte_order_mark_is_no_part_of_a_name_and_offsets_are_not_negative(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbfid,lower,upper,size\nfirst,0,2,8\n")
    assert read_csv(file).names == ("first",)
    file.write_text("id,lower,upper,size,offset\na,0,2,8,-5\n")
    with pytest.raises(TightropeError, match="offset is -5"):
        read_csv(file)


def test_fixed_buffers_are_checked_in_no_time_when_there_are_many() -> None:
    buffers = [(64, at, at + 10) for at in range(50_000)]
    fixed = {at: 64 * (at % 10) for at in range(50_000)}
    assert place(buffers, fixed=fixed).peak == 640
    with pytest.raises(TightropeError, match="fixed buffers 7 and 8 overlap"):
        place(buffers, fixed=fixed | {8: fixed[7]})
