import gc
import os
from collections.abc import Iterator

import pytest

from tightrope.native.hook.allocator import Allocator, allocator


@pytest.fixture(scope="module", autouse=True)
def _short_collections() -> Iterator[None]:
    """Keep what was imported out of the collections that each test begins with."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def native() -> Allocator:
    gc.collect()
    made = allocator()
    made.reset_peaks()
    return made


@pytest.fixture
def arena(native: Allocator) -> Iterator[int]:
    """A leased arena of 16 pages, retired at the end; no charge may be left."""
    before = native.stats().charged
    made = native.open_arena(16 * os.sysconf("SC_PAGE_SIZE"))
    yield made
    native.retire(made)
    assert native.stats().charged == before
