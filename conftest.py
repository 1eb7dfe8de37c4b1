"""Fixtures for every test: one thread, no plans kept by earlier runs, no limit or recording left behind."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch._dynamo.backends.common

from tests.promises import named
from tightrope.core import NativeError
from tightrope.native.hook.allocator import allocator
from tightrope.run.compile import _COMPILED
from tightrope.run.ledger.accounts import accounts

torch.set_num_threads(1)
_MUCH = 1 << 20
"""Bytes that budgets of tests leave free."""
os.environ["TIGHTROPE_PLANS"] = "off"  # also in processes that tests start


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what docs/compat.md names, for `-m smoke`, and as slow most cases of what is marked `few`."""
    wanted = set(named())
    cases: dict[str, list[pytest.Item]] = {}
    named_ones: dict[str, int] = {}
    for item in items:
        if item.get_closest_marker("few"):
            function = item.nodeid.partition("[")[0]
            named_ones[function] = named_ones.get(function, 0) + (item.nodeid in wanted)
            if item.nodeid not in wanted:
                cases.setdefault(function, []).append(item)
    for function, those in cases.items():
        mark = those[0].get_closest_marker("few")
        assert mark is not None
        num = max(0, mark.args[0] - named_ones[function])
        kept = {at * len(those) // num for at in range(num)}
        for item in (one for at, one in enumerate(those) if at not in kept):
            item.add_marker("slow")
    for item in items:
        function = item.nodeid.partition("[")[0]
        if item.nodeid in wanted or (function in wanted and not item.get_closest_marker("slow")):
            item.add_marker("smoke")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, so that what its tests share is made once and not in every process."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def _every_stretch() -> Iterator[None]:
    """Compile the shortest stretches too: which those are depends on measured times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightrope.fuse.choose._LEAST_PART", 0.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def _short_walks(request: pytest.FixtureRequest) -> None:
    """Let collections skip what lives to the end, which is most: tests collect often.

    What an error of the test before still held then would never be collected: where many bytes are left,
    or a model's budget is left, collections look at everything again.
    """
    torch._dynamo.reset()  # it holds models
    for name in ("last_value", "last_traceback", "last_exc"):  # of a test that failed, and hold its models
        vars(sys).pop(name, None)
    if allocator.cache_info().currsize and (accounts()._budgets or allocator().stats().live > _MUCH):
        gc.unfreeze()
    gc.collect()
    _end_what_is_left(request)
    gc.freeze()


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test leave no budget behind."""
    yield
    gc.collect()
    _end_what_is_left(request)


def _end_what_is_left(request: pytest.FixtureRequest) -> None:
    """Lift budgets of models that were left alive, and print what holds those."""
    if not allocator.cache_info().currsize:
        return
    lines = []
    for owner, budget in list(accounts()._budgets.items()):
        lines.append(f"{request.node.nodeid}: {owner!r} is left with {budget} bytes, held by")
        held = [owner, *(model for model, compiled in _COMPILED.items() if compiled is owner)]
        holders = (by for one in held for by in gc.get_referrers(one) if by is not held)
        lines += [f"    {type(by).__qualname__} {by!r:.300}" for by in holders if not isinstance(by, tuple)]
        accounts().release(owner)
    if not lines:
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(*lines, sep="\n", file=sys.stderr)


@pytest.fixture(autouse=True)
def _quiet_allocator() -> Iterator[None]:
    """Put the process-wide allocator, if a test installed it, back to plain counting, and end its models."""
    yield
    if allocator.cache_info().currsize:
        native = allocator()
        native.limit = None
        for end in (native.end_record, native.end_replay):
            with suppress(NativeError):
                end()
        if accounts()._budgets:  # of this test, most often
            gc.collect()
