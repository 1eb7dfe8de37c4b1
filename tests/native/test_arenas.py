import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import NativeError
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import Allocator, Divergence, allocator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

PAGE = os.sysconf("SC_PAGE_SIZE")


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def replayed(native: Allocator, arena: int, *planned: tuple[int, int], start: int = 0) -> None:
    """Begin a replay of (size, offset) pairs."""
    plan = native.register_plan([size for size, _ in planned], [offset for _, offset in planned])
    native.begin_replay(arena, plan, start=start)
    native.drop_plan(plan)


# replay


def test_an_empty_tensor_counts_nothing_and_takes_no_number(native: Allocator, arena: int) -> None:
    before = native.stats()
    replayed(native, arena, (64, 0))
    empty = block(0)
    full = block(64)
    end = native.end_replay()
    assert empty.data_ptr() == 0
    assert full.data_ptr() == native.arena(arena).address
    assert (end.reached, end.divergence) == (1, None)
    assert native.stats().num_allocations - before.num_allocations == 1


def test_torchs_profiler_still_sees_memory(native: Allocator, arena: int) -> None:
    replayed(native, arena, (4096, 0))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        planned = block(4096)
        native.end_replay()
        heap = block(8192)
    sizes = [event.self_cpu_memory_usage for event in seen.key_averages() if event.key == "aten::empty"]
    assert sizes == [4096 + 8192]
    del planned, heap


def test_a_span_is_a_replay_between_two_looks_at_the_counters(native: Allocator, arena: int) -> None:
    plan = native.register_plan([128, 256], [0, 128])
    first = block(4096)
    before = native.stats()
    assert native.begin_span(arena, plan) == before
    assert native.stats().live_peak == before.live
    one = block(128)
    end, after = native.end_span()
    assert (end.reached, end.divergence) == (1, None)
    assert (after.live_peak, after.live) == (before.live + 128, before.live + 128)
    del one
    assert native.stats().live_peak == after.live, "peaks start afresh"
    native.begin_span(arena, plan, start=1)
    other = block(64)
    end, _ = native.end_span()
    assert end.divergence is not None
    assert (end.divergence.expected, end.divergence.got) == (256, 64)
    with pytest.raises(NativeError, match="no replay is active"):
        native.end_span()
    native.drop_plan(plan)
    del first, other


def test_planned_addresses_are_used_and_charged_once(native: Allocator, arena: int) -> None:
    before = native.stats()
    replayed(native, arena, (100, 128), (300, 1024), (500, -1), (100, 128))
    a, b, heap = block(100), block(300), block(500)
    base = native.arena(arena).address
    assert (a.data_ptr() - base, b.data_ptr() - base) == (128, 1024)
    assert not base <= heap.data_ptr() < base + 16 * PAGE
    assert native.owns(a.data_ptr())
    assert native.stats().charged - before.charged == 512
    assert native.stats().live - before.live == 128 + 320 + 512
    del a
    again = block(100)
    assert again.data_ptr() - base == 128
    assert native.end_replay() == (4, None)
    del again, b, heap


