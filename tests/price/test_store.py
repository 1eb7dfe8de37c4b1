"""Prices on disk: read once until the file changes, and in another file where the fields are others."""

from pathlib import Path

import msgspec
import pytest

from tightrope.price import Measured, PriceStore, store


class Older(msgspec.Struct, frozen=True, array_like=True):
    """A price as an earlier version kept it."""

    ns: int


def test_a_version_with_other_fields_reads_and_writes_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = PriceStore((), tmp_path).name
    assert PriceStore((), tmp_path).name == now
    monkeypatch.setattr(store, "Measured", Older)
    assert PriceStore((), tmp_path).name != now


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PriceStore((), tmp_path)
    writer.put("first", Measured(1))
    writer.save()
    decode, decoded = store.msgspec.json.decode, list[int]()
    monkeypatch.setattr(store.msgspec.json, "decode", lambda *a, **k: (decoded.append(1), decode(*a, **k))[1])
    changed = PriceStore((), tmp_path)
    changed.put("unsaved", Measured(2))
    assert set(PriceStore((), tmp_path).prices) == {"first"}
    assert len(decoded) == 1
    changed.save()
    assert set(PriceStore((), tmp_path).prices) == {"first", "unsaved"}
    assert len(decoded) == 2
