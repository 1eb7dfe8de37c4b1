"""Profiles of strangers: their modules, and those that are none."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planned import Net

from tightrope.core import EventPhase, Module, PlanFileError
from tightrope_trace import annotate, dump, load, parse_profile, tree_of
from tightrope_trace.align import align
from tightrope_trace.paths import cheapest_path
from tightrope_trace.slices import Slice


def test_a_profile_without_annotations_finds_its_modules() -> None:
    ops = ["linear", "gelu", "linear", "cross_entropy_loss"]
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{op}", "ts": k, "dur": 1} for k, op in enumerate(ops)
    ]
    names = ["CrossEntropyLossBackward0", "LinearBackward0", "GeluBackward0", "LinearBackward0"]
    rows += [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"autograd::engine::evaluate_function: {n}",
            "ts": 9 + k,
            "dur": 1,
        }
        for k, n in enumerate(names)
    ]
    trace = annotate(parse_profile(json.dumps({"traceEvents": rows}).encode()), tree_of(Net()))
    paths = [trace.modules[event.module].path for event in trace.events]
    assert paths == ["first", "act", "second", "loss", "loss", "second", "act", "first"]
    assert [event.phase for event in trace.events[2:5]] == [
        EventPhase.FORWARD,
        EventPhase.LOSS,
        EventPhase.BACKWARD,
    ]


def test_an_activation_that_runs_twice_and_children_out_of_order() -> None:
    block = [("conv1", "Conv2d"), ("conv2", "Conv2d"), ("relu", "ReLU"), ("norm", "LayerNorm")]
    tree = [Module("")]
    for number in range(3):
        tree.append(Module(f"{number}", "Block", 0))
        parent = len(tree) - 1
        tree += [Module(f"{number}.{name}", kind, parent) for name, kind in block]
    names = ["layer_norm", "conv2d", "relu", "conv2d", "relu"] * 3
    wanted = [f"{k}.{n}" for k in range(3) for n in ("norm", "conv1", "relu", "conv2", "relu")]
    assert [tree[k].path for k in align([f"aten::{name}" for name in names], tree)] == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 12))
def test_native_and_python_alignments_cost_the_same(seed: int, slots: int, items: int) -> None:
    import numpy as np

    rng = random.Random(seed)
    cost = np.array([[rng.randrange(20) for _ in range(slots)] for _ in range(4)])
    kinds = [rng.randrange(4) for _ in range(items)]
    skip = [rng.randrange(6) for _ in range(slots)]
    family = [rng.randrange(3) for _ in range(slots)]
    paths = [
        cheapest_path(kinds, cost, skip, family, back=2, far=5, native=native) for native in (True, False)
    ]
    assert paths[0] == paths[1]


def test_modules_that_are_no_tree_are_refused_before_a_profile_is_told_by_them() -> None:
    with pytest.raises(PlanFileError, match=r"modules\[1\].parent"):
        annotate([Slice("aten::linear", 0, 5)], (Module(""), Module("fc", "Linear", 7)))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'{"traceEvents": 3}', b"{" * 100_000,
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": NaN}]}',
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 0, "dur": -5}]}',
     b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e300, "dur": 1e300}]}'],
)  # fmt: skip
def test_profiles_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(PlanFileError, match="profile"):
        parse_profile(data)


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_long_names_do_no_harm(size: int) -> None:
    row = {"ph": "X", "cat": "cpu_op", "name": "<script>" + "x" * 10 * size, "ts": 0, "dur": 1}
    trace = annotate(parse_profile(json.dumps({"traceEvents": [row]}).encode()))
    assert len(trace.events[0].name) <= 1000
    assert load(dump(trace)) == trace
