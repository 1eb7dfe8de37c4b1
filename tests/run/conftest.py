"""Models of one test are gone before the next."""

import gc
from collections.abc import Iterator

import pytest

from tightrope.capture._torch import reset_dynamo
from tightrope.native.build import compiler
from tightrope.run.ledger import ledger


@pytest.fixture(autouse=True, scope="session")
def _imported_first() -> Iterator[None]:
    """Import what a capture needs, and spare every collection its half a million objects."""
    import torch._dynamo
    import torch._functorch.aot_autograd  # noqa: F401
    import transformers  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_open_step() -> Iterator[None]:
    """End what a level 0 model has begun, before the allocator is put back to plain counting."""
    yield
    if ledger.cache_info().currsize and compiler() is not None:
        ledger().open_step(None)
    reset_dynamo()  # compiled code refers to its model
    gc.collect()
