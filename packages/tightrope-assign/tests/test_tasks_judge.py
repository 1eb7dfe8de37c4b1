"""The judge refuses what is wrong, and the files refuse what cannot be read."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tightrope.core import JudgeError, PlanFileError, TightropeError
from tightrope_assign.judge.tasks import check_task_plan
from tightrope_assign.tasks import PlacedTask, TaskGraph, TaskOptions, TaskPlan, place_tasks, read_cluster
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph
from tightrope_assign.values.files import read_value, write_value

GRAPH = made_up_graph(20, seed=2, bytes=1000)
CLUSTER = made_up_cluster(8, seed=2, bytes=9000, support=0.4)
PLAN = place_tasks(GRAPH, CLUSTER, options=TaskOptions(method="search", moves=200))
Damage = Callable[[list[PlacedTask], random.Random], dict[str, object] | None]
replace = msgspec.structs.replace


def twice(placed: list[PlacedTask], chance: random.Random) -> None:
    one = chance.choice(placed)
    at = max(other.end for other in placed)
    placed.append(replace(one, start=at, end=at + one.end - one.start))


def none(placed: list[PlacedTask], chance: random.Random) -> None:
    placed.pop(chance.randrange(len(placed)))


def stranger(placed: list[PlacedTask], chance: random.Random) -> None:
    at = chance.randrange(len(placed))
    placed[at] = replace(placed[at], device="nowhere")


def earlier(placed: list[PlacedTask], chance: random.Random) -> None:
    """A task that something decides when to start comes a nanosecond too early."""
    late = [at for at, one in enumerate(placed) if one.start > 0 and _decided(one)]
    at = chance.choice(late)
    placed[at] = replace(placed[at], start=placed[at].start - 1, end=placed[at].end - 1)


def _decided(one: PlacedTask) -> bool:
    table = {other.task: other for other in PLAN.placed}
    sent = [table[edge.source].end for edge in GRAPH.edges if edge.target == one.task]
    return one.start in [other.end for other in PLAN.placed if other.device == one.device] or any(
        end == one.start for end in sent
    )


def shorter(placed: list[PlacedTask], chance: random.Random) -> None:
    at = chance.randrange(len(placed))
    placed[at] = replace(placed[at], end=placed[at].end - chance.randint(1, 1000))


def crowded(placed: list[PlacedTask], chance: random.Random) -> None:
    """Two tasks of a device run at once."""
    device = chance.choice([one.device for one in placed if sum(o.device == one.device for o in placed) > 1])
    first, second = chance.sample([at for at, one in enumerate(placed) if one.device == device], 2)
    long = placed[second].end - placed[second].start
    placed[second] = replace(placed[second], start=placed[first].start, end=placed[first].start + long)


def too_early_end(placed: list[PlacedTask], chance: random.Random) -> dict[str, object]:
    return {"makespan": PLAN.makespan - chance.randint(1, 10**5)}


def better_bound(placed: list[PlacedTask], chance: random.Random) -> dict[str, object]:
    return {"lower_bound": PLAN.lower_bound + chance.randint(1, 10**5)}


def other_prices(placed: list[PlacedTask], chance: random.Random) -> dict[str, object]:
    return {"prices": (-1,) * chance.randint(1, 8)}


DAMAGES: tuple[Damage, ...] = (
    twice, none, stranger, earlier, shorter, crowded, too_early_end, better_bound, other_prices,
)  # fmt: skip


def damaged(seed: int) -> TaskPlan:
    chance = random.Random(seed)
    placed = list(PLAN.placed)
    chance.shuffle(placed)
    fields = DAMAGES[seed % len(DAMAGES)](placed, chance) or {}
    return replace(PLAN, placed=tuple(placed), **fields)


def test_a_good_plan_passes_in_any_order_of_its_tasks() -> None:
    check_task_plan(GRAPH, CLUSTER, PLAN)
    check_task_plan(GRAPH, CLUSTER, replace(PLAN, placed=PLAN.placed[::-1]))


def test_two_thousand_damaged_plans_are_refused() -> None:
    for seed in range(2000):
        plan = damaged(seed)
        assert plan != PLAN
        with pytest.raises(JudgeError):
            check_task_plan(GRAPH, CLUSTER, plan)


def test_bytes_above_a_limit_are_refused() -> None:
    small = replace(CLUSTER, devices=tuple(replace(one, bytes=1) for one in CLUSTER.devices))
    with pytest.raises(JudgeError, match="its limit is 1"):
        check_task_plan(GRAPH, small, PLAN)


def test_bytes_that_move_are_counted_anew() -> None:
    with pytest.raises(JudgeError, match="moved_bytes 7"):
        check_task_plan(GRAPH, CLUSTER, replace(PLAN, moved_bytes=7), replaces=PLAN)


def test_a_graph_with_a_cycle_has_no_plan() -> None:
    edges = (
        *GRAPH.edges,
        replace(GRAPH.edges[0], source=GRAPH.edges[0].target, target=GRAPH.edges[0].source),
    )
    with pytest.raises(JudgeError):
        check_task_plan(replace(GRAPH, edges=edges), CLUSTER, PLAN)


def test_plans_and_graphs_come_back_from_their_files(tmp_path: Path) -> None:
    for value, kind in ((PLAN, TaskPlan), (GRAPH, TaskGraph)):
        (tmp_path / "file.json").write_bytes(write_value(value))
        assert read_value(tmp_path / "file.json", kind, "file") == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "one JSON object"),
        ("{}", '"schema" is missing'),
        ('{"schema": 9, "tasks": []}', "schema 9; this version reads 1"),
        ('{"schema": 1, "tasks": [{"name": "a"}]}', "has no work"),
        ('{"schema": 1, "tasks": [{"name": "a", "work": NaN}]}', "NaN"),
        ('{"schema": 1, "tasks": [{"name": "a", "work": "many"}]}', "give a number"),
        ('{"schema": 1, "tasks": [], "colour": 1}', "'colour', which is not known"),
    ],
)
def test_files_that_are_no_graphs_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(PlanFileError, match=said):
        read_value(tmp_path / "graph.json", TaskGraph, "task graph")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('devices = [{ name = "a" }, { name = "b" }]', "no link between 'a' and 'b'"),
        ('devices = [{ name = "a" }, { name = "a" }]', "'a' is there twice"),
        ('devices = [{ name = "a", rate = nan }]', "rate 'rate' is nan"),
        ('devices = [{ name = "a", bytes = -1 }]', "bytes=-1"),
        ('devices = [{ name = "a" }]\npairs = [{ one = "a", other = "b" }]', "no device is called 'b'"),
        ("devices = []", "0 devices"),
        ('devices = [{ name = "a", colour = 1 }]', "'colour', which is not known"),
        ("devices = [", "is not TOML"),
    ],
)
def test_clusters_that_cannot_be_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(TightropeError, match=said):
        read_cluster(tmp_path / "cluster.toml")


def test_a_machine_profile_is_a_cluster_of_equal_devices(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text(
        'name = "two"\ndevices = 2\nflops = { matmul = 1e12 }\ntiers = [{ name = "hbm", bytes = 1000 }]\n'
        'links = [{ name = "wire", latency = 1e-5, bandwidth = 1e9 }]\n'
    )
    cluster = read_cluster(tmp_path / "machine.toml")
    assert [(one.name, one.bytes, one.rates) for one in cluster.devices] == [
        (name, 1000, {"matmul": 1e12}) for name in ("0", "1")
    ]
