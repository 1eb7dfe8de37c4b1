"""Work in units: layers of a model, each with a forward of one unit of time."""

from tightrope.core import DeviceLink, Machine, Tier
from tightrope_ranks.values.ranks import StageCost, StageWork

UNIT = 1000
"""Nanoseconds that stand for one unit."""


def machine(latency: float, *, devices: int = 64) -> Machine:
    """A cluster whose messages take ``latency`` units and no bandwidth."""
    link = DeviceLink("link", latency=latency * UNIT * 1e-9, bandwidth=1e18)
    return Machine("units", (Tier("memory", 2**50),), devices=devices, links=(link,))


def work(
    owners: tuple[int, ...],
    layers: int,
    num_micro: int,
    *,
    gather: float = 0,
    reduce: float = 0,
    replicas: int = 1,
    sharded: bool = False,
) -> StageWork:
    """Divide equal layers among stages; per layer 1 unit forward, 1 + 1 backward.

    A layer keeps 1,000 bytes per micro-batch, 300 between the halves of a backward; its input has 50, and
    its parameters 400.
    """
    num = len(owners)
    stages = []
    for stage in range(num):
        n = (stage + 1) * layers // num - stage * layers // num
        stages.append(
            StageCost(
                forward=n * UNIT,
                backward=n * UNIT,
                weight=n * UNIT,
                input=50 if stage else 0,
                output=50 if stage + 1 < num else 0,
                saved=n * 1000,
                half=n * 300,
                work=100,
                parameters=n * 400,
                state=n * 400,
                gather=round(n * gather * UNIT),
                reduce=round(n * reduce * UNIT),
            )
        )
    return StageWork(tuple(stages), owners, num_micro, replicas, sharded)
