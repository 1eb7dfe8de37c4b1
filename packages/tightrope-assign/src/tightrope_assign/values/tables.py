"""Embedding tables, and plans that say which columns of which table are on which device.

columns ^
      8 | [ d1 ] [    ]      a table is whole, or is halved, or its halves are halved, ...
      4 | [----] [ d0 ]      down to 4 columns; every column is on one device
      0 | [ d0 ] [    ]
        +--user---item--> tables
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tightrope.core import Bytes, InfeasibleError, Nanoseconds, TightropeError, format_bytes
from tightrope.core.units import shown
from tightrope_assign.values.cluster import LARGEST, Cluster, unique_names

MOST_TABLES: Final = 10_000
NARROWEST: Final = 4
"""Columns of the narrowest part of a table that is split."""
NUM_FEATURES: Final = 8
_MOST_DIM: Final = 65_536
_BUCKETS: Final = 32


class EmbeddingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of which every sample looks up some rows, and adds them up.

    Attributes:
        name: unique.
        rows: of the table.
        dim: columns.
        pooling: rows that a sample looks up, on average.
        skew: power by which rows get rarer, 0 = all alike; clicks have about 1.
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    skew: float = 0.0


class TableSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of a model.

    Attributes:
        tables: in order.
        batch: samples of all devices together in a step.
        bytes_per_number: of a weight with its optimizer state; 4 = float32 and plain SGD.
        name: for people.
    """

    tables: tuple[EmbeddingTable, ...]
    batch: int = 1024
    bytes_per_number: int = 4
    name: str = "tables"


class TableShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns ``[start, stop)`` of a table, and the device that they are on."""

    table: str
    start: int
    stop: int
    device: str

    @property
    def label(self) -> str:
        """Name and columns."""
        return f"{self.table}[{self.start}:{self.stop}]"


class TablePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where every column is.

    Attributes:
        placed: every column of every table once.
        cost: slowest lookup plus slowest exchange each way.
        lower_bound: no plan costs less, by the same prices.
        table_wise: cost of the plan without splits that bytes do not demand.
        measured: slowest lookup without and with such splits, on this machine; empty = not measured.
        planner: what found it.
        costs: label of the prices.
        moved_bytes: of columns that were elsewhere in the plan that this one replaces.
        schema: version of the file.
    """

    placed: tuple[TableShard, ...]
    cost: Nanoseconds
    lower_bound: Nanoseconds
    table_wise: Nanoseconds = 0
    measured: tuple[Nanoseconds, ...] = ()
    planner: str = "greedy"
    costs: str = ""
    moved_bytes: Bytes = 0
    schema: Literal[1] = 1

    @property
    def gap(self) -> float:
        """Cost relative to the bound, less one."""
        return self.cost / self.lower_bound - 1 if self.lower_bound else 0.0


