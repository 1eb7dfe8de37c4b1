"""What a set of table shards costs on a device: one model, saved with the machine that it was measured on.

ns(shards) = per_width * widths + level + slope . z + sum of out * max(0, into . z + bend)
z          = sum over shards of base(shard) * max(0, second @ max(0, first @ features + ...) + ...) / 1e6

``slope``, ``out`` and ``into`` are at least 0, so the price is convex and grows with every shard: the mean
device of a plan is a lower bound of its slowest.
"""

import math
from typing import Final, Literal, TypeAlias

import msgspec

from tightrope.core import FingerprintError, TightropeError
from tightrope.core.units import shown
from tightrope_assign.values.cluster import Cluster, link_table
from tightrope_assign.values.tables import NUM_FEATURES

Matrix: TypeAlias = tuple[tuple[float, ...], ...]
MOST_UNITS: Final = 512


class ExchangeCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of an exchange of pooled rows, on one device.

    Attributes:
        latency: nanoseconds per other device.
        per_byte: nanoseconds per byte that is sent or received.
    """

    latency: float = 20_000.0
    per_byte: float = 1.0


class TableCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of lookups and exchanges; see the formula above.

    Attributes:
        machine: name of the processor that was measured; empty = constants, not measured.
        processor: hash of what the system says of it.
        base: ns per shard, per bag, per looked up row, and per number of such rows.
        first: weights of the inner layer, (units, features).
        first_bias: its biases.
        second: weights of the layer behind it, (kinds, units).
        second_bias: its biases.
        slope: of each kind, ns per unit of z.
        into: weights of the bends, (bends, kinds).
        bend: where each bend begins, with the sign turned.
        out: ns per unit above a bend.
        level: ns of a device that has any shard.
        per_width: ns per different number of columns on a device: each is one fused lookup.
        forward: pooled rows go to the devices of their samples.
        backward: their gradients come back.
        figures: of the fit, by name.
    """

    machine: str
    processor: str
    base: tuple[float, float, float, float]
    first: Matrix
    first_bias: tuple[float, ...]
    second: Matrix
    second_bias: tuple[float, ...]
    slope: tuple[float, ...]
    into: Matrix
    bend: tuple[float, ...]
    out: tuple[float, ...]
    level: float
    per_width: float
    forward: ExchangeCost = ExchangeCost()
    backward: ExchangeCost = ExchangeCost()
    figures: dict[str, float] = {}
    schema: Literal[1] = 1

    @property
    def label(self) -> str:
        """Machine and hash, which plans name."""
        return f"{self.machine} {self.processor}".strip() or "constants"


CONSTANTS: Final = TableCosts(
    "", "", (60e3, 20.0, 30.0, 2.0), ((0.0,) * NUM_FEATURES,), (0.0,), ((0.0,),), (1.0,), (1e6,), ((0.0,),),
    (0.0,), (0.0,), 0.0, 100e3,
)  # fmt: skip
"""Rough prices of a processor's core, for plans without a measured file: costs of tables are added up."""


def check_costs(costs: TableCosts) -> None:
    """Refuse prices that cannot be.

    Raises:
        TightropeError: names the field, and quotes the value.
    """
    units, kinds, bends = len(costs.first_bias), len(costs.second_bias), len(costs.bend)
    shapes = (
        ("first", costs.first, units, NUM_FEATURES),
        ("second", costs.second, kinds, units),
        ("into", costs.into, bends, kinds),
        ("slope", (costs.slope,), 1, kinds),
        ("out", (costs.out,), 1, bends),
    )
    for name, rows, high, wide in shapes:
        if not 1 <= high <= MOST_UNITS or len(rows) != high or any(len(row) != wide for row in rows):
            raise TightropeError(f"table costs: {name} is not {high} x {wide} numbers: measure again.")
    fields = {
        **{name: [value for row in rows for value in row] for name, rows, _, _ in shapes},
        **{name: list(getattr(costs, name)) for name in ("base", "first_bias", "second_bias", "bend")},
        **{name: [getattr(costs, name)] for name in ("level", "per_width")},
        "forward": [costs.forward.latency, costs.forward.per_byte],
        "backward": [costs.backward.latency, costs.backward.per_byte],
    }
    signed = {"first", "second", "first_bias", "second_bias", "bend"}
    for name, values in fields.items():
        for value in values:
            if not (math.isfinite(value) and abs(value) <= 1e15 and (name in signed or value >= 0)):
                least = "" if name in signed else " of at least 0"
                raise TightropeError(
                    f"table costs: {name} holds {shown(value)}: give finite numbers{least}, or measure again."
                )


def check_machine(costs: TableCosts, name: str, processor: str) -> None:
    """Refuse prices of another machine.

    Raises:
        FingerprintError: names both machines.
    """
    if costs.machine and costs.processor != processor:
        raise FingerprintError(
            f"the costs were measured on {costs.machine!r:.60} ({costs.processor:.20}); this is {name!r:.60} "
            f"({processor}). Measure here, or add --elsewhere."
        )


def link_prices(cluster: Cluster, cost: ExchangeCost) -> tuple[list[list[float]], list[list[float]]]:
    """List ns per message, and per byte, of every two devices: the links of a cluster, or measured prices.

    >>> from tightrope_assign.values.cluster import PlaceDevice
    >>> link_prices(Cluster((PlaceDevice("a"), PlaceDevice("b"))), ExchangeCost(10, 1))
    ([[0.0, 10], [10, 0.0]], [[0.0, 1], [1, 0.0]])
    """
    num = len(cluster.devices)
    if not (cluster.links or cluster.pairs):
        latency = [[0.0 if a == b else cost.latency for b in range(num)] for a in range(num)]
        return latency, [[0.0 if a == b else cost.per_byte for b in range(num)] for a in range(num)]
    table = link_table(cluster)
    return (
        [[1e9 * link.latency if link else 0.0 for link in row] for row in table],
        [[1e9 / link.bandwidth if link else 0.0 for link in row] for row in table],
    )
