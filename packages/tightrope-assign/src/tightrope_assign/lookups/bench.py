"""Time fused lookups on this machine: forward, gradient and update, in CPU time of the thread.

Tables of one width are one matrix, so that a device has one lookup per width. Streams of rows are drawn by
each table's skew, and are new in every repetition. Rows lie in one pool: larger tables are cut to it. Drawn
tables spread over powers of ten, as in the public sets of click logs, which are not included.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import log10
from pathlib import Path
from typing import Annotated, Final

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.core import Nanoseconds, PlanFileError
from tightrope.native.processor import described
from tightrope_assign.values.cluster import Cluster, PlaceDevice
from tightrope_assign.values.tables import EmbeddingTable, TableSet, TableShard, check_tables

_DIMS: Final = (4, 8, 16, 32, 64, 128)
_POOL: Final = 2**27
"""Numbers in the pool: 512 MiB."""
_TWICE: Final = 3
"""Slowest devices that are timed twice more: a maximum of noisy times is too large."""
_HASH: Final = 2_654_435_761


class MeasuredSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shards on one device, as whole tables, and what they took."""

    tables: TableSet
    ns: Annotated[Nanoseconds, msgspec.Meta(gt=0)]
    spent: Annotated[float, msgspec.Meta(ge=0)]  # CPU seconds of the measurement
    processor: str  # hash of what the system says of it


