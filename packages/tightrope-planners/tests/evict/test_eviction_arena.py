"""The native eviction arena against a slow reference, brute force over windows, and its own invariants."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from eviction_reference import SlowArena, Stored

from tightrope.core import TightropeError
from tightrope.native.build import compiler
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR, LRU, SIZE, Policy, policy
from tightrope_planners.evict.arena import OwnArena

pytestmark = pytest.mark.skipif(compiler() is None, reason="the arena is native")

ONE_END = Policy("coop_one_end", two_ends=False)


class Pair:
    """The native arena and the slow one, told the same."""

    def __init__(self, size: int, chosen: Policy) -> None:
        score = {"dte": "dte", "lru": "lru", "size": "size"}.get(chosen.name, "dtr")
        self.native = OwnArena(size, chosen, log=True)
        self.slow = SlowArena(size, window=chosen.window, score=score)
        self.ids: dict[int, Stored] = {}

    def place(self, size: int) -> int:
        self.native.clear_decisions()
        before = {one.number: one.at for one in self.slow.resident()}
        windows = self.slow.windows(size) if self.slow.window else []
        at, victims, cost = self.slow.place(size)
        one = self.native.place(size)
        found = self.native.take_victims()
        if self.slow.window and at is None and cost >= 0:
            (decision,) = self.native.decisions()
            assert decision.cost == cost == min(windows)[0]
            assert sorted(before[number] for number in found) == [
                before[one.number]
                for one in self.slow.resident()
                if decision.start <= (one.at or 0) < decision.end
            ]
            for number in found:
                self.slow.evict(self.ids[number])
            at = self.native.offset(one)
            assert decision.start - size < at < decision.end
        else:
            assert list(found) == victims
        assert (one < 0) == (at is None)
        if at is not None:
            assert self.native.offset(one) == at
            self.ids[one] = self.slow.add(one, size, at)
        return one

    def produce(self, one: int, cost: int, parents: list[int]) -> None:
        self.native.produced(one, cost, parents)
        stored = self.ids[one]
        stored.cost, stored.made, stored.touched = cost, True, self.slow.now
        for parent in parents:
            stored.parents.append(self.ids[parent])
            self.ids[parent].children.append(stored)

    def pin(self, one: int, by: int) -> None:
        (self.native.pin if by > 0 else self.native.unpin)(one)
        self.ids[one].pins += by

    def advance(self, ns: int) -> None:
        self.native.advance(ns)
        self.slow.now += ns

    def restore(self, one: int) -> None:
        """Move fresh bytes into an evicted storage."""
        fresh = self.place(self.ids[one].size)
        if fresh < 0:
            return
        made = self.ids.pop(fresh)
        self.slow.all.remove(made)
        self.native.restored(one, fresh)
        self.slow.leave(self.ids[one])
        self.ids[one].at, self.ids[one].touched = made.at, self.slow.now

    def check(self) -> None:
        pieces = self.native.pieces()
        assert [(p.offset, p.bytes, p.owner) for p in pieces] == [
            (at, size, -1 if one is None else one.number) for at, size, one in self.slow.tiles()
        ]
        assert not any(a.owner == b.owner == -1 for a, b in pairwise(pieces))
        for number, stored in self.ids.items():
            assert self.native.resident(number) == (stored.at is not None)
            assert self.native.cost_around(number) == self.slow.cost_around(stored)


@pytest.mark.few(20)
@pytest.mark.parametrize("chosen", [ONE_END, DTR, DTE, LRU, SIZE], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("seed", range(12))
def test_the_native_arena_decides_as_the_slow_one(chosen: Policy, seed: int) -> None:
    draw = random.Random(seed)
    pair = Pair(64 * draw.randint(8, 30), chosen)
    for _ in range(120):
        pair.advance(draw.randint(1, 50))
        known = list(pair.ids)
        resident = [one for one in known if pair.ids[one].at is not None]
        what = draw.random()
        if what < 0.6 or not known:
            parents = draw.sample(resident, min(len(resident), draw.randint(0, 3)))
            for parent in parents:
                pair.pin(parent, 1)
            one = pair.place(64 * draw.randint(1, 6))
            if one >= 0 and draw.random() < 0.9:
                pair.produce(one, draw.randint(0, 1000), parents)
            for parent in parents:
                pair.pin(parent, -1)
        elif what < 0.9:
            evicted = [one for one in known if pair.ids[one].at is None]
            if evicted:
                pair.restore(draw.choice(evicted))
        elif resident:
            one = draw.choice(resident)
            pair.native.touch(one)
            pair.ids[one].touched = pair.slow.now
        pair.check()


def test_the_runner_up_is_the_second_cheapest_window_that_no_smaller_one_beats() -> None:
    arena = OwnArena(192, ONE_END, log=True)
    for cost in (30, 10, 20):
        arena.produced(arena.place(64), cost, [])
    arena.advance(1)
    assert arena.place(64) >= 0
    (decision,) = arena.decisions()
    assert (decision.start, decision.end) == (64, 128)
    assert decision.runner_up == 20 * 2**40
    assert [victim.cost for victim in decision.victims] == [10]


@pytest.mark.parametrize("seed", range(10))
def test_by_bytes_no_window_has_less_weight_per_byte_that_it_frees(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [64 * draw.randint(1, 8) for _ in range(12)]
    arena = OwnArena(sum(sizes), Policy("coop_per_byte", two_ends=False, per_byte=True), log=True)
    costs = [draw.randint(1, 1000) for _ in sizes]
    for size, cost in zip(sizes, costs, strict=True):
        arena.produced(arena.place(size), cost, [])
    arena.advance(1)
    need = 64 * draw.randint(1, 20)
    assert arena.place(need) >= 0
    (decision,) = arena.decisions()
    minimal = []  # windows that are large enough, and not without their first or last storage
    for first in range(12):
        for end in range(first + 1, 13):
            freed = sum(sizes[first:end])
            if freed >= need and max(freed - sizes[first], freed - sizes[end - 1]) < need:
                minimal.append(sum(costs[first:end]) / freed)
    assert decision.cost / 2**40 / (decision.end - decision.start) == pytest.approx(min(minimal))


@pytest.mark.parametrize("neighbours", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_with_pairs_no_window_weighs_less_with_what_depends_on_each_other_in_it(
    seed: int, neighbours: int
) -> None:
    draw = random.Random(seed)
    sizes = [64 * draw.randint(1, 4) for _ in range(12)]
    chosen = Policy("coop_pairs", two_ends=False, per_byte=True, pairs=True, neighbours=neighbours)
    arena = OwnArena(sum(sizes), chosen, log=True)
    costs = [2 * draw.randint(1, 75) for _ in sizes]
    parents = [draw.sample(range(at), min(at, draw.randint(0, 2))) for at in range(12)]
    ids = [arena.place(size) for size in sizes]
    for one, cost, row in zip(ids, costs, parents, strict=True):
        arena.produced(one, cost, [ids[parent] for parent in row])
    arena.advance(1)
    need = 64 * draw.randint(8, 20)
    assert arena.place(need) >= 0
    (decision,) = arena.decisions()
    minimal = []
    for first in range(12):
        for end in range(first + 1, 13):
            freed, weight = sum(sizes[first:end]), sum(costs[first:end])
            if freed < need or max(freed - sizes[first], freed - sizes[end - 1]) >= need:
                continue
            for child in range(first, end):
                for parent in set(parents[child]) & set(range(first, end)):
                    before = 1 + 4 * sizes[parent] / sum(sizes) if neighbours == 2 else 1
                    weight += int(costs[parent] * before) + costs[child] // neighbours
            minimal.append(weight / freed)
    assert decision.cost / 2**40 / (decision.end - decision.start) == pytest.approx(min(minimal))


@pytest.mark.parametrize(("pairs", "gone"), [(False, {0, 1}), (True, {0, 3})])
def test_with_pairs_what_depends_on_one_that_goes_stays_where_another_costs_less(
    pairs: bool, gone: set[int]
) -> None:
    chosen = Policy("coop_moves", two_ends=False, relocate=True, per_byte=True, pairs=pairs)
    arena = OwnArena(5 * 64, chosen, simulated=True)
    ids = [arena.place(64) for _ in range(5)]
    made: list[tuple[int, list[int]]] = [(100, []), (110, [0]), (900, []), (150, []), (900, [])]
    for one, (cost, parents) in zip(ids, made, strict=True):
        arena.produced(one, cost, [ids[parent] for parent in parents])
    arena.advance(1)
    assert arena.place(128) >= 0
    assert {at for at, one in enumerate(ids) if not arena.resident(one)} == gone


def test_flat_staleness_lets_an_old_expensive_storage_stay_and_a_cheap_one_go() -> None:
    for flat, gone in ((False, 0), (True, 64)):
        arena = OwnArena(128, Policy("coop_flat", two_ends=False, flat=flat), log=True)
        arena.produced(arena.place(64), 3000, [])
        arena.advance(750)
        arena.produced(arena.place(64), 1000, [])
        arena.advance(250)
        assert arena.place(64) >= 0
        (decision,) = arena.decisions()
        assert decision.start == gone


def test_cheap_storages_go_to_the_right_end_and_expensive_ones_to_the_left() -> None:
    arena = OwnArena(1024, COOP_AS_PUBLISHED)
    arena.begin_op(1000, 64)
    first = arena.place(64)
    arena.begin_op(1, 64)
    cheap = arena.place(64)
    arena.begin_op(5000, 64)
    expensive = arena.place(64)
    assert [arena.offset(one) for one in (first, cheap, expensive)] == [0, 960, 64]


def test_what_is_pinned_or_was_never_produced_stays() -> None:
    for chosen in (COOP_AS_PUBLISHED, DTR, LRU):
        arena = OwnArena(192, chosen)
        pinned, opaque, free = (arena.place(64) for _ in range(3))
        arena.produced(pinned, 5, [])
        arena.produced(free, 10**6, [])
        arena.pin(pinned)
        assert arena.place(64) >= 0
        assert arena.take_victims() == (free,)
        assert arena.place(64) == -1
        assert arena.resident(pinned)
        assert arena.resident(opaque)


def test_a_released_storage_keeps_its_record_while_something_needs_it() -> None:
    arena = OwnArena(1024, COOP_AS_PUBLISHED)
    a, b = arena.place(64), arena.place(64)
    arena.produced(a, 1, [])
    arena.produced(b, 1, [a])
    assert arena.release(a)
    assert arena.valid(a)
    assert not arena.resident(a)
    assert arena.release(b)
    assert sorted(arena.take_forgotten()) == [a, b]
    assert arena.statistics().records == 0
    assert arena.statistics().used_bytes == 0


def test_an_op_in_place_leaves_a_record_of_the_old_version() -> None:
    arena = OwnArena(1024, COOP_AS_PUBLISHED)
    x, reader = arena.place(64), arena.place(64)
    arena.produced(x, 7, [])
    arena.produced(reader, 3, [x])
    old = arena.mutated(x, 5, [])
    assert old >= 0
    assert not arena.resident(old)
    assert arena.resident(x)
    assert arena.cost_around(reader) == 3 + 7
    assert arena.cost_around(x) == 5 + 7
    arena.evict(x)
    fresh = arena.place(64)
    arena.restored(old, fresh)  # its producer ran again
    arena.restored(x, old)  # and so did the op in place, on those bytes
    assert arena.resident(x)
    assert not arena.resident(old)


def test_a_change_of_what_cannot_be_made_again_settles_what_was_made_from_it() -> None:
    arena = OwnArena(256, COOP_AS_PUBLISHED)
    weight = arena.outside(64)
    hidden, kept, other = (arena.place(64) for _ in range(3))
    arena.produced(hidden, 1, [weight])
    arena.produced(kept, 1, [hidden])
    arena.produced(other, 1, [])
    arena.release(hidden)
    arena.evict(kept)
    assert arena.at_risk(weight) == (kept,)
    fresh = arena.place(64)
    arena.restored(kept, fresh)
    assert arena.at_risk(weight) == ()
    assert arena.mutated(weight, 1, [kept]) == -1
    assert not arena.recomputable(kept)
    assert arena.recomputable(other)
    assert hidden in arena.take_forgotten()


def test_what_something_held_needs_outlives_its_last_reference_unless_keeping_it_costs_more() -> None:
    arena = OwnArena(4096, COOP_AS_PUBLISHED)
    small, large = arena.outside(64), arena.outside(2048)
    x, y = arena.place(128), arena.place(128)
    arena.produced(x, 1, [small])
    arena.produced(y, 1, [large])
    assert not arena.release(small)  # 64 bytes that stay make 128 evictable
    assert arena.release(large)
    assert arena.recomputable(x)
    assert not arena.recomputable(y)
    arena.release(x)
    assert small in arena.take_forgotten()


def test_what_is_kept_for_others_goes_where_nothing_else_fits() -> None:
    arena = OwnArena(192, COOP, simulated=True)
    kept, made = arena.place(64), arena.place(128)
    arena.settle(kept)
    arena.produced(made, 1, [kept])
    assert not arena.release(kept)
    arena.pin(made)
    assert arena.place(64) >= 0
    assert kept in arena.take_forgotten()
    assert not arena.recomputable(made)
    assert arena.resident(made)


def test_what_something_evicted_needs_stays_even_where_nothing_else_fits() -> None:
    arena = OwnArena(256, COOP, simulated=True)
    kept, made = arena.place(64), arena.place(128)
    arena.settle(kept)
    arena.produced(made, 1, [kept])
    assert not arena.release(kept)
    arena.evict(made)
    assert arena.place(256) == -1
    assert arena.valid(kept)
    assert arena.recomputable(made)


def test_storages_slide_together_when_the_holes_suffice() -> None:
    arena = OwnArena(320, Policy("moving", two_ends=False, relocate=True), simulated=True)
    ids = [arena.place(64) for _ in range(5)]
    for one in ids:
        arena.produced(one, 10**9, [])
    arena.root(ids[0])
    arena.release(ids[1])
    arena.release(ids[3])
    made = arena.place(128)
    assert made >= 0
    assert arena.take_victims() == ()
    assert [arena.offset(ids[i]) for i in (0, 2, 4)] == [0, 64, 256]
    assert arena.offset(made) == 128
    assert arena.statistics().moved_bytes == 64


@pytest.mark.parametrize(("largest", "gone"), [(0, 2), (64, 1), (128, 2)])
def test_results_of_an_op_need_not_lie_side_by_side(largest: int, gone: int) -> None:
    arena = OwnArena(384, replace(policy("coop"), two_ends=False), simulated=True)
    ids = [arena.place(64) for _ in range(6)]
    for one in ids:
        arena.produced(one, 10, [])
    for one in ids[1:3]:
        arena.root(one)
    arena.release(ids[0])
    arena.advance(100)
    arena.begin_op(5, 128, largest=largest)
    assert len(arena.take_victims()) == gone
    assert arena.place(64) >= 0
    assert arena.place(64) >= 0
    assert arena.take_victims() == ()


@pytest.mark.parametrize("seed", range(20))
def test_what_was_announced_is_placed_without_more_evictions(seed: int) -> None:
    draw = random.Random(seed)
    arena = OwnArena(64 * 40, policy("coop"), simulated=True)
    alive: list[int] = []
    for _ in range(300):
        arena.advance(draw.randint(1, 99))
        while len(alive) > 20 or (alive and draw.random() < 0.3):
            arena.release(alive.pop(draw.randrange(len(alive))))
        sizes = [64 * draw.randint(1, 6), 64]
        draw.shuffle(sizes)
        arena.begin_op(draw.randint(1, 99), sum(sizes), largest=max(sizes))
        arena.take_victims()
        made = [arena.place(size) for size in sizes]
        assert min(made) >= 0
        assert arena.take_victims() == ()
        for one in made:
            arena.produced(one, draw.randint(1, 999), [])
        alive += made
        arena.take_forgotten()


def test_nothing_moves_before_somebody_can_copy() -> None:
    arena = OwnArena(192, Policy("moving", two_ends=False, relocate=True))
    ids = [arena.place(64) for _ in range(3)]
    for one in ids:
        arena.produced(one, 1, [])
    arena.settle(ids[1])
    arena.release(ids[0])
    arena.release(ids[2])
    assert arena.place(128) == -1
    assert arena.statistics().moves == 0


@pytest.mark.parametrize("seed", range(20))
def test_moves_keep_pieces_apart_and_rooted_ones_in_place(seed: int) -> None:
    draw = random.Random(seed)
    arena = OwnArena(64 * 40, Policy("moving", relocate=True, patience=100), simulated=True)
    sizes: dict[int, int] = {}
    rooted: dict[int, int] = {}
    for _ in range(300):
        arena.advance(draw.randint(1, 9))
        if draw.random() < 0.3 and sizes:
            one = draw.choice(list(sizes))
            del sizes[one]
            rooted.pop(one, None)
            arena.release(one)
        size = 64 * draw.randint(1, 8)
        arena.begin_op(draw.randint(1, 99), size)
        one = arena.place(size)
        if one >= 0:
            arena.produced(one, draw.randint(1, 999), [])
            sizes[one] = size
            if draw.random() < 0.05 and sum(sizes[one] for one in rooted) < 64 * 10:
                arena.root(one)
                rooted[one] = arena.offset(one)
        arena.take_forgotten()
        pieces = arena.pieces()
        assert [piece.offset for piece in pieces] == [
            sum(before.bytes for before in pieces[:at]) for at in range(len(pieces))
        ]
        assert sum(piece.bytes for piece in pieces) == arena.size
        assert all(piece.bytes == sizes[piece.owner] for piece in pieces if piece.owner >= 0)
        assert all(arena.offset(one) == at for one, at in rooted.items())


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(TightropeError, match=r"no policy is called 'belady'; there are: coop, dtr"):
        policy("belady")


def _evicted_behind(start: int, beside: dict[int, set[int]], evicted: set[int]) -> set[int]:
    found: set[int] = set()
    open_ = [start]
    while open_:
        new = (beside[open_.pop()] & evicted) - found
        found |= new
        open_ += new
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_cost_counts_only_what_depends_on_each_other(seed: int) -> None:
    draw, count = random.Random(seed), 24
    size = 64 * 2 * count
    arena = OwnArena(size, policy("coop"), simulated=True)
    costs = [draw.randrange(1, 1000) for _ in range(count)]
    parents = {one: set(draw.sample(range(one), min(one, draw.randrange(4)))) for one in range(count)}
    children = {one: {other for other in parents if one in parents[other]} for one in parents}
    ids = []
    for one in range(count):
        arena.begin_op(costs[one], 64)
        ids.append(arena.place(64))
        arena.produced(ids[one], costs[one], [ids[other] for other in sorted(parents[one])])
        arena.advance(costs[one])
    evicted = set(draw.sample(range(count), count // 2))
    for one in sorted(evicted):
        arena.evict(ids[one])
    for one in set(range(count)) - evicted:
        before = _evicted_behind(one, parents, evicted)
        after = _evicted_behind(one, children, evicted)
        again = int(sum(costs[other] for other in before) * (1 + 4 * (64 * len(before)) / size))
        assert arena.cost_around(ids[one]) == costs[one] + again + sum(costs[other] for other in after) // 2
