"""Round trips, and files that must be refused."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import (
    Allocation,
    Buffer,
    Certificate,
    Compute,
    Event,
    Flag,
    Forecast,
    Free,
    Graph,
    Kind,
    Limits,
    Op,
    PageIn,
    PageOut,
    Phase,
    Plan,
    PlanFileError,
    QualityLimit,
    Reason,
    Schedule,
    Storage,
    Trace,
    Wait,
)
from tightrope.core.codec import (
    dump_graph,
    dump_plan,
    dump_trace,
    load_graph,
    load_plan,
    load_trace,
    read_file,
)

GRAPH = Graph(
    (
        Op(
            0,
            "a",
            "aten.a",
            (0,),
            (1,),
            ns=7,
            module="net.a",
            source="model.py:1",
            allocations=(Allocation(10, -1, 0, 2), Allocation(100, 1, 1)),
        ),
        Op(
            1,
            "drop",
            "aten.drop",
            (1,),
            (2, 3),
            flags=Flag.RANDOM | Flag.COLLECTIVE,
            phase=Phase.LOSS,
            variant=3,
        ),
        Op(2, "b", "aten.b_", (0, 2), (), (0,), flags=Flag.IN_PLACE),
    ),
    (
        Storage(0, 64, Kind.PARAMETER, external=True),
        Storage(1, 100, label="float32[25]"),
        Storage(2, 100, resident_at_end=True),
        Storage(3, 25, Kind.RANDOM_STATE, outside=True),
    ),
    (Op(3, "drop_again", "tightrope.mask", (1, 3), (2,)),),
    name="net",
    environment=(("device", "cpu"), ("threads", "2")),
)
PLAN = Plan(
    GRAPH.fingerprint,
    Schedule((Compute(0), Compute(1, (3,)), Free(1), PageOut(1), PageIn(1, 2), Wait(1))),
    (0, 64, -1),
    10**6,
    Forecast(64, 300, 320, 64, 7, 7, 0.5),
    Certificate(100, 0, ns_bound=7, versions=(("tightrope", "0.1"),)),
    (Reason(1, "kept", 100, 7, 1, "bécause"),),
    Limits((10**6,), seconds=1.5, joules=2.0),
)
TRACE = Trace("observed", (Buffer(100, 0, 3, 64, 1), Buffer(0, 1, 2)), (Event(0, 5, 0, "a"),), 3)
CASES = {
    "graph": (GRAPH, dump_graph, load_graph),
    "plan": (PLAN, dump_plan, load_plan),
    "trace": (TRACE, dump_trace, load_trace),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_written_is_read_back(kind: str) -> None:
    value, dump, load = CASES[kind]
    data = dump(value)
    assert load(data) == value
    assert dump(load(data)) == data
    assert load(json.dumps(json.loads(data)).encode()) == value
    assert data.endswith(b"}\n")
    assert max(len(line) for line in data.splitlines()) < 120


IDS = st.integers(0, 2**31 - 1)
BYTES = st.integers(0, 2**62)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
STEPS = st.one_of(
    st.builds(Compute, IDS, st.lists(IDS, max_size=3, unique=True).map(tuple)),
    st.builds(Free, IDS),
    st.builds(PageOut, IDS, st.integers(1, 16)),
    st.builds(PageIn, IDS, st.integers(1, 16)),
    st.builds(Wait, IDS),
)
NUMBERS = st.floats(0, 1e300)
REASONS = st.builds(Reason, IDS, st.sampled_from(["kept", "recomputed", "paged"]), BYTES, BYTES, IDS, TEXT)
VERSIONS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
PLANS = st.builds(
    Plan,
    fingerprint=st.text("0123456789abcdef", min_size=64, max_size=64),
    schedule=st.builds(Schedule, st.lists(STEPS, max_size=12).map(tuple)),
    offsets=st.lists(st.integers(-1, 2**62), max_size=8).map(tuple),
    budget=BYTES,
    forecast=st.builds(Forecast, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, NUMBERS),
    certificate=st.builds(
        Certificate,
        BYTES,
        st.integers(-1, 99),
        TEXT,
        BYTES,
        st.booleans(),
        BYTES,
        VERSIONS,
    ),
    reasons=st.lists(REASONS, max_size=4, unique_by=lambda reason: reason.storage).map(tuple),
    limits=st.builds(
        Limits,
        st.lists(BYTES, max_size=3).map(tuple),
        st.none() | NUMBERS,
        st.none() | NUMBERS,
        st.none()
        | st.builds(
            QualityLimit,
            st.just(("degrees", "accuracy")),
            st.tuples(st.booleans(), st.booleans()),
            st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
        ),
    ),
    machine=TEXT,
    planner=TEXT,
)


def test_a_plan_without_the_limit_on_quality_is_read() -> None:
    """Older files have no such field."""
    tree = json.loads(dump_plan(PLAN))
    del tree["limits"]["quality"], tree["forecast"]["quality"]
    assert load_plan(json.dumps(tree).encode()) == PLAN


@given(PLANS)
@settings(max_examples=100, deadline=None)
def test_any_plan_survives(plan: Plan) -> None:
    assert load_plan(dump_plan(plan)) == plan


@given(st.lists(st.tuples(BYTES, st.integers(0, 50), st.integers(1, 50), st.integers(-1, 9)), max_size=10))
@settings(deadline=None)
def test_any_trace_survives(drawn: list[tuple[int, int, int, int]]) -> None:
    buffers = [Buffer(size, start, start + length, -1, s) for size, start, length, s in drawn]
    trace = Trace("forecast", tuple(sorted(buffers, key=lambda b: b.start)), num_events=100)
    assert load_trace(dump_trace(trace)) == trace


HUGE = 2**62 + 1
ANYWHERE: list[object] = [None, True, 1.5, "1", HUGE, -HUGE, 2**200, [], {}, "x" * 10_001]
EDITS: dict[str, list[tuple[str, list[object]]]] = {
    "plan": [
        ("fingerprint", [*ANYWHERE, "", "0" * 63, "G" * 64, "0" * 64 + "\n"]),
        ("schedule", [None, 1, "x", [], {}]),
        ("schedule.steps", [None, 1, "x", {}]),
        (
            "schedule.steps.0",
            [*ANYWHERE, ["compute"], ["zap", 1], [1, 1], ["compute", 1, [], 3], ["free", 1] * 2],
        ),
        ("schedule.steps.0.1", [None, True, -1, 2**31, 0.5, "0", HUGE]),
        ("schedule.steps.1.2", [None, 3, [1.5], [-1], [2**31], [3, 3], ["3"], [[3]]]),
        ("schedule.steps.3.2", [-1, 0, 17, None]),
        ("offsets", [None, 3, [None], [-2], [1.0], [HUGE], [True], "00"]),
        ("budget", [None, True, -1, 1.5, "1", HUGE]),
        ("forecast", [None, [], {}]),
        ("forecast.peak", [None, True, -1, 1.5, "1", HUGE]),
        ("forecast.joules", [None, True, -1.0, "1", HUGE, []]),
        ("certificate.witness", [None, -2, 2**31, 0.5]),
        ("certificate.proved", [None, 0, 1, "true"]),
        ("certificate.versions", [None, [["a"]], [["a", "b", "c"]], [[1, 2]]]),
        ("reasons.0.decision", [None, "dropped", 1]),
        ("reasons.0.copies", [-1, None, 2**31]),
        ("reasons.0.storage", [-1, 2**31, None]),
        ("reasons.0.text", [None, 5, "x" * 10_001, "\ud800"]),
        ("limits.seconds", [-1.0, "1", True, []]),
        ("limits.bytes", [[-1], [0.5], None]),
        ("limits.quality", [1, [], {}, {"metrics": ["a"]}, {"metrics": [], "rising": [], "corners": []}]),
        ("forecast.quality", [None, ["1"], [0.5]]),
        ("schema", [*ANYWHERE, 0, 1, 3, -1, 1.0]),
    ],
    "graph": [
        ("ops", [None, 1, {}, [None]]),
        ("ops.0", [None, [], {}]),
        ("ops.0.id", [None, 1, -1, HUGE]),
        ("ops.0.reads", [[4], [-1], [1], [2], [0, 0], ["0"], None]),
        ("ops.1.reads", [[1, 0], [3]]),
        ("ops.0.creates", [[], [0], [1, 1], [9], [2], [1, 2]]),
        ("ops.2.mutates", [[1], [3], [0, 0], [-1]]),
        ("ops.0.ns", [-1, None, 0.5, HUGE]),
        ("ops.0.flags", [-1, 64, 2**40, 1.0, "1", None, True]),
        ("ops.0.phase", ["sideways", None, 1]),
        ("ops.1.variant", [-2, 0, 2, 4, -1]),
        ("ops.2.variant", [3]),
        (
            "ops.0.allocations.0",
            [[], None, [10, -1, 0], [10, -1, 0, 0], [10, -1, 0, -1], [10, -1, -1, 2], [10, -1, 0, 2, 5]],
        ),
        ("ops.0.allocations.1", [[99, 1, 1], [100, 2, 1], [100, 1, 1, 3], [100, 1, -1], [100, -2, 1]]),
        ("ops.0.allocations", [[[10, -1, 0, 2]], [[100, 1, 0], [100, 1, 1]], [[100, 1, 5], [10, -1, 3, 6]]]),
        ("storages", [[], None, [None]]),
        ("storages.1.id", [0, 2, -1, None]),
        ("storages.1.bytes", [-1, 101, 1.5, HUGE, None]),
        ("storages.0.bytes", [2**62]),
        ("storages.1.alignment", [0, -64, 3, 2**31, None]),
        ("storages.1.external", [True, None, 1]),
        ("storages.0.external", [False]),
        ("storages.1.kind", ["treasure", None, 5]),
        ("storages.1.label", ["x" * 10_001, None]),
        ("variants.0.id", [0, 4]),
        ("variants.0.creates", [[1], [0], [], [2, 3]]),
        ("variants.0.reads", [[2, 3], [9], [3, 1]]),
        ("variants.0.mutates", [[1]]),
        ("variants.0.variant", [3]),
        ("variants", [[], None]),
        ("alignment", [0, 3, -64, None, 0.5]),
        ("environment", [None, [["a"]], [[1, 2]], {"a": "b"}]),
        ("schema", [None, 0, 1, 3, "2", True]),
    ],
    "trace": [
        ("source", ["guessed", None, 1]),
        ("buffers", [None, 1, [None], [[]]]),
        ("buffers.0", [None, [1, 2], [1, 0, 3, 0, 1, 9], {}]),
        ("buffers.0.0", [-1, None, 0.5, HUGE]),
        ("buffers.0.1", [-1, 2, 3, None]),
        ("buffers.0.2", [0, -1, 4, None]),
        ("buffers.0.3", [-2, None]),
        ("buffers.0.4", [-2, 2**31]),
        ("events.0.0", [-1, 6, None]),
        ("events.0.2", [-2, 2**31]),
        ("num_events", [-1, 0, 2, 10**9, HUGE, None, 0.5]),
        ("schema", [None, 0, 1, 3, "2"]),
    ],
}
HARMLESS = {("graph", "variants.0.creates", "[]")}


def edited(kind: str, path: str, value: object) -> bytes:
    tree: Any = msgspec.json.decode(CASES[kind][1](CASES[kind][0]))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target = tree
    for part in parents:
        target = target[part]
    target[last] = value
    return json.dumps(tree).encode()


WRONG = [
    (kind, path, value)
    for kind, edits in EDITS.items()
    for path, values in edits
    for value in values
    if (kind, path, repr(value)) not in HARMLESS
]


@pytest.mark.parametrize(("kind", "path", "value"), WRONG, ids=lambda part: str(part)[:30])
def test_a_wrong_value_is_refused(kind: str, path: str, value: object) -> None:
    with pytest.raises(PlanFileError, match=r"\$"):
        CASES[kind][2](edited(kind, path, value))


def test_there_are_enough_wrong_values() -> None:
    assert len(WRONG) >= 200


RAW: list[bytes] = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"1",
    b'"plan"',
    b"{}",
    b"{",
    b"}",
    b"{]",
    b'{"schema":',
    b'{"schema":2',
    b"nonsense",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b'{"schema": 2, "\xff": 2}',
    b'{"schema": 2}x',
    b'{"schema": 2,}',
    b"{'schema': 1}",
    b'{"schema": NaN}',
    b'{"schema": Infinity}',
    b'{"schema": -Infinity}',
    b'{"schema": 2e999}',
    b'{"schema": 2.0}',
    b'{"schema": 2, "schema": 1}',
    b'{"schema": 2, "a": {"b": 1, "b": 2}}',
    b'{"schema": ' + b"9" * 5000 + b"}",
    b"[" * 100_000,
    b'{"schema":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"schema": 2, "x": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"schema": 2, "\\ud800": 1}',
    b"\x00",
    b'{"schema": "\x00"}',
    b'{"schema": 2, "__class__": "os.system"}',
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x95",
    b"PK\x03\x04",
    b'{"schema": 99999999999999999999999999}',
    b'{"schema": -1}',
    b'{"schema": []}',
    b'{"schema": null}',
]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("data", RAW, ids=lambda data: repr(data[:25]))
def test_data_that_is_no_such_file_is_refused(kind: str, data: bytes) -> None:
    with pytest.raises(PlanFileError):
        CASES[kind][2](data)


@pytest.mark.parametrize("kind", CASES)
def test_a_missing_unknown_or_repeated_field_is_refused(kind: str) -> None:
    value, dump, load = CASES[kind]
    tree = msgspec.json.decode(dump(value))
    required = {
        "graph": ["ops", "storages"],
        "trace": ["source", "buffers"],
        "plan": ["fingerprint", "offsets"],
    }[kind]
    for name in [*required, "schema"]:
        with pytest.raises(PlanFileError, match=name):
            load(json.dumps({key: item for key, item in tree.items() if key != name}).encode())
    with pytest.raises(PlanFileError, match="unknown field 'surprise'"):
        load(json.dumps({**tree, "surprise": 1}).encode())
    with pytest.raises(PlanFileError, match="'schema' is given twice"):
        load(dump(value).rstrip()[:-1] + b', "schema": 2}')


def test_the_message_names_the_field_and_quotes_the_value() -> None:
    with pytest.raises(
        PlanFileError, match=r"plan: \$\.schedule\.steps\[0\]\.op = -5: must be between 0 and 2147483647"
    ):
        load_plan(edited("plan", "schedule.steps.0.1", -5))
    with pytest.raises(PlanFileError, match=r"plan: \$\.budget = 'much': Expected `int`, got `str`"):
        load_plan(edited("plan", "budget", "much"))
    with pytest.raises(
        PlanFileError, match=r"graph: \$\.ops\[1\]\.reads = 3: must be made by the caller or by an earlier op"
    ):
        load_graph(edited("graph", "ops.1.reads", [3]))
    with pytest.raises(
        PlanFileError, match="newer than this version, which reads schema 2; update tightrope"
    ):
        load_plan(edited("plan", "schema", 3))
    with pytest.raises(
        PlanFileError, match="older than this version, which reads schema 2; make the plan again"
    ):
        load_plan(edited("plan", "schema", 0))


def test_the_schema_is_checked_before_the_layout() -> None:
    with pytest.raises(PlanFileError, match="newer"):
        load_plan(b'{"schema": 3, "layout": {"of": "the future"}}')


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_are_refused_or_mean_something(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(CASES)))
    value, dump, load = CASES[kind]
    good = json.dumps(msgspec.json.decode(dump(value))).encode()
    position = data.draw(st.integers(0, len(good) - 1))
    length = data.draw(st.integers(0, 8))
    patch = data.draw(
        st.binary(max_size=4) | st.sampled_from([b"-", b"9" * 20, b"[", b"}", b",", b'"', b"NaN", b"null"])
    )
    try:
        loaded = load(good[:position] + patch + good[position + length :])
    except PlanFileError:
        return
    assert load(dump(loaded)) == loaded


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@settings(deadline=None)
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for _, _, load in CASES.values():
        with pytest.raises(PlanFileError):
            load(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(WRONG), JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_in_any_field_is_refused_or_means_something(
    place: tuple[str, str, object], value: object
) -> None:
    kind, path, _ = place
    _, dump, load = CASES[kind]
    try:
        loaded = load(edited(kind, path, value))
    except PlanFileError:
        return
    assert load(dump(loaded)) == loaded


@pytest.mark.parametrize(
    "plan",
    [
        msgspec.structs.replace(PLAN, budget=2**80),
        msgspec.structs.replace(PLAN, machine="\ud800"),
        msgspec.structs.replace(PLAN, machine="x" * 10_001),
        msgspec.structs.replace(PLAN, limits=Limits(seconds=float("nan"))),
        msgspec.structs.replace(PLAN, forecast=Forecast(1, 2, 3, joules=float("inf"))),
        msgspec.structs.replace(PLAN, schedule=Schedule((Compute(-1),))),
        msgspec.structs.replace(PLAN, forecast=Forecast(1, 2, 3, quality=(1.0,))),
        *(
            msgspec.structs.replace(PLAN, limits=Limits(quality=QualityLimit(*given)))
            for given in (
                ((), (), ()),
                (("a", "a"), (True, True), ()),
                (("a",), (True, False), ()),
                (("a",), (True,), ((1.0, 2.0),)),
                (("a",), (True,), ((float("inf"),),)),
            )
        ),
    ],
)
def test_what_could_not_be_read_back_is_not_written(plan: Plan) -> None:
    with pytest.raises(PlanFileError):
        dump_plan(plan)


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump_plan(PLAN)
    monkeypatch.setattr("tightrope.core.checking.few.__kwdefaults__", {"most": 5})
    with pytest.raises(
        PlanFileError, match=r"steps = an array of 6 items: must be an array of at most 5 items"
    ):
        load_plan(data)


def test_too_much_data_is_refused_before_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump_plan(PLAN)
    monkeypatch.setattr("tightrope.core.json_text.MAX_FILE_BYTES", len(data) - 1)
    with pytest.raises(PlanFileError, match="the most that is read"):
        load_plan(data)


def test_too_many_values_are_refused_before_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump_plan(PLAN)
    monkeypatch.setattr("tightrope.core.json_text._MAX_VALUES", 10)
    with pytest.raises(PlanFileError, match="with 10 values"):
        load_plan(data)


def test_files_are_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(dump_plan(PLAN))
    assert load_plan(read_file(file)) == PLAN
    assert read_file(str(file), limit=file.stat().st_size) == file.read_bytes()
    with pytest.raises(PlanFileError, match="is larger than"):
        read_file(file, limit=file.stat().st_size - 1)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", "bad\0name", ""):
        with pytest.raises(PlanFileError):
            read_file(path)
