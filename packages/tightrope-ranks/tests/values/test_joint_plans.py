"""Joint plans as values, clusters as machines."""

import msgspec
import pytest

from tightrope.core import Alloc, Executable, Machine, PlanFileError, Recv, Space, Tier, TightropeError
from tightrope_ranks.values.ranks import (
    JointPlan,
    RankPlan,
    StageCost,
    StageWork,
    check_joint,
    dump_joint,
    load_joint,
)

SPACES = tuple(Space(name, 2**40) for name in ("caller", "arena", "heap"))
CLUSTER = """
name = "two nodes"
devices = 8
[[tiers]]
name = "hbm"
bytes = 1024
[[links]]
name = "inside"
bandwidth = 1e11
span = 4
[[links]]
name = "between"
latency = 1e-5
bandwidth = 1e9
level = 1
[[groups]]
name = "first node"
ranks = [0, 1, 2, 3]
"""


def joint(**changes: object) -> JointPlan:
    work = StageWork((StageCost(1, 2, output=8), StageCost(1, 2, input=8)), (0, 1), 1)
    executables = (
        Executable(work.fingerprint, SPACES, (), placed=False),
        Executable(work.fingerprint, SPACES, (Alloc(0, 1, 8), Recv(0, 0, "0F0")), placed=False),
    )
    ranks = tuple(RankPlan(number, 100, 10, one) for number, one in enumerate(executables))
    plan = JointPlan(work, Machine("m", (Tier("ram", 100),)), ranks, 6)
    return msgspec.structs.replace(plan, **changes)


def test_a_joint_plan_comes_back_from_its_file() -> None:
    assert load_joint(dump_joint(joint())) == joint()


def test_a_cluster_has_links_by_level() -> None:
    machine = Machine.parse(CLUSTER)
    assert [machine.link(0, 3), machine.link(3, 4), machine.link(5, 6)] == [0, 1, 0]
    assert machine.links[1].message_ns(1000) == 11_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bandwidth = 1e9", "bandwidth = 0.0"),
        ("level = 1", "level = -1"),
        ("[0, 1, 2, 3]", "[0, 0]"),
        ("[0, 1, 2, 3]", "[8]"),
        ("devices = 8", "devices = 0"),
        ("latency = 1e-5", "latency = nan"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(old: str, new: str) -> None:
    assert old in CLUSTER
    with pytest.raises(TightropeError):
        Machine.parse(CLUSTER.replace(old, new))


def test_devices_without_a_link_are_refused() -> None:
    with pytest.raises(TightropeError, match="no link between devices 0 and 1"):
        Machine("apart", (Tier("ram", 1),), devices=2).link(0, 1)


@pytest.mark.parametrize(
    "work",
    [
        StageWork((), (), 1),
        StageWork((StageCost(1, 1),), (1,), 1),
        StageWork((StageCost(1, 1),), (0, 0), 1),
        StageWork((StageCost(1, 1),), (0,), 0),
        StageWork((StageCost(1, 1, saved=1, half=2),), (0,), 1),
        StageWork((StageCost(1, 1, output=2), StageCost(1, 1)), (0, 0), 1),
        StageWork((StageCost(-1, 1),), (0,), 1),
        StageWork((StageCost(1, 1),), (0,), 1, dtypes=("float32",) * 3),
    ],
)
def test_work_that_does_not_fit_together_is_refused(work: StageWork) -> None:
    with pytest.raises(PlanFileError):
        check_joint(joint(work=work))


def test_a_message_has_a_plain_name() -> None:
    plan = joint()
    bad = Executable(plan.work.fingerprint, SPACES, (Alloc(0, 1, 8), Recv(0, 0, "0F0; rm")), placed=False)
    with pytest.raises(PlanFileError, match="letters, digits"):
        check_joint(msgspec.structs.replace(plan, ranks=(RankPlan(0, 0, 0, bad),)))
