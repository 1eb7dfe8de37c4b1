"""Pipelines whose replicas divide parameters, on four real ranks; and a grid that is measured in parts."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.ranks import divided, grid
from tightrope.core import TightropeError


@pytest.mark.slow
def test_replicas_that_divide_parameters_give_the_gradients_of_one_process() -> None:
    (row,) = divided.rows(True)
    assert row.held, row.ours


def test_a_grid_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "points.json", []

    def counted(number: int, point: grid.Point, *, seed: int, seconds: float) -> grid.Measured:
        asked.append(number)
        return grid.Measured(number, 100, 106 if number % 2 else 100)

    monkeypatch.setattr(grid, "measured", counted)
    (row,) = grid.rows(True, file=file, at_most=0.0)
    assert (asked, row.held) == ([], False)
    file.write_bytes(msgspec.json.encode(grid.Kept(4, 24, 1.5, (grid.Measured(0, 100, 100),))))
    (row,) = grid.rows(True, file=file)
    assert asked == list(range(1, 24))
    assert row.held
    assert "slower on 0; >= 5 % faster on 12 of 24 (50 %)" in row.ours
    (again,) = grid.rows(True, file=file)
    assert (again, len(asked)) == (row, 23)
    with pytest.raises(TightropeError, match="another seed, count or search"):
        grid.rows(True, seed=5, file=file)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (grid.Measured(0, 101, 100, "ours", "torch's"), "slower on 1"),
        (grid.Measured(0, None, 100, "", "torch's"), "found nothing where torch's fits"),
    ],
)
def test_a_point_that_is_slower_or_not_found_fails_the_bar(
    tmp_path: Path, wrong: grid.Measured, said: str
) -> None:
    file = tmp_path / "points.json"
    others = tuple(grid.Measured(number, 100, 110) for number in range(1, 24))
    file.write_bytes(msgspec.json.encode(grid.Kept(4, 24, 1.5, (wrong, *others))))
    (row,) = grid.rows(True, file=file)
    assert not row.held
    assert said in row.ours
