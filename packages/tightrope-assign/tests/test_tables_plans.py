"""Plans of tables: exhaustive search, bounds, bytes, splits, lost devices."""

import math
import time
from collections.abc import Sequence

import msgspec
import pytest
from tables_references import brute_force, curved_costs, small_tables

from benchmarks.assign.additive import additive, largest_sum, solve_additive
from tightrope.core import DeviceLink, InfeasibleError, TightropeError
from tightrope_assign.judge.tables import check_table_plan
from tightrope_assign.lookups.bench import made_up_tables
from tightrope_assign.tables import (
    CONSTANTS,
    Cluster,
    EmbeddingTable,
    PlaceDevice,
    TableSet,
    TableShard,
    plan_tables,
)  # fmt: skip
from tightrope_assign.tables.greedy import by_key
from tightrope_assign.tables.problem import TableProblem
from tightrope_assign.values.cluster import PairLink
from tightrope_shared.cp import Worker


def even(tables: TableSet, num: int, share: float = 1.3) -> Cluster:
    """Equal devices that have a share of the bytes, and room for the largest table."""
    size = [4 * table.rows * table.dim for table in tables.tables]
    room = max(round(share * sum(size) / num), max(size))
    return Cluster(tuple(PlaceDevice(f"d{at}", room) for at in range(num)))


@pytest.mark.few(60)
@pytest.mark.parametrize("seed", range(500))
def test_small_cases_meet_exhaustive_search(seed: int) -> None:
    tables, cluster = small_tables(seed, bytes=seed % 2 == 1)
    costs = curved_costs(seed) if seed % 3 else CONSTANTS
    best = brute_force(tables, cluster, costs, columns=False)
    try:
        plan = plan_tables(tables, cluster, costs, method="table", seconds=1)
    except InfeasibleError:
        assert best is None
        return
    check_table_plan(tables, cluster, costs, plan)
    assert best is None or plan.lower_bound <= best + 2
    if best is not None and all(s.start == 0 and s.stop == dim_of(tables, s) for s in plan.placed):
        assert plan.cost <= best * 1.02 + 2


def dim_of(tables: TableSet, shard: TableShard) -> int:
    return next(table.dim for table in tables.tables if table.name == shard.table)


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(100))
def test_no_split_is_below_the_bound(seed: int) -> None:
    tables, cluster = small_tables(seed, most=2)
    costs = curved_costs(seed)
    plan = plan_tables(tables, cluster, costs, seconds=1)
    best = brute_force(tables, cluster, costs, columns=True)
    assert best is not None
    assert plan.lower_bound <= best + 2
    assert plan.cost <= plan.table_wise


@pytest.mark.parametrize("seed", range(6))
def test_a_search_is_no_worse_than_its_greedy_starts(seed: int) -> None:
    tables = made_up_tables(30, seed=seed)
    cluster, costs = even(tables, 4), curved_costs(seed)
    plan = plan_tables(tables, cluster, costs, method="table", seconds=2)
    problem = TableProblem(tables, cluster, costs)
    parts = [(at, 0, table.dim) for at, table in enumerate(tables.tables)]
    for key in ("lookups", "cost", "size", "dim"):
        hosts = by_key(problem, parts, key)
        assert hosts is None or plan.cost <= problem.cost(parts, hosts)


def test_the_search_is_within_two_percent_of_the_integer_program_on_sums() -> None:
    free = msgspec.structs.replace(CONSTANTS, per_width=0.0, forward=nothing(), backward=nothing())
    with Worker() as worker:
        for seed in range(4):
            tables = made_up_tables(20, seed=seed)
            cluster = even(tables, 4)
            plan = plan_tables(tables, cluster, free, method="table", seconds=2)
            problem = TableProblem(tables, cluster, free)
            parts = [(at, 0, table.dim) for at, table in enumerate(tables.tables)]
            hosts = [
                cluster.names.index(one.device) for one in sorted(plan.placed, key=lambda s: int(s.table[1:]))
            ]
            best, _ = solve_additive(problem, parts, hosts, seconds=2, worker=worker)
            cost = additive(problem, parts)
            assert largest_sum(cost, hosts) <= 1.02 * largest_sum(cost, best)


def nothing() -> object:
    return msgspec.structs.replace(CONSTANTS.forward, latency=0.0, per_byte=0.0)


def test_an_integer_program_finds_the_best_sums() -> None:
    tables = TableSet(
        tuple(EmbeddingTable(f"t{at}", 1000, 4, rows) for at, rows in enumerate((3, 3, 2, 2, 2)))
    )
    problem = TableProblem(tables, Cluster((PlaceDevice("a"), PlaceDevice("b"))), CONSTANTS)
    parts = [(at, 0, 4) for at in range(5)]
    hosts, proved = solve_additive(problem, parts, [0] * 5, seconds=10)
    assert proved
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3] == hosts[4]


def test_a_table_larger_than_a_device_is_split_by_columns() -> None:
    tables = TableSet((EmbeddingTable("big", 1000, 64), EmbeddingTable("small", 10, 8)))
    cluster = Cluster(tuple(PlaceDevice(name, 70_000) for name in "abcd"))
    plan = plan_tables(tables, cluster, method="table")
    check_table_plan(tables, cluster, CONSTANTS, plan)
    assert [s.stop - s.start for s in plan.placed if s.table == "big"] == [16] * 4
    with pytest.raises(InfeasibleError, match=r"'big': 4 columns take 15\.62 KiB"):
        plan_tables(tables, Cluster((PlaceDevice("a", 10_000), PlaceDevice("b", 10_000))))