@pytest.mark.parametrize(
    ("asked", "reason"),
    [([100, 64], "size"), ([100, 101], "size"), ([100, 200, 8], "past end")],
)
def test_a_different_request_is_a_divergence_served_from_the_heap(
    native: Allocator, arena: int, asked: list[int], reason: str
) -> None:
    replayed(native, arena, (100, 0), (200, 128))
    base = native.arena(arena).address
    kept = [block(size) for size in [*asked, 1000]]
    end = native.end_replay()
    last = len(asked) - 1
    assert end.reached == last
    expected = 200 if last == 1 else 0
    outside = -(-asked[-1] // 64) * 64 + 1024
    assert end.divergence == Divergence(last, expected, asked[-1], reason, outside)
    assert not any(base <= x.data_ptr() < base + 16 * PAGE for x in kept[last:])
    del kept


@pytest.mark.parametrize("offset", [0, 64, 4032, 4096, 8128])
def test_a_live_block_is_never_overwritten(native: Allocator, arena: int, offset: int) -> None:
    replayed(native, arena, (4096, 4096), (4096, offset))
    kept = block(4096).fill_(7)
    intruder = block(4096).fill_(9)
    divergence = native.end_replay().divergence
    touches = abs(offset - 4096) < 4096
    assert (divergence is not None and divergence.reason == "overlap") == touches
    assert bool((kept == 7).all())
    assert bool((intruder == 9).all())
    del kept, intruder


def test_after_a_divergence_the_limit_stays_on(native: Allocator, arena: int) -> None:
    replayed(native, arena, (100, 0))
    with native.limited(native.stats().charged + 4096):
        ok = block(4096)
        with pytest.raises(torch.OutOfMemoryError):
            block(64)
    assert native.end_replay() == (0, Divergence(0, 100, 4096, "size", outside=4096))
    del ok


def test_a_replay_can_be_paused_and_two_can_be_in_flight(native: Allocator, arena: int) -> None:
    other = native.open_arena(PAGE)
    plan = native.register_plan([100, 200, 300], [0, 128, 512])
    first, second = [], []
    native.begin_replay(arena, plan)
    first.append(block(100))
    assert native.end_replay() == (1, None)
    user_code = block(12345)
    native.begin_replay(other, plan)
    second.append(block(100))
    assert native.end_replay() == (1, None)
    native.begin_replay(arena, plan, start=1)
    first += [block(200), block(300)]
    assert native.end_replay() == (3, None)
    offsets = [x.data_ptr() - native.arena(arena).address for x in first]
    assert offsets == [0, 128, 512]
    assert second[0].data_ptr() == native.arena(other).address
    first.clear()
    second.clear()
    native.drop_plan(plan)
    native.retire(other)
    del user_code


def test_other_threads_allocate_on_the_heap_during_a_replay(native: Allocator, arena: int) -> None:
    replayed(native, arena, *[(256, 256 * k) for k in range(8)] * 50)
    stop = threading.Event()
    strays: list[int] = []

    def work() -> None:
        while not stop.is_set():
            strays.append(block(256).data_ptr())

    thread = threading.Thread(target=work)
    thread.start()
    mine = [block(256).data_ptr() for _ in range(400)]
    while not strays:
        stop.wait(0.001)
    stop.set()
    thread.join()
    base = native.arena(arena).address
    assert native.end_replay() == (400, None)
    assert mine == [base + 256 * (k % 8) for k in range(400)]
    assert not any(base <= address < base + 16 * PAGE for address in strays)


def test_blocks_of_an_arena_can_be_freed_by_another_thread(native: Allocator, arena: int) -> None:
    replayed(native, arena, (256, 0), (256, 0))
    shared = [block(256)]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(shared.clear).result()
    again = block(256)
    assert native.end_replay() == (2, None)
    del again


def test_rules_are_checked(native: Allocator, arena: int) -> None:
    with pytest.raises(NativeError, match="multiple of 64"):
        native.register_plan([64], [32])
    with pytest.raises(NativeError, match="not an allocation"):
        native.register_plan([0], [0])
    with pytest.raises(NativeError, match="as many"):
        native.register_plan([64], [])
    with pytest.raises(NativeError, match="more bytes than the arena"):
        replayed(native, arena, (64, 16 * PAGE))
    with pytest.raises(NativeError, match="outside the plan"):
        replayed(native, arena, (64, 0), start=2)
    with pytest.raises(NativeError, match="no such arena"):
        native.lease(10**9)
    with pytest.raises(NativeError, match="no such plan"):
        native.drop_plan(10**9)
    with pytest.raises(NativeError, match="no replay is active"):
        native.end_replay()
    replayed(native, arena)
    with pytest.raises(NativeError, match="active already"):
        replayed(native, arena)
    with pytest.raises(NativeError, match="being replayed"):
        native.retire(arena)
    native.end_replay()
    native.begin_record()
    with pytest.raises(NativeError, match="active already"):
        native.begin_record()
    native.end_record()
    with pytest.raises(NativeError, match="no recording"):
        native.end_record()


# arenas over time


def test_an_arena_is_leased_again_only_when_nothing_in_it_lives(native: Allocator, arena: int) -> None:
    replayed(native, arena, (64, 0))
    kept = block(64)
    native.end_replay()
    assert not native.lease(arena)
    del kept
    assert native.lease(arena)
    native.idle(arena)
    with pytest.raises(NativeError, match="not leased"):
        replayed(native, arena, (64, 0))


def test_a_retired_arena_is_charged_by_page_until_its_last_block_dies(native: Allocator) -> None:
    before = native.stats().charged
    arena = native.open_arena(16 * PAGE)
    # pages 0, 2 (shared by two blocks) and 5-6
    plan = (64, 64), (64, 2 * PAGE), (64, 2 * PAGE + 512), (64 + PAGE, 5 * PAGE)
    replayed(native, arena, *plan)
    blocks = [block(size).fill_(k) for k, (size, _) in enumerate(plan)]
    native.end_replay()
    native.retire(arena)
    charges = [native.stats().charged - before]
    for k in (1, 2, 0, 3):
        assert all(bool((blocks[j] == j).all()) for j in (1, 2, 0, 3)[(1, 2, 0, 3).index(k) :])
        blocks[k] = block(0)
        charges.append(native.stats().charged - before)
    assert charges == [4 * PAGE, 4 * PAGE, 3 * PAGE, 2 * PAGE, 0]
    with pytest.raises(NativeError, match="retired"):
        native.lease(arena)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2 * PAGE), st.integers(0, PAGE)), max_size=12), st.randoms())
