"""One fabric of three nodes for all tests of a module."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightrope_ranks.fabric import SharedFabric

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def fabric() -> Iterator[SharedFabric]:
    with SharedFabric(3, modules=["fabric_functions"]) as found:
        yield found