def made_up_tables(
    num: int, *, seed: int = 0, batch: int = 512, dims: Sequence[int] = _DIMS, most_rows: int = 3_000_000
) -> TableSet:
    """Draw tables: from 1e3 rows, within 128 MiB, 1 to 50 rows a sample, popularity from even to steep.

    >>> len(made_up_tables(5, seed=1).tables)
    5
    """
    chance, found = random.Random(f"tables {seed}"), []
    for at in range(num):
        dim = chance.choice(dims)
        rows = int(min(10 ** chance.uniform(3, log10(most_rows)), 2**25 // dim))
        pooling = 1.0 if chance.random() < 0.3 else round(10 ** chance.uniform(0, 1.7), 2)
        skew = 0.0 if chance.random() < 0.2 else round(chance.uniform(0.5, 1.3), 2)
        found.append(EmbeddingTable(f"t{at}", rows, dim, pooling, skew))
    return TableSet(tuple(found), batch, 4, f"made-up {num} {seed}")


class LookupBench:
    """A pool of rows, and timings of lookups in it."""

    def __init__(self, *, numbers: int = _POOL, seed: int = 0) -> None:
        self.pool, self.random = torch.full((numbers,), 0.01), torch.Generator().manual_seed(seed)
        fixed = [(EmbeddingTable("fixed", 200_000, dim, 8.0), dim) for dim in (16, 64, 128)]
        self.reference = self.prepare(fixed, 256)
        self.fastest = min(_step(self.reference) for _ in range(60))

    def rows(self, table: EmbeddingTable, rows: int, bags: int) -> tuple[Tensor, Tensor]:
        """Draw rows and bag lengths of a table that is cut to ``rows``."""
        whole = int(table.pooling)
        length = whole + (torch.rand(bags, generator=self.random) < table.pooling - whole).long()
        draw = torch.rand(int(length.sum()), generator=self.random, dtype=torch.float64)
        power, edge = 1.0 - table.skew, torch.log(torch.tensor(rows + 1.0, dtype=torch.float64))
        if abs(power) < 1e-6:
            found = torch.exp(draw * edge)
        else:
            found = torch.exp(torch.log1p(draw * torch.expm1(power * edge)) / power)
        return (found.long().clamp(1, rows) * _HASH) % rows, length

    def prepare(self, shards: Sequence[tuple[EmbeddingTable, int]], batch: int) -> list[tuple[Tensor, ...]]:
        """Lay shards out in the pool, and draw their rows: weight, rows, offsets, gradient per width."""
        fair = len(self.pool) // (2 * max(1, len(shards)))
        cut = [(table, wide, min(table.rows, max(1, fair // wide))) for table, wide in shards]
        most = len(self.pool) - sum(wide * rows for _, wide, rows in cut)
        at, groups = int(torch.randint(most + 1, (1,), generator=self.random)), list[tuple[Tensor, ...]]()
        for width in sorted({wide for _, wide, _ in cut}):
            mine = [(table, rows) for table, wide, rows in cut if wide == width]
            *firsts, total = accumulate((rows for _, rows in mine), initial=0)
            drawn = [self.rows(table, rows, batch) for table, rows in mine]
            index = torch.cat([rows + first for (rows, _), first in zip(drawn, firsts, strict=True)])
            length = torch.cat([lengths for _, lengths in drawn])
            weight = self.pool[at : at + total * width].view(total, width)
            at += total * width
            groups.append((weight, index, length.cumsum(0) - length, torch.full((len(length), width), 1e-9)))
        return groups

    def time(self, shards: Sequence[tuple[EmbeddingTable, int]], batch: int) -> Nanoseconds:
        """Time a step of a device, in ns of thread time on a core that nothing else slows.

        A fixed step is timed before and after each repetition; the median of the ratios counts, times the
        fastest fixed step: what else runs slows both.
        """
        if not shards:
            return 0
        ratios: list[float] = []
        while len(ratios) < 3:
            groups = self.prepare(shards, batch)
            if not ratios:
                _step(groups)  # warms up the allocator
            before, taken, after = _step(self.reference), _step(groups), _step(self.reference)
            ratios.append(2 * taken / (before + after))
            self.fastest = min(self.fastest, before, after)
        return max(1, round(statistics.median(ratios) * self.fastest))


def _step(groups: Sequence[tuple[Tensor, ...]]) -> Nanoseconds:
    """Run a lookup, its gradient and an update per width."""
    begun = time.thread_time_ns()
    for weight, index, offsets, gradient in groups:
        leaf = weight.detach().requires_grad_()
        pooled = F.embedding_bag(index, leaf, offsets, mode="sum", sparse=True)
        (change,) = torch.autograd.grad(pooled, leaf, gradient)
        weight.add_(change, alpha=-0.01)
    return time.thread_time_ns() - begun


def measured_by(
    bench: LookupBench, tables: TableSet
) -> Callable[[Sequence[Sequence[TableShard]]], Nanoseconds]:
    """Give a function that times each device's shards and returns the slowest, for `plan_tables`."""
    named = {table.name: table for table in tables.tables}

    def slowest(devices: Sequence[Sequence[TableShard]]) -> Nanoseconds:
        shards = [[(named[s.table], s.stop - s.start) for s in mine] for mine in devices]
        shards.sort(key=lambda mine: bench.time(mine, tables.batch))
        times = ([bench.time(mine, tables.batch) for _ in range(3)] for mine in shards[-_TWICE:])
        return max(round(statistics.median(one)) for one in times)

    return slowest


def collect(
    path: Path,
    *,
    seconds: float,
    fewest: int = 0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
    bench: LookupBench | None = None,
) -> list[MeasuredSet]:
    """Time random sets of shards until ``seconds`` of CPU time are spent, and at least ``fewest`` sets.

    A set is a line of the file as soon as it is measured, and what the file has counts. ``progress`` is told
    the number of sets and the seconds spent. A file of another machine is refused.
    """
    processor = described()[1]
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [msgspec.json.decode(line, type=MeasuredSet) for line in lines]
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{str(path)!r:.200} holds no measurements: {error}. Delete it.") from error
    if any(one.processor != processor for one in found):
        raise PlanFileError(f"{str(path)!r:.200} was measured on another machine: delete it.")
    for one in found:
        check_tables(one.tables, Cluster((PlaceDevice("one"),)))
    spent = sum(one.spent for one in found)
    with path.open("ab", buffering=0) as file:
        while spent < seconds or len(found) < fewest:
            bench, begun = bench or LookupBench(seed=seed), time.thread_time()
            tables = drawn_set(f"{seed} {len(found)}")
            taken = bench.time([(table, table.dim) for table in tables.tables], tables.batch)
            found.append(MeasuredSet(tables, taken, time.thread_time() - begun, processor))
            file.write(msgspec.json.encode(found[-1]) + b"\n")
            spent += found[-1].spent
            if progress is not None and len(found) % 20 == 0:
                progress(len(found), spent)
    return found


def drawn_set(seed: str) -> TableSet:
    """Draw up to 20 shards; the dim of each table is the width of the shard."""
    chance = random.Random(seed)
    tables = made_up_tables(chance.randint(1, 20), seed=chance.randrange(2**40)).tables
    return TableSet(tables, chance.choice((128, 256, 512, 1024)))
