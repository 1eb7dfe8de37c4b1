"""Train with tables on four gloo ranks, and compare with one process: `python sharded_dlrm.py`."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from tightrope_assign.judge.tables import check_table_plan
from tightrope_assign.lookups.bench import LookupBench, made_up_tables
from tightrope_assign.lookups.run import ShardedTables
from tightrope_assign.tables import (
    CONSTANTS,
    Cluster,
    EmbeddingTable,
    PlaceDevice,
    TablePlan,
    TableSet,
    plan_tables,
)
from tightrope_assign.values.files import read_value, write_value

RANKS, SAMPLES, STEPS, RATE = 4, 16, 4, 0.1
DRAWN = made_up_tables(9, seed=4, dims=(8, 16, 32), most_rows=5000).tables
TABLES = TableSet((EmbeddingTable("large", 8000, 32, 3.0, 1.0), *DRAWN), batch=RANKS * SAMPLES)
DEVICES = Cluster(tuple(PlaceDevice(f"rank {at}", 800_000) for at in range(RANKS)))  # "large" takes 1,024,000


def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {one.name: torch.randn(one.rows, one.dim, dtype=torch.float64) for one in TABLES.tables}


def net() -> nn.Module:
    torch.manual_seed(2)
    wide = sum(table.dim for table in TABLES.tables)
    return nn.Sequential(nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 1)).double()


def batch(step: int, rank: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    bench = LookupBench(numbers=2**20, seed=100 * step + rank)
    drawn = [bench.rows(table, table.rows, SAMPLES) for table in TABLES.tables]
    clicks = torch.rand(SAMPLES, 1, generator=bench.random, dtype=torch.float64).round()
    return [rows for rows, _ in drawn], [lengths for _, lengths in drawn], clicks


def alone() -> list[float]:
    tables, top, losses = {name: one.requires_grad_() for name, one in weights().items()}, net(), []
    sgd = torch.optim.SGD([*tables.values(), *top.parameters()], RATE)
    for step in range(STEPS):
        parts = [batch(step, rank) for rank in range(RANKS)]
        pooled = []
        for at, one in enumerate(tables.values()):
            lengths = torch.cat([part[1][at] for part in parts])
            rows = torch.cat([part[0][at] for part in parts])
            pooled.append(F.embedding_bag(rows, one, lengths.cumsum(0) - lengths, mode="sum", sparse=True))
        clicks = torch.cat([part[2] for part in parts])
        loss = F.binary_cross_entropy_with_logits(top(torch.cat(pooled, 1)), clicks)
        losses.append(loss.item())
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return losses


def on_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS)
    tables = ShardedTables(TABLES, DEVICES, read_value(folder / "plan.json", TablePlan, "plan"), weights())
    top, losses = net(), []
    sgd = torch.optim.SGD([*tables.parameters(), *top.parameters()], RATE)
    for step in range(STEPS):
        rows, lengths, clicks = batch(step, rank)
        loss = F.binary_cross_entropy_with_logits(top(tables(rows, lengths)), clicks, reduction="sum")
        loss = loss / (RANKS * SAMPLES)
        sgd.zero_grad()
        loss.backward()
        for one in top.parameters():
            dist.all_reduce(one.grad)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
        sgd.step()
    if rank == 0:
        print(*losses)
    dist.destroy_process_group()


def main() -> None:
    plan = plan_tables(TABLES, DEVICES)
    check_table_plan(TABLES, DEVICES, CONSTANTS, plan)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.json").write_bytes(write_value(plan))
        command = [sys.executable, __file__, folder]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    ours, theirs = [float(one) for one in said[0].split()], alone()
    apart = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    print(f"{len(plan.placed)} shards of {len(TABLES.tables)} tables on {RANKS} ranks; losses {ours}")
    print(f"largest relative difference from one process: {apart:.1e}")
    assert len(ours) == STEPS
    assert apart < 1e-12


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        on_rank(int(sys.argv[2]), Path(sys.argv[1]))
    else:
        main()