def test_splits_are_made_only_where_they_are_measured_to_gain() -> None:
    tables = TableSet((EmbeddingTable("hot", 1000, 64, 50.0), EmbeddingTable("cold", 1000, 8)))
    cluster = Cluster((PlaceDevice("a"), PlaceDevice("b")))
    assert plan_tables(tables, cluster, seconds=1).planner == "column-wise"
    asked = []

    def slower(devices: Sequence[Sequence[TableShard]]) -> int:
        asked.append(devices)
        return 10**6 * (1 + (sum(map(len, devices)) > len(tables.tables)))

    plan = plan_tables(tables, cluster, seconds=1, measure=slower)
    assert plan.planner == "table-wise"
    assert plan.measured == (10**6, 2 * 10**6)
    assert len(asked) == 4

    def faster(devices: Sequence[Sequence[TableShard]]) -> int:
        return 10**6 // sum(map(len, devices))  # more parts, less time

    quick = plan_tables(tables, cluster, seconds=1, measure=faster)
    assert quick.planner == "column-wise"
    assert quick.measured[1] < quick.measured[0] == 500_000


def test_a_lost_device_is_planned_around_in_two_seconds() -> None:
    tables = made_up_tables(60, seed=5)
    cluster = even(tables, 8, share=1.5)
    plan = plan_tables(tables, cluster, method="table", seconds=2)
    for lost in cluster.names[:3]:
        left = cluster.without([lost])
        begun = time.thread_time()
        again = plan_tables(tables, left, seconds=1.5, replaces=plan)
        assert time.thread_time() - begun < 2
        check_table_plan(tables, left, CONSTANTS, again, replaces=plan)
        size = {table.name: 4 * table.rows * table.dim for table in tables.tables}
        assert (
            sum(size[s.table] for s in plan.placed if s.device == lost)
            <= again.moved_bytes
            < sum(size.values()) / 2
        )


@pytest.mark.parametrize("room", [0, 12 * 2**30])
def test_the_search_of_wide_tables_ends_in_time(room: int) -> None:
    tables = TableSet(tuple(EmbeddingTable(f"t{at}", 1000, 65_536) for at in range(300)))
    cluster = Cluster(tuple(PlaceDevice(f"d{at}", room) for at in range(8)))
    begun = time.thread_time()
    plan = plan_tables(tables, cluster, seconds=1)
    assert time.thread_time() - begun < 2
    check_table_plan(tables, cluster, CONSTANTS, plan)
    assert time.thread_time() - begun < 3


def test_a_plan_that_still_holds_moves_nothing() -> None:
    tables = made_up_tables(20, seed=6)
    cluster = even(tables, 4)
    plan = plan_tables(tables, cluster, method="table", seconds=2)
    again = plan_tables(tables, cluster, seconds=1, replaces=plan)
    assert again.cost <= plan.cost
    assert again.moved_bytes <= sum(4 * one.rows * one.dim for one in tables.tables) / 4


def test_links_of_a_cluster_price_the_exchange() -> None:
    tables = TableSet((EmbeddingTable("one", 100, 8), EmbeddingTable("two", 100, 8)), batch=256)
    devices = (PlaceDevice("a", 4000), PlaceDevice("b", 4000))
    fast = Cluster(devices, (DeviceLink("bus", 0.0, 1e12),))
    slow = Cluster(devices, (), (PairLink("a", "b", 1e-3, 1e6),))
    plans = [plan_tables(tables, cluster) for cluster in (fast, slow)]
    sent = 4 * 256 / 2 * 16
    assert plans[1].cost - plans[0].cost == pytest.approx(2 * (1e6 + sent * 1e3) - 2 * sent * 1e-3, abs=9)
    for cluster, plan in zip((fast, slow), plans, strict=True):
        check_table_plan(tables, cluster, CONSTANTS, plan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": -1}, "'a': rows=-1"),
        ({"dim": 0}, "'a': dim=0"),
        ({"pooling": math.nan}, "'a': pooling=nan"),
        ({"skew": -0.5}, "'a': skew=-0.5"),
        ({"name": "b"}, "table 'b' is there twice"),
    ],
)
def test_tables_that_cannot_be_are_refused(change: dict[str, object], said: str) -> None:
    tables = (msgspec.structs.replace(EmbeddingTable("a", 10, 8), **change), EmbeddingTable("b", 10, 8))
    with pytest.raises(TightropeError, match=said):
        plan_tables(TableSet(tables), Cluster((PlaceDevice("one"),)))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("base", (math.nan, 0.0, 0.0, 0.0), "base holds nan"),
        ("slope", (-1.0,), "slope holds -1.0"),
        ("level", math.inf, "level holds inf"),
        ("second", ((1.0, 2.0),), "second is not 1 x 1"),
        ("first_bias", (), "first is not 0 x 8"),
    ],
)
def test_prices_that_cannot_be_are_refused(field: str, value: object, said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        plan_tables(
            TableSet((EmbeddingTable("a", 10, 8),)),
            Cluster((PlaceDevice("one"),)),
            msgspec.structs.replace(CONSTANTS, **{field: value}),
        )
