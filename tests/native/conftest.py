import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from other_users import OtherUsers

from tightrope.native import build
from tightrope.native.hook.allocator import Allocator, allocator

_COMPILER: Final = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -o) out=$2; shift;; *.cpp) source=$1;; esac
  shift
done
[ -z "$source" ] || cp %s/$(basename "$source" .cpp)-*.so "$out"
"""
"""Built libraries are built once: this one copies them."""
_USED: Final = ("allocator", "solver", "packer", "batch_norm", "mincut", "safety", "fusion")


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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with built libraries."""
    folder = tmp_path_factory.mktemp("built")
    for name in _USED:
        shutil.copy(build.library(name), folder)
    return folder


@pytest.fixture(scope="session")
def users(built: Path) -> Iterator[OtherUsers]:
    """A process that runs scripts as other users."""
    made = OtherUsers(built)
    (compiler := made.folder / "c++").write_text(_COMPILER % (made.folder / "built"))
    compiler.chmod(0o755)
    yield made
    made.close()
