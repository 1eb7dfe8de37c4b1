"""Time fused lookups on this machine: forward, gradient and update, in CPU time of the thread.

Tables of one width are one matrix, so that a device has one lookup per width. Streams of rows are drawn by
each table's skew, and are new in every repetition. Rows lie in one pool: larger tables are cut to it.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.core import Nanoseconds, PlanFileError, TightropeError
from tightrope.native.processor import described
from tightrope_assign.tables.made_up import made_up_tables
from tightrope_assign.values.tables import EmbeddingTable, TableSet, TableShard

MOST_TABLES: Final = 20
BATCHES: Final = (128, 256, 512, 1024)
_POOL: Final = 2**27
"""Numbers in the pool: 512 MiB."""
_REPEATS: Final = 3
_TWICE: Final = 3
"""Slowest devices that are timed twice more: a maximum of noisy times is too large."""
_HASH: Final = 2_654_435_761


class LookupBench:
    """A pool of rows, and timings of lookups in it."""

    def __init__(self, *, numbers: int = _POOL, seed: int = 0) -> None:
        self.pool = torch.full((numbers,), 0.01)
        self.random = torch.Generator().manual_seed(seed)
        fixed = [(EmbeddingTable("fixed", 200_000, dim, 8.0), dim) for dim in (16, 64, 128)]
        self.reference = self.prepare(fixed, 256)
        self.fastest = min(_step(self.reference) for _ in range(60))

    def rows(self, table: EmbeddingTable, rows: int, bags: int) -> tuple[Tensor, Tensor]:
        """Draw rows and bag lengths of a table that is cut to ``rows``."""
        whole = int(table.pooling)
        more = torch.rand(bags, generator=self.random) < table.pooling - whole
        length = whole + more.long()
        draw = torch.rand(int(length.sum()), generator=self.random, dtype=torch.float64)
        power = 1.0 - table.skew
        edge = torch.log(torch.tensor(rows + 1.0, dtype=torch.float64))
        if abs(power) < 1e-6:
            found = torch.exp(draw * edge)
        else:
            found = torch.exp(torch.log1p(draw * torch.expm1(power * edge)) / power)
        return (found.long().clamp(1, rows) * _HASH) % rows, length

    def prepare(self, shards: Sequence[tuple[EmbeddingTable, int]], batch: int) -> list[tuple[Tensor, ...]]:
        """Lay shards out in the pool, and draw their rows: a weight, rows and offsets per width."""
        widths = sorted({columns for _, columns in shards})
        groups: list[tuple[Tensor, ...]] = []
        fair = len(self.pool) // (2 * max(1, len(shards)))
        total = sum(min(t.rows, max(1, fair // c)) * c for t, c in shards)
        at = int(torch.randint(len(self.pool) - total + 1, (1,), generator=self.random))
        for width in widths:
            first, indices, lengths = 0, [], []
            for table, columns in shards:
                if columns == width:
                    rows = min(table.rows, max(1, fair // columns))
                    index, length = self.rows(table, rows, batch)
                    indices.append(index + first)
                    lengths.append(length)
                    first += rows
            weight = self.pool[at : at + first * width].view(first, width)
            at += first * width
            length = torch.cat(lengths)
            gradient = torch.full((len(length), width), 1e-9)
            groups.append((weight, torch.cat(indices), length.cumsum(0) - length, gradient))
        return groups

    def time(
        self, shards: Sequence[tuple[EmbeddingTable, int]], batch: int, repeats: int = _REPEATS
    ) -> Nanoseconds:
        """Time a step of a device, in ns of thread time on a core that nothing else slows.

        A fixed step is timed before and after each repetition; the median of the ratios counts, times the
        fastest fixed step: what else runs slows both.
        """
        if not shards:
            return 0
        ratios, before = [], _step(self.reference)
        for at in range(repeats):
            groups = self.prepare(shards, batch)
            _step(groups) if not at else None  # warms up the allocator
            before = _step(self.reference)
            taken = _step(groups)
            after = _step(self.reference)
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
        times = [[bench.time(one, tables.batch)] for one in shards]
        for at in sorted(range(len(times)), key=lambda one: -times[one][0])[:_TWICE]:
            times[at] += [bench.time(shards[at], tables.batch) for _ in range(2)]
        return max(round(statistics.median(one)) for one in times if len(one) > 1)

    return slowest


def collect(
    path: Path,
    *,
    seconds: float,
    fewest: int = 0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
    bench: LookupBench | None = None,
) -> list[tuple[TableSet, Nanoseconds]]:
    """Time random sets of shards until ``seconds`` of CPU time are spent; what the file has counts.

    Args:
        path: a line of JSON per set, written as it is measured.
        seconds: CPU time in all, that of earlier calls included.
        fewest: sets that are timed at all costs.
        seed: of what is drawn.
        progress: called with the number of sets and the seconds spent.
        bench: to measure with.

    Raises:
        PlanFileError: the file is of another machine, or no such file.
    """
    found, spent = _resumed(path)
    if spent >= seconds and len(found) >= fewest:
        return found
    bench = bench or LookupBench(seed=seed)
    with path.open("a", encoding="utf-8") as file:
        if not path.stat().st_size:
            file.write(json.dumps({"machine": described()[1], "schema": 1}) + "\n")
        while spent < seconds or len(found) < fewest:
            begun = time.thread_time()
            tables = drawn_set(f"{seed} {len(found)}")
            taken = bench.time([(table, table.dim) for table in tables.tables], tables.batch)
            took = time.thread_time() - begun
            rows = [[one.rows, one.dim, one.pooling, one.skew] for one in tables.tables]
            file.write(json.dumps([tables.batch, taken, took, rows]) + "\n")
            found.append((tables, taken))
            spent += took
            if progress is not None and len(found) % 20 == 0:
                file.flush()
                progress(len(found), spent)
    return found


def drawn_set(seed: str) -> TableSet:
    """Draw up to 20 shards; the dim of each table is the width of the shard."""
    chance = random.Random(seed)
    tables = made_up_tables(chance.randint(1, MOST_TABLES), seed=chance.randrange(2**40)).tables
    return TableSet(tables, chance.choice(BATCHES))


def _resumed(path: Path) -> tuple[list[tuple[TableSet, Nanoseconds]], float]:
    if not path.exists() or not path.stat().st_size:
        return [], 0.0
    found, spent = [], 0.0
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        machine = json.loads(head)["machine"]
        for line in lines:
            batch, taken, took, rows = json.loads(line)
            tables = tuple(EmbeddingTable(f"t{at}", *row) for at, row in enumerate(rows))
            found.append((TableSet(tables, int(batch)), int(taken)))
            spent += float(took)
    except (ValueError, TypeError, KeyError, OSError, OverflowError) as error:
        raise PlanFileError(f"{str(path)!r:.200} holds no measurements: {error}. Delete it.") from error
    if machine != described()[1]:
        raise PlanFileError(f"{str(path)!r:.200} was measured on another machine: delete it.")
    if any(taken <= 0 for _, taken in found):
        raise TightropeError(f"{str(path)!r:.200} holds times that are not above 0: delete it.")
    return found, spent
