"""Graphs: derived figures and the fingerprint."""

import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pytest

from tightrope.core import (
    ALIGNMENT,
    Allocation,
    Compute,
    Flag,
    Forecast,
    Free,
    Graph,
    Kind,
    Op,
    Part,
    Phase,
    Result,
    Schedule,
    Storage,
    View,
)

GRAPH = Graph(
    (
        Op(0, "a", "aten.a", (0,), (1,), ns=7, module="net", source="m.py:1"),
        Op(1, "b", "aten.b", (1,), (2, 3), ns=5, flags=Flag.RANDOM, variant=2),
    ),
    (
        Storage(0, 65, Kind.PARAMETER, external=True),
        Storage(1, 100),
        Storage(2, 1, resident_at_end=True),
        Storage(3, 8),
    ),
    (Op(2, "b_again", "tightrope.mask", (1, 3), (2,), ns=3),),
    environment=(("device", "cpu"), ("threads", "2")),
)


@dataclass(frozen=True)
class Change:
    where: str
    position: int
    values: dict[str, object]

    def apply(self) -> Graph:
        items = list(getattr(GRAPH, self.where))
        items[self.position] = msgspec.structs.replace(items[self.position], **self.values)
        return msgspec.structs.replace(GRAPH, **{self.where: tuple(items)})


SENSITIVE = [
    Change("storages", 1, {"bytes": 101}),
    Change("storages", 1, {"kind": Kind.GRADIENT}),
    Change("storages", 1, {"resident_at_end": True}),
    Change("storages", 1, {"external": True}),
    Change("storages", 1, {"outside": True}),
    Change("storages", 1, {"label": "float32[25]"}),
    Change("ops", 0, {"target": "aten.c"}),
    Change("ops", 1, {"reads": (0, 1)}),
    Change("ops", 1, {"creates": (3, 2)}),
    Change("ops", 0, {"mutates": (0,)}),
    Change("ops", 0, {"flags": Flag.COLLECTIVE}),
    Change("ops", 0, {"phase": Phase.BACKWARD}),
    Change("ops", 1, {"variant": -1}),
    Change("variants", 0, {"reads": (3,)}),
    Change("ops", 0, {"arguments": (1,)}),
    Change("ops", 0, {"keywords": (("dim", 1),)}),
    Change("ops", 0, {"results": (Result(-1, View(1, "float32", (25,), (1,))),)}),
]
INSENSITIVE = [
    Change("ops", 0, {"ns": 8}),
    Change("ops", 0, {"allocations": (Allocation(100, 1), Allocation(4, -1, 1, 2))}),
    Change("ops", 0, {"name": "other"}),
    Change("ops", 0, {"module": "other"}),
    Change("ops", 0, {"source": "other.py:3"}),
    Change("storages", 1, {"module": "other"}),
    Change("storages", 1, {"alignment": 128}),
]


@pytest.mark.parametrize("change", SENSITIVE, ids=str)
def test_the_fingerprint_sees_structure(change: Change) -> None:
    assert change.apply().fingerprint != GRAPH.fingerprint


@pytest.mark.parametrize("change", INSENSITIVE, ids=str)
def test_the_fingerprint_ignores_times_and_names(change: Change) -> None:
    assert change.apply().fingerprint == GRAPH.fingerprint


def test_the_fingerprint_sees_order_environment_and_boundary() -> None:
    replace = msgspec.structs.replace
    others = [
        replace(GRAPH, ops=GRAPH.ops[::-1]),
        replace(GRAPH, storages=GRAPH.storages[::-1]),
        replace(GRAPH, variants=()),
        replace(GRAPH, environment=(("device", "cpu"),)),
        replace(GRAPH, environment=(("device", "cpu"), ("threads", "4"))),
        replace(GRAPH, parts=(Part(1), Part(2))),
    ]
    assert len({graph.fingerprint for graph in (GRAPH, *others)}) == len(others) + 1
    assert replace(GRAPH, environment=GRAPH.environment[::-1]).fingerprint == GRAPH.fingerprint
    assert replace(GRAPH, name="other").fingerprint == GRAPH.fingerprint


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    data = msgspec.json.encode(GRAPH)
    code = (
        "import sys, msgspec; from tightrope.core import Graph; "
        "print(msgspec.json.decode(sys.stdin.buffer.read(), type=Graph).fingerprint)"
    )
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            input=data,
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        assert ran.stdout.decode().strip() == GRAPH.fingerprint
    assert len(GRAPH.fingerprint) == 64


def test_derived_figures() -> None:
    assert GRAPH.persistent == 128
    assert GRAPH.base_ns == 12
    assert GRAPH.boundaries == ()
    assert msgspec.structs.replace(GRAPH, parts=(Part(1), Part(2))).boundaries == (1,)
    assert [op.id for op in GRAPH.all_ops()] == [0, 1, 2]
    assert GRAPH.op(2).name == "b_again"
    assert [storage.size for storage in GRAPH.storages] == [128, 128, ALIGNMENT, ALIGNMENT]
    assert GRAPH.ops[0].describe() == "aten.a in net (m.py:1)"
    assert GRAPH.ops[1].describe() == "aten.b"


def test_allocations_default_to_the_created_storages() -> None:
    assert GRAPH.allocations(GRAPH.ops[1]) == (Allocation(1, 2, 0, -1), Allocation(8, 3, 1, -1))
    measured = (Allocation(64, -1, 0, 2), Allocation(100, 1, 1, -1))
    assert GRAPH.allocations(msgspec.structs.replace(GRAPH.ops[0], allocations=measured)) == measured
    assert GRAPH.allocations(Op(0, "n", "aten.n")) == ()


@pytest.mark.parametrize("flag", [f for f in Flag if f != Flag.OPAQUE])
def test_only_a_variant_makes_a_flagged_op_recomputable(flag: Flag) -> None:
    assert not Op(0, "a", "aten.a", flags=flag).recomputable
    assert Op(0, "a", "aten.a", flags=flag, variant=1).recomputable


def test_plain_ops_are_recomputable_and_mutating_ones_are_not() -> None:
    assert Op(0, "a", "aten.a", (0,)).recomputable
    assert not Op(0, "a", "aten.a", (0,), (), (0,)).recomputable


def test_a_schedule_lists_what_it_computes() -> None:
    assert Schedule((Compute(0), Free(1), Compute(1), Compute(0))).computes() == (0, 1, 0)


def test_a_forecast_adds_up() -> None:
    forecast = Forecast(100, 50, 64, 8, ns=110, base_ns=100)
    assert forecast.total == 172
    assert forecast.tdi_percent == pytest.approx(10.0)
    assert Forecast(0, 0, 0).tdi_percent == 0.0
