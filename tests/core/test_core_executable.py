"""Executables as files: equal after a round trip, and every malformed one refused with a message."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tightrope.core import (
    Compute,
    Executable,
    Free,
    Graph,
    Items,
    Name,
    Op,
    PlanFileError,
    Result,
    Schedule,
    Storage,
    View,
)
from tightrope.core.codec import dump_executable, load_executable
from tightrope.core.values import Input, Part
from tightrope.lower import lower, place_at

X = View(0, "float32", (4, 4), (4, 1), input=0)
Y = View(1, "float32", (4, 4), (4, 1))
Z = View(2, "float32", (4, 4), (4, 1))
GRAPH = Graph(
    (
        Op(0, "a", "aten.mm.default", (0,), (1,), arguments=(X, X), results=(Result(-1, Y),)),
        Op(
            1, "b", "aten.cat.default", (1,), (2,), arguments=(Items((Y, Y, 1.5, None)),),
            keywords=(("dtype", Name("dtype", "float32")),), results=(Result(-1, Z),),
        ),
    ),
    (Storage(0, 64, external=True), Storage(1, 64), Storage(2, 64, resident_at_end=True)),
    parts=(Part(2, (Input("x", X),), (Z,)),),
)  # fmt: skip
EXECUTABLE = place_at(lower(GRAPH, Schedule((Compute(0), Compute(1), Free(1)))), (0, 64))
RUN_A, RUN_B = 2, 3


def test_round_trip() -> None:
    data = dump_executable(EXECUTABLE)
    assert load_executable(data) == EXECUTABLE
    assert load_executable(data).fingerprint == EXECUTABLE.fingerprint


def test_another_way_of_writing_the_same_is_read_too() -> None:
    compact = json.dumps(json.loads(dump_executable(EXECUTABLE))).encode()
    assert load_executable(compact) == EXECUTABLE


def test_what_is_written_can_be_read() -> None:
    beyond = place_at(lower(GRAPH, Schedule((Compute(0), Compute(1), Free(1)))), (0, 64))
    large = Executable(
        beyond.graph, beyond.spaces, (*beyond.instructions[:2], *_with_argument(beyond, 2**63 - 1))
    )
    with pytest.raises(PlanFileError, match="9223372036854775807"):
        dump_executable(large)


def _with_argument(executable: Executable, value: int) -> tuple[Any, ...]:
    first, *rest = executable.instructions[2:]
    return (type(first)(**{**_fields(first), "arguments": (X, value)}), *rest)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _put(*path: int | str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        at: Any = tree
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


# of a run: tag, op, target, arguments, keywords, results, inside, ns; of an alloc: tag, buffer, space, bytes,
# offset, storage; of a view: tag, base, dtype, shape, strides, offset, bits, input
MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "older": (_put("schema", value=1), "the file is older"),
    "unknown field": (_put("extra", value=1), "unknown field 'extra'"),
    "graph": (_put("graph", value="zz"), "'zz': must be a fingerprint"),
    "no spaces": (_put("spaces", value=[]), "at least 3"),
    "alignment": (_put("spaces", 1, "alignment", value=3), r"alignment = 3: must be a power of two"),
    "capacity": (_put("spaces", 1, "capacity", value=-1), "capacity = -1"),
    "space": (_put("instructions", RUN_A, 6, 0, 2, value=9), r"inside\[0\].space = 9: must be between 0"),
    "offset outside": (_put("instructions", RUN_A, 6, 0, 4, value=128), r"offset = 128: must be between 0"),
    "offset unaligned": (_put("spaces", 1, "capacity", value=4096), "multiple of"),
    "offset missing": (_put("instructions", RUN_A, 6, 0, 4, value=-1), "offset = -1"),
    "bytes": (_put("instructions", RUN_A, 6, 0, 3, value=2**50), "bytes = 1125899906842624"),
    "buffer": (_put("instructions", RUN_A, 6, 0, 1, value=7), "the next number, 1"),
    "release": (_put("instructions", 4, 1, value=5), "buffer = 5: must be a live buffer"),
    "tag": (_put("instructions", 4, 0, value="jump"), "'jump'"),
    "op": (_put("instructions", RUN_A, 1, value=-2), "op = -2"),
    "target": (_put("instructions", RUN_A, 2, value="os.system('x')"), "the name of an op"),
    "nested op": (_put("instructions", RUN_A, 3, 1, value=["name", "op", "os"]), "the name of an op"),
    "keyword": (_put("instructions", RUN_B, 4, 0, 0, value="a=1, b"), "the name of an argument"),
    "reserved keyword": (_put("instructions", RUN_B, 4, 0, 0, value="lambda"), "the name of an argument"),
    "base": (_put("instructions", RUN_A, 3, 0, 1, value=4), "base = 4: must be a live buffer"),
    "dtype": (_put("instructions", RUN_A, 3, 0, 2, value="float3"), "dtype = 'float3'"),
    "shape": (_put("instructions", RUN_A, 3, 0, 3, value=[4, 5]), "ends at byte 68 of 64"),
    "strides": (_put("instructions", RUN_A, 3, 0, 4, value=[4]), "as many as there are sizes"),
    "view offset": (_put("instructions", RUN_A, 3, 0, 5, value=-4), "between 0"),
    "number": (_put("instructions", RUN_A, 7, value=2**63), "integers must lie between"),
    "part": (_put("instructions", 1, 1, value=1), "the next part, 0"),
    "surplus": (_put("instructions", 4, value=["release", 1, 2]), "has at most 2 items"),
    "surplus inside a view": (
        _put("instructions", RUN_A, 3, 0, value=["view", 0, "float32", [4, 4], [4, 1], 0, "", 0, 7]),
        r"instructions\[2\]\[3\]\[0\] = 7 as item 8: has at most 8 items",
    ),
    "surplus inside a run": (
        _put("instructions", RUN_A, 6, 0, value=["alloc", 1, 1, 64, 0, 1, 9]),
        "has at most 6 items",
    ),
    "no such input": (_put("instructions", RUN_A, 3, 0, 7, value=10**6), "input = 1000000: must be -1, or"),
    "another input": (_put("instructions", RUN_B, 3, 0, 1, 0, 7, value=0), "input = 0: must be -1, or"),
    "not a list": (_put("instructions", value=3), "instructions = 3"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_executables_are_refused(name: str) -> None:
    change, message = MALFORMED[name]
    tree = json.loads(dump_executable(EXECUTABLE))
    if name == "offset unaligned":
        tree["instructions"][RUN_A][6][0][4] = 32
    change(tree)
    with pytest.raises(PlanFileError, match=message):
        load_executable(json.dumps(tree).encode())


def test_repeated_fields_are_refused() -> None:
    data = dump_executable(EXECUTABLE).replace(b'"machine": "host"', b'"machine": "host", "machine": "b"')
    with pytest.raises(PlanFileError, match="given twice"):
        load_executable(data)
    with pytest.raises(PlanFileError, match="nested"):
        load_executable(b'{"schema": 2, "graph": ' + b"[" * 100 + b"]" * 100 + b"}")


def test_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.core.checking.few.__kwdefaults__", {"most": 3})
    with pytest.raises(PlanFileError, match="at most 3 items"):
        dump_executable(EXECUTABLE)
