"""torchrec's planner on our tables (``pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0``).

1.9 of both installs next to torch 2.13, and its library does not load; 1.8 does. With them go tensordict,
pyre-extensions, iopath, pyvers, typing-inspect, orjson, importlib-metadata and portalocker.
"""

import logging
import warnings
from functools import cache
from typing import Any

from tightrope_assign.tables import Cluster, TableSet

_CAPS = (4.0, 2.5, 2.0, 1.7, 1.45, 1.3, 1.15)
"""Relative to the bytes: its sums count more than rows, so the widest cap with which a plan fits counts."""


@cache
def torchrec_refusal() -> str:
    """Say why it does not run here; empty where it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchrec.distributed.planner  # noqa: F401
        logging.getLogger("torchrec").setLevel(logging.ERROR)
    except (ImportError, OSError, RuntimeError) as error:
        return f"torchrec does not load: {str(error)[:120]}"
    return ""


def torchrec_plan(tables: TableSet, cluster: Cluster) -> tuple[list[tuple[int, int, int]], list[int]] | None:
    """Plan table-wise and column-wise, fused; None where no plan of it holds the bytes."""
    for cap in _CAPS:
        found = _plan(tables, cluster, round(cap * cluster.devices[0].bytes))
        if found is None:
            continue
        held = [0] * len(cluster.devices)
        for (at, start, stop), host in zip(*found, strict=True):
            held[host] += 4 * tables.tables[at].rows * (stop - start)
        if all(one <= device.bytes for one, device in zip(held, cluster.devices, strict=True)):
            return found
    return None


def _plan(
    tables: TableSet, cluster: Cluster, cap: int
) -> tuple[list[tuple[int, int, int]], list[int]] | None:
    import torch
    import torchrec
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import PlannerError
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    configs = [
        EmbeddingBagConfig(
            name=one.name, embedding_dim=one.dim, num_embeddings=one.rows, feature_names=[one.name]
        )
        for one in tables.tables
    ]
    model = torch.nn.Sequential()
    model.add_module("bags", torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=configs))
    constraints: dict[str, Any] = {
        one.name: ParameterConstraints(
            sharding_types=["table_wise", "column_wise"],
            compute_kernels=["fused"],
            pooling_factors=[one.pooling],
        )
        for one in tables.tables
    }
    num = len(cluster.devices)
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=num, compute_device="cpu", ddr_cap=cap),
        batch_size=max(1, tables.batch // num),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
    )
    try:
        plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    except PlannerError:
        return None
    number = {one.name: at for at, one in enumerate(tables.tables)}
    parts, hosts = [], []
    for name, sharding in plan.plan["bags"].items():
        for shard in sharding.sharding_spec.shards:
            start = shard.shard_offsets[1]
            parts.append((number[name], start, start + shard.shard_sizes[1]))
            hosts.append(shard.placement.rank())
    return parts, hosts
