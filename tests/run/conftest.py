"""Models of one test are gone before the next."""

import gc
from collections.abc import Iterator

import pytest
import transformers  # noqa: F401

from tightrope.capture._torch import reset_dynamo
from tightrope.native.build import compiler
from tightrope.run.ledger.accounts import accounts, has_accounts

gc.collect()
gc.freeze()  # spare the collection after every test the half a million objects of these imports


@pytest.fixture(autouse=True, scope="module")
def _no_budget_of_other_files() -> None:
    """Let go of models that tests of other files left to Dynamo, and so of their budgets."""
    reset_dynamo()
    gc.collect()


@pytest.fixture(autouse=True)
def _no_open_step() -> Iterator[None]:
    """End what a level 0 model has begun, before the allocator is put back to plain counting."""
    yield
    if has_accounts() and compiler() is not None:
        accounts().open_step(None)
    reset_dynamo()  # compiled code refers to its model
    gc.collect()
