"""The third size of an input that is captured anew brings one line about ``shapes=``."""

import pytest
import torch
from torch import nn

import tightrope


def _lines(
    capsys: pytest.CaptureFixture[str], *rows: int, shapes: str | None = None, fuse: bool = False
) -> list[str]:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    tightrope.compile(model, budget="64MiB", shapes=shapes, fuse=fuse)
    capsys.readouterr()
    for num in rows:
        model(torch.ones(num, 8)).sum().backward()
    return [line for line in capsys.readouterr().err.splitlines() if "shapes=" in line]


def test_the_third_size_is_told_about_once(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = _lines(capsys, 2, 3, 3, 4, 5)
    assert 'compile(..., shapes="bucket")' in line


def test_two_sizes_and_modes_are_no_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert _lines(capsys, 2, 3, 2, 3) == []


def test_nothing_is_said_where_sizes_are_in_buckets(capsys: pytest.CaptureFixture[str]) -> None:
    assert _lines(capsys, 2, 3, 4, 5, 6, shapes="bucket") == []


def test_nothing_is_suggested_that_would_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _lines(capsys, 2, 3, 4, 5, fuse=True) == []
