"""The judge of tables refuses what is wrong, and agrees with prices in plain Python."""

import random
from collections.abc import Callable

import msgspec
import pytest
from tables_references import curved_costs, price, small_tables

from tightrope.core import JudgeError
from tightrope_assign.judge.tables import check_table_plan
from tightrope_assign.lookups.bench import made_up_tables
from tightrope_assign.tables import Cluster, PlaceDevice, TablePlan, TableShard, plan_tables

TABLES = made_up_tables(12, seed=3, most_rows=20_000)
DEVICES = Cluster(tuple(PlaceDevice(f"d{at}", 7_000_000) for at in range(3)))
COSTS = curved_costs()
PLAN = plan_tables(TABLES, DEVICES, COSTS, seconds=2)
replace = msgspec.structs.replace
Damage = Callable[[list[TableShard], random.Random], dict[str, object] | None]


def twice(placed: list[TableShard], chance: random.Random) -> None:
    placed.append(chance.choice(placed))


def elsewhere_too(placed: list[TableShard], chance: random.Random) -> None:
    one = chance.choice(placed)
    placed.append(replace(one, device=next(name for name in DEVICES.names if name != one.device)))


def none(placed: list[TableShard], chance: random.Random) -> None:
    placed.pop(chance.randrange(len(placed)))


def stranger(placed: list[TableShard], chance: random.Random) -> None:
    at = chance.randrange(len(placed))
    placed[at] = replace(placed[at], **chance.choice(({"device": "nowhere"}, {"table": "unknown"})))


def fewer_columns(placed: list[TableShard], chance: random.Random) -> None:
    at = chance.randrange(len(placed))
    placed[at] = replace(
        placed[at], stop=placed[at].stop - chance.randint(1, placed[at].stop - placed[at].start)
    )


def more_columns(placed: list[TableShard], chance: random.Random) -> None:
    at = chance.randrange(len(placed))
    placed[at] = replace(placed[at], start=placed[at].start - chance.randint(1, 8))


def uneven(placed: list[TableShard], chance: random.Random) -> None:
    """Columns are all there, in parts that halving does not give."""
    at = chance.choice([at for at, one in enumerate(placed) if one.stop - one.start > 1])
    one = placed.pop(at)
    middle = chance.choice(
        [x for x in range(one.start + 1, one.stop) if 2 * x != one.start + one.stop or x % 4]
    )
    placed += [replace(one, stop=middle), replace(one, start=middle)]


def crowded(placed: list[TableShard], chance: random.Random) -> None:
    placed[:] = [replace(one, device=chance.choice(DEVICES.names)) for one in placed[:1]] + [
        replace(one, device=placed[0].device) for one in placed[1:]
    ]


def moved(placed: list[TableShard], chance: random.Random) -> None:
    """A part goes to another device, and the price stays."""
    at = chance.randrange(len(placed))
    device = chance.choice([name for name in DEVICES.names if name != placed[at].device])
    placed[at] = replace(placed[at], device=device)


def figure(name: str, change: int) -> Damage:
    def damage(placed: list[TableShard], chance: random.Random) -> dict[str, object]:
        return {name: getattr(PLAN, name) + change * chance.randint(10, 10**6)}

    return damage


def other_prices(placed: list[TableShard], chance: random.Random) -> dict[str, object]:
    return {"costs": f"machine {chance.random()}"}


DAMAGES: tuple[Damage, ...] = (
    twice, elsewhere_too, none, stranger, fewer_columns, more_columns, uneven, crowded, moved,
    figure("cost", -1), figure("cost", 1), figure("lower_bound", 1), figure("lower_bound", -1), other_prices,
)  # fmt: skip


def damaged(seed: int) -> TablePlan:
    chance = random.Random(seed)
    placed = list(PLAN.placed)
    chance.shuffle(placed)
    fields = DAMAGES[seed % len(DAMAGES)](placed, chance) or {}
    return replace(PLAN, placed=tuple(placed), **fields)


@pytest.mark.smoke
def test_a_good_plan_passes_in_any_order_of_its_parts() -> None:
    check_table_plan(TABLES, DEVICES, COSTS, PLAN)
    check_table_plan(TABLES, DEVICES, COSTS, replace(PLAN, placed=PLAN.placed[::-1]))


def test_two_thousand_damaged_plans_are_refused() -> None:
    for seed in range(2000):
        plan = damaged(seed)
        assert plan != PLAN
        with pytest.raises(JudgeError):
            check_table_plan(TABLES, DEVICES, COSTS, plan)


def test_bytes_above_a_limit_are_refused() -> None:
    small = Cluster(tuple(replace(one, bytes=1_000_000) for one in DEVICES.devices))
    with pytest.raises(JudgeError, match="its limit is 1000000"):
        check_table_plan(TABLES, small, COSTS, PLAN)


def test_bytes_that_move_are_counted_anew() -> None:
    check_table_plan(TABLES, DEVICES, COSTS, PLAN, replaces=PLAN)
    with pytest.raises(JudgeError, match="moved_bytes 7"):
        check_table_plan(TABLES, DEVICES, COSTS, replace(PLAN, moved_bytes=7), replaces=PLAN)


@pytest.mark.parametrize("seed", range(20))
def test_prices_are_those_of_the_formula(seed: int) -> None:
    tables, cluster = small_tables(seed)
    costs = curved_costs(seed)
    plan = plan_tables(tables, cluster, costs, seconds=1)
    number = {table.name: at for at, table in enumerate(tables.tables)}
    pieces = [(number[s.table], s.start, s.stop) for s in plan.placed]
    hosts = [cluster.names.index(s.device) for s in plan.placed]
    assert abs(price(tables, cluster, costs, pieces, hosts) - plan.cost) <= 2
    check_table_plan(tables, cluster, costs, plan)