def halves(start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """Halve columns; empty where the halves would be no multiples of 4.

    >>> halves(8, 24), halves(0, 12)
    (((8, 16), (16, 24)), ())
    """
    if (stop - start) % (2 * NARROWEST):
        return ()
    middle = (start + stop) // 2
    return (start, middle), (middle, stop)


def shard_bytes(tables: TableSet, table: EmbeddingTable, columns: int) -> Bytes:
    """Bytes of some columns of a table, with optimizer state."""
    return table.rows * columns * tables.bytes_per_number


def touched_rows(rows: int, skew: float, lookups: float) -> float:
    """Expect how many different rows are looked up, where row r has a weight of about r ** -skew.

    >>> round(touched_rows(100, 0.0, 100))
    63
    """
    found, before = 0.0, 0.0
    for at in range(1, _BUCKETS + 1):
        low, high = (rows + 1) ** ((at - 1) / _BUCKETS), (rows + 1) ** (at / _BUCKETS)
        mass = share_below(high, rows, skew)
        found += (high - low) * -math.expm1(-lookups * (mass - before) / (high - low))
        before = mass
    return min(found, float(rows))


def share_below(x: float, rows: int, skew: float) -> float:
    """Share of lookups that go to rows before position ``x``, which counts from 1."""
    power = 1.0 - skew
    if abs(power) < 1e-6:
        return math.log(x) / math.log(rows + 1)
    return math.expm1(power * math.log(x)) / math.expm1(power * math.log(rows + 1))


def shard_features(table: EmbeddingTable, columns: int, batch: int, touched: float) -> tuple[float, ...]:
    """Describe a shard to the cost model, in numbers around 1.

    Args:
        table: of the shard.
        columns: of the shard.
        batch: samples.
        touched: see `touched_rows`.
    """
    lookups = batch * table.pooling
    logs = (table.rows, columns, table.pooling, batch, lookups, touched, 4 * touched * columns)
    return (*(math.log2(max(value, 1e-3)) / 10 for value in logs), touched / max(lookups, 1e-3))


def check_tables(tables: TableSet, cluster: Cluster) -> None:
    """Refuse tables that cannot be, or that the devices cannot hold.

    Raises:
        TightropeError: names the table, and quotes the value.
        InfeasibleError: the narrowest part of a table, or all tables, take more bytes than there are.
    """
    where = f"tables {tables.name!r:.60}"
    if not 1 <= len(tables.tables) <= MOST_TABLES:
        raise TightropeError(f"{where} has {len(tables.tables)} tables: give 1 to {MOST_TABLES}.")
    if not 1 <= tables.batch <= 2**24:
        raise TightropeError(f"{where}: batch={shown(tables.batch)}: give samples, 1 to 2^24.")
    if not 1 <= tables.bytes_per_number <= 64:
        raise TightropeError(f"{where}: bytes_per_number={shown(tables.bytes_per_number)}: give 1 to 64.")
    unique_names([tables.name], "tables")
    unique_names([table.name for table in tables.tables], f"{where}: table")
    for table in tables.tables:
        _check_table(f"{where}, table {table.name!r:.60}", table)
    largest = max(device.bytes or LARGEST for device in cluster.devices)
    for table in tables.tables:
        need = shard_bytes(tables, table, narrowest(table.dim))
        if need > largest:
            raise InfeasibleError(
                f"{where}, table {table.name!r:.60}: {narrowest(table.dim)} columns take "
                f"{format_bytes(need)}, and the largest device has {format_bytes(largest)}. "
                "Give it fewer rows, or devices more.",
                asked=largest,
                lower_bound=need,
            )
    total = sum(shard_bytes(tables, table, table.dim) for table in tables.tables)
    room = sum(device.bytes or LARGEST for device in cluster.devices)
    if total > room:
        raise InfeasibleError(
            f"{where} takes {format_bytes(total)}, and the devices have {format_bytes(room)}. "
            "Add devices or bytes.",
            asked=room,
            lower_bound=total,
        )


def _check_table(where: str, table: EmbeddingTable) -> None:
    if not 1 <= table.rows <= 2**40:
        raise TightropeError(f"{where}: rows={shown(table.rows)}: give 1 to 2^40.")
    if not 1 <= table.dim <= _MOST_DIM:
        raise TightropeError(f"{where}: dim={shown(table.dim)}: give columns, 1 to {_MOST_DIM}.")
    if not 0 <= table.pooling <= 1e5:
        raise TightropeError(f"{where}: pooling={shown(table.pooling)}: give rows per sample, 0 to 1e5.")
    if not 0 <= table.skew <= 4:
        raise TightropeError(f"{where}: skew={shown(table.skew)}: give a power from 0 to 4.")


def narrowest(dim: int) -> int:
    """Columns of the narrowest part that halving gives.

    >>> narrowest(96), narrowest(10)
    (12, 10)
    """
    while dim % (2 * NARROWEST) == 0:
        dim //= 2
    return dim


def by_device(cluster: Cluster, placed: Sequence[TableShard]) -> dict[str, list[TableShard]]:
    """Group shards by device."""
    found: dict[str, list[TableShard]] = {name: [] for name in cluster.names}
    for shard in placed:
        found[shard.device].append(shard)
    return found
