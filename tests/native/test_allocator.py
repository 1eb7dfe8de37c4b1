import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import NativeError
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import Allocator, allocator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


# counting


@pytest.mark.parametrize(("size", "counted"), [(1, 64), (64, 64), (65, 128), (100_000, 100_032)])
def test_blocks_are_aligned_and_counted_rounded_up(native: Allocator, size: int, counted: int) -> None:
    before = native.stats()
    x = block(size)
    after = native.stats()
    assert x.data_ptr() % 64 == 0
    assert native.owns(x.data_ptr())
    assert after.charged - before.charged == after.heap_live - before.heap_live == counted
    assert after.live - before.live == counted
    assert after.num_allocations - before.num_allocations == 1
    del x
    assert native.stats()[:1] + native.stats()[2:4] == before[:1] + before[2:4]


def test_peaks_rise_and_can_be_reset(native: Allocator) -> None:
    before = native.stats()
    x = block(6400)
    del x
    peak = native.stats()
    assert peak.charged_peak - before.charged == peak.live_peak - before.live == 6400
    native.reset_peaks()
    assert native.stats().live_peak == native.stats().live == before.live


def test_what_lives_beside_the_live_peak_is_charged_alone(native: Allocator) -> None:
    before = native.stats()
    x = block(640)
    del x
    with native.beside_live_peak():
        x = block(6400)
        kept = block(64)
        del x
    after = native.stats()
    assert after.live_peak - before.live == 640
    assert after.charged_peak - before.charged == 6464
    with native.beside_live_peak():
        more = block(1280)
    assert native.stats().live_peak - before.live == 1344
    del kept, more


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5000)), max_size=60))
def test_counters_follow_a_model(actions: list[tuple[int, int]]) -> None:
    native = allocator()
    start, slots = native.stats().live, {}
    native.reset_peaks()
    live = peak = 0
    for slot, size in actions:
        live -= slots.pop(slot, (None, 0))[1]
        if size > 100:
            counted = -(-size // 64) * 64
            slots[slot] = (block(size), counted)
            live += counted
            peak = max(peak, live)
        assert native.stats().live - start == live
    assert native.stats().live_peak - start == peak


def test_foreign_memory_is_not_counted(native: Allocator) -> None:
    array = np.zeros(1000, dtype=np.float32)
    before = native.stats().live
    view = torch.from_numpy(array)
    raw = torch.frombuffer(bytearray(4000), dtype=torch.uint8)
    assert native.stats().live == before
    assert not native.owns(view.data_ptr())
    assert not native.owns(raw.data_ptr())
    view += 1
    assert array.sum() == 1000


def test_numpy_resize_clone_and_sharing_behave(native: Allocator) -> None:
    before = native.stats().live
    x = torch.arange(100.0)
    x.resize_(200)
    assert x[:100].numpy().sum() == 4950
    assert native.owns(x.data_ptr())
    assert torch.equal(x[:100], torch.arange(100.0))
    y = x[:100].clone()
    y.share_memory_()
    assert not native.owns(y.data_ptr())
    assert torch.equal(y, torch.arange(100.0))
    assert native.stats().live - before == 832
    del x, y
    assert native.stats().live == before


# the limit


def step(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x.sum()


def test_the_limit_is_exact_typed_leaks_nothing_and_the_next_step_is_right(native: Allocator) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(64, 64) for _ in range(4)]
    x = torch.randn(32, 64)
    expected = step(weights, x)
    base = native.stats().charged
    native.reset_peaks()
    peak = (step(weights, x), native.stats().charged_peak)[1]
    assert peak > base
    for _ in range(20):
        with native.limited(peak):
            assert torch.equal(step(weights, x), expected)
        with (
            native.limited(peak - 64),
            pytest.raises(torch.OutOfMemoryError, match=rf"limit is {peak - 64} bytes"),
        ):
            step(weights, x)
        assert native.stats().charged == base
    assert native.stats().charged_peak == peak


def test_a_refusal_names_what_was_asked_and_what_is_charged(native: Allocator) -> None:
    charged = native.stats().charged
    with (
        native.limited(charged + 999),
        pytest.raises(torch.OutOfMemoryError, match=f"asked 1000 bytes; {charged} "),
    ):
        block(1000)
    with native.limited(charged + 1024):
        assert block(1000).numel() == 1000


def test_the_limit_holds_other_threads_too(native: Allocator) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            block(10_000)
        except torch.OutOfMemoryError as error:
            caught.append(error)

    with native.limited(native.stats().charged + 5000), ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert len(caught) == 1


def test_limited_puts_the_previous_limit_back(native: Allocator) -> None:
    with native.limited(2**40):
        with native.limited(None):
            assert native.limit is None
        assert native.limit == 2**40
    assert native.limit is None
    with pytest.raises(NativeError, match="at least 0"):
        native.limit = -5


# recording


def test_a_recording_lists_allocations_and_releases_in_order(native: Allocator) -> None:
    old = block(640)
    native.begin_record()
    a = block(100)
    del old
    b = block(200)
    assert native.num_events() == 3
    del a
    record = native.end_record()
    assert [tuple_of(event) for event in record.events] == [
        ("alloc", 0, 100),
        ("free", -1, 640),
        ("alloc", 1, 200),
        ("free", 0, 100),
    ]
    assert record.freed() == (True, False)
    assert [(x.bytes, x.start, x.end) for x in record.buffers()] == [(100, 0, 3), (200, 2, 4)]
    del b
    native.begin_record()
    assert native.end_record().events == ()


def tuple_of(event: object) -> tuple[object, ...]:
    return tuple(event) if isinstance(event, tuple) else ()


def test_a_recording_ignores_what_other_threads_make_and_sees_what_they_free(native: Allocator) -> None:
    mine: list[torch.Tensor] = []

    def work() -> None:
        block(5000)
        mine.clear()

    native.begin_record()
    mine.append(block(100))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert [tuple_of(event) for event in native.end_record().events] == [("alloc", 0, 100), ("free", 0, 100)]


# the process


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_tensors_from_before_the_installation_die_in_peace() -> None:
    run(
        "import torch\n"
        "old = torch.ones(1000)\n"
        "from tightrope.native.hook.allocator import allocator\n"
        "a = allocator()\n"
        "assert not a.owns(old.data_ptr())\n"
        "live = a.stats().live\n"
        "old.resize_(5000); del old\n"
        "assert a.stats().live == live\n"
        "assert allocator() is a\n"
        "kept_until_exit = torch.ones(1000)\n"
    )


@pytest.mark.slow
def test_a_forked_child_has_no_limit_and_no_replay() -> None:
    run(
        "import os, torch\n"
        "from tightrope.native.hook.allocator import allocator\n"
        "a = allocator(); arena = a.open_arena(4096); a.begin_replay(arena, a.register_plan([64], [0]))\n"
        "a.limit = a.stats().charged\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if torch.ones(10000).sum() == 10000 and a.limit is None else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert a.end_replay().reached == 0 and a.limit is not None\n"
    )