def test_a_retired_arena_is_charged_the_union_of_its_live_pages(
    blocks: list[tuple[int, int]], order: random.Random
) -> None:
    native = allocator()
    plan, end = [], 0
    for size, gap in blocks:
        offset = (end + gap) // 64 * 64
        plan.append((size, offset))
        end = offset + -(-size // 64) * 64 + 63
    extent = max((offset + -(-size // 64) * 64 for size, offset in plan), default=64)
    before = native.stats().charged
    arena = native.open_arena(extent)
    replayed(native, arena, *plan)
    live = {k: block(size) for k, (size, _) in enumerate(plan)}
    assert native.end_replay() == (len(plan), None)
    native.retire(arena)
    while True:
        pages = {
            page
            for k in live
            for page in range(plan[k][1] // PAGE, (plan[k][1] + -(-plan[k][0] // 64) * 64 - 1) // PAGE + 1)
        }
        assert native.stats().charged - before == sum(min(PAGE, extent - page * PAGE) for page in pages)
        if not live:
            break
        del live[order.choice(sorted(live))]


def test_an_idle_arena_gives_its_free_pages_back_under_pressure(native: Allocator, arena: int) -> None:
    base = native.stats().charged
    replayed(native, arena, (PAGE, 3 * PAGE), (8 * PAGE, 4 * PAGE))
    survivor = block(PAGE).fill_(5)
    block(8 * PAGE).fill_(1)
    native.end_replay()
    native.idle(arena)
    with native.limited(base + 4 * PAGE):
        small = block(4 * PAGE)
        assert native.arena(arena).charge == 16 * PAGE
        large = block(15 * PAGE)
        assert native.arena(arena).charge == PAGE
        assert native.stats().charged == base + 4 * PAGE
        with pytest.raises(torch.OutOfMemoryError):
            block(1)
        assert set(survivor.numpy()) == {5}
        del survivor
        assert native.arena(arena).charge == 0
        with pytest.raises(torch.OutOfMemoryError):
            native.lease(arena)
        del large
        assert native.lease(arena)
        assert native.stats().charged == base + 4 * PAGE
    del small


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40 * PAGE), st.integers(0, 40 * PAGE)), max_size=8),
    st.lists(st.tuples(st.integers(1, 60 * PAGE), st.integers(0, 11)), min_size=1, max_size=8),
)
def test_an_idle_arena_gives_back_no_more_than_is_needed(
    blocks: list[tuple[int, int]], needs: list[tuple[int, int]]
) -> None:
    native = allocator()
    plan, end = [], 0
    for size, gap in blocks:
        offset = (end + gap) // 64 * 64
        plan.append((size, offset))
        end = offset + -(-size // 64) * 64 + 63
    extent = (end + 5 * PAGE) // 64 * 64
    arena = native.open_arena(extent)
    replayed(native, arena, *plan)
    live = {k: block(size).fill_(k) for k, (size, _) in enumerate(plan)}
    native.end_replay()
    native.idle(arena)
    kept = -(-extent // PAGE)

    def charge(kept: int) -> int:
        ends = {k: plan[k][1] + -(-plan[k][0] // 64) * 64 for k in live}
        pages = {page for k in live for page in range(plan[k][1] // PAGE, -(-ends[k] // PAGE))}
        return sum(min(PAGE, extent - page * PAGE) for page in pages | set(range(kept)))

    held = []
    with native.limited(native.stats().charged):
        limit = native.stats().charged
        for size, dies in needs:
            lacks = native.stats().charged + -(-size // 64) * 64 - limit
            goal = max(charge(kept) - -(-lacks // 65536) * 65536, 0) if lacks > 0 else 2**60
            kept = next((k for k in range(kept, 0, -1) if charge(k) <= goal), 0)
            fits = charge(kept) <= native.arena(arena).charge - lacks
            try:
                held.append(block(size))
                assert fits
            except torch.OutOfMemoryError:
                assert not fits
                assert not kept
            assert native.arena(arena).charge == charge(kept)
            assert native.stats().charged <= limit
            assert all((one.numpy() == k).all() for k, one in live.items())
            live.pop(dies, None)
            assert native.arena(arena).charge == charge(kept)
        held.clear()
        live.clear()
        assert native.lease(arena)
        assert native.arena(arena).charge == extent
    native.retire(arena)


def test_a_leased_arena_keeps_its_pages_under_pressure(native: Allocator, arena: int) -> None:
    with native.limited(native.stats().charged):
        with pytest.raises(torch.OutOfMemoryError):
            block(64)
        with pytest.raises(torch.OutOfMemoryError):
            native.open_arena(64)
    assert native.arena(arena).charge == 16 * PAGE


def test_pages_given_back_really_leave_the_process(native: Allocator) -> None:
    size = 64 * 2**20
    arena = native.open_arena(size)
    replayed(native, arena, (size, 0))
    block(size).fill_(1)
    native.end_replay()
    native.idle(arena)
    with native.limited(native.stats().charged):
        before = resident()
        x = block(size - 64)
        assert before - resident() > size * 0.9
    del x
    native.retire(arena)


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE
