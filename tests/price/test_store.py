"""Prices with other fields are kept in another file: a version that lacks one would write it as zero."""

from pathlib import Path

import msgspec
import pytest

from tightrope.price import PriceStore, store


class Older(msgspec.Struct, frozen=True, array_like=True):
    """A price as an earlier version kept it."""

    ns: int


def test_a_version_with_other_fields_reads_and_writes_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = PriceStore((), tmp_path).path
    assert PriceStore((), tmp_path).path == now
    monkeypatch.setattr(store, "Measured", Older)
    assert PriceStore((), tmp_path).path != now
