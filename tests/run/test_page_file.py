"""The file that pages go to: what comes back, where it lies, what it costs, and what its system refuses."""

import gc
import importlib.util
import os
import resource
from pathlib import Path

import pytest
import torch

from tightrope.core import PagingError, TightropeError
from tightrope.run.execute.page_file import BLOCK, PageFile


def test_pages_of_any_size_come_back_in_any_order_beside_each_other(tmp_path: Path) -> None:
    sizes = (1, 7, BLOCK - 1, BLOCK, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 4097)
    starts = [sum(-(-size // BLOCK) * BLOCK for size in sizes[:k]) for k in range(len(sizes) + 1)]
    file = PageFile(tmp_path)
    pages = file.lease(starts[-1])
    data = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    for key, one in enumerate(data):
        pages.out(key, one.data_ptr(), len(one), starts[key], one)
    for key in range(len(data)):
        pages.wait(key)
    found = [torch.zeros_like(one) for one in data]
    for key in reversed(range(len(data))):
        pages.back(key, found[key].data_ptr(), sizes[key], starts[key], found[key])
    for key in range(len(data)):
        pages.wait(key)
    assert all(map(torch.equal, data, found))
    assert file.bytes == starts[-1]


def test_a_region_is_used_again_and_memory_outlives_its_copy(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    for _ in range(3):
        pages, data = file.lease(2**22), torch.ones(2**22, dtype=torch.uint8)
        pages.out(0, data.data_ptr(), 2**22, 0, data)
        del data, pages  # as when a step fails while a copy is under way
        gc.collect()
    assert file.bytes == 2**22
    first = file.lease(2**22)
    second = file.lease(2**21)
    assert file.bytes == 2**22 + 2**21
    del first, second
    file.lease(2**23)
    assert file.bytes == 2**23


def test_the_rest_of_a_larger_region_is_leased_too(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    held, large = file.lease(2**20), file.lease(2**22)
    del large
    parts = [held, *(file.lease(2**20) for _ in range(4))]
    assert file.bytes == 2**22 + 2**20
    data = [torch.full((2**20,), k, dtype=torch.uint8) for k in range(len(parts))]
    for part, one in zip(parts, data, strict=True):
        part.out(0, one.data_ptr(), len(one), 0, one)
        part.wait(0)
    found = [torch.empty_like(one) for one in data]
    for part, one in zip(parts, found, strict=True):
        part.back(0, one.data_ptr(), len(one), 0, one)
        part.wait(0)
    assert all(map(torch.equal, data, found))


def test_the_system_refuses_room_and_the_file_works_on(tmp_path: Path) -> None:
    file = PageFile(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(PagingError, match=r"2\.00 MiB for pages are not to be had in .*: File too large"):
            file.lease(2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.bytes == 0
    file.lease(2**21)
    assert file.bytes == 2**21


def test_the_tier_is_measured_and_has_room(tmp_path: Path) -> None:
    tier = PageFile(tmp_path).tier()
    assert tier.read > 1e5
    assert tier.write > 1e5
    assert 0 < tier.latency < 1
    assert 0 <= tier.toll < 1e-3
    assert 0 < tier.bytes < 2**60
    assert (tier.alignment, tier.engines) == (BLOCK, 1)


@pytest.mark.parametrize("name", ["preadv", "posix_fallocate", "statvfs"])
def test_a_system_without_what_pages_need_is_told_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, name)
    spec = importlib.util.find_spec("tightrope.run.execute.page_file")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # can be imported all the same
    with pytest.raises(TightropeError, match=f"Python lacks os.{name}, which pages need"):
        PageFile(tmp_path)
