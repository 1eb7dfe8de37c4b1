"""Prices of one processor are not used on another one that shares the folder of prices."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tightrope.capture.dynamo import environment
from tightrope.native import processor as module
from tightrope.price import Measured, PriceStore
from tightrope.price.device import processor

Pretend = Callable[[str], None]

EPYC = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1
cpu MHz		: 2596.142
cache size	: 1024 KB
core id		: 0
flags		: fpu avx2 avx512f

processor	: 1
core id		: 1
"""


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """Pretend that the system describes its processor so."""

    def pretend(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
        module.described.cache_clear()

    yield pretend
    module.described.cache_clear()


@pytest.mark.parametrize(
    "change",
    [("AMD EPYC", "AMD EPYC 9654"), ("17", "1"), ("avx512f", "avx512f amx_bf16"), ("1024 KB", "512 KB")],
)
def test_another_processor_has_prices_of_its_own(
    on: Pretend, tmp_path: Path, change: tuple[str, str]
) -> None:
    on(EPYC)
    here = PriceStore(environment([torch.ones(1)]), tmp_path)
    here.put("op", Measured(7))
    here.save()
    assert PriceStore(environment([torch.ones(1)]), tmp_path).get("op") == Measured(7)
    on(EPYC.replace(*change))
    assert PriceStore(environment([torch.ones(1)]), tmp_path).get("op") is None


@pytest.mark.parametrize("change", [("2596.142", "3100.5"), ("processor\t: 0", "processor\t: 2")])
def test_what_changes_on_one_machine_is_not_part_of_its_name(on: Pretend, change: tuple[str, str]) -> None:
    on(EPYC)
    before = processor()
    on(EPYC.replace(*change))
    assert processor() == before
    assert before.startswith("AMD EPYC ")


def test_a_system_that_describes_nothing_has_a_name(on: Pretend, tmp_path: Path) -> None:
    on("")
    assert len(processor().split()) >= 3
