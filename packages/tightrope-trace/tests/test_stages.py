"""Stages of a profile: data, copies, losses that nobody calls so, optimizers that torch does not mark."""

import json

import pytest

from tightrope.core import EventPhase
from tightrope_trace import annotate, parse_profile
from tightrope_trace.slices import Slice, nested
from tightrope_trace.stages import ENGINE, stages

NODE = f"{ENGINE}: AddmmBackward0"
STEP = "Optimizer.step#SGD.step"
ZERO = "Optimizer.zero_grad#SGD.zero_grad"


def told(*names: str, **more: object) -> list[str]:
    """Stages of slices one after the other; ``a > b`` is b inside a, ``[a]`` is an annotation."""
    slices: list[Slice] = []
    for k, text in enumerate(names):
        parts = text.split(" > ")
        for depth, name in enumerate(parts):
            annotation = name.startswith("[") or name.startswith("Optimizer") or name.startswith("enumerate")
            bare = name.strip("[]")
            full = bare if annotation or "::" in bare or bare.startswith("cuda") else f"aten::{bare}"
            slices.append(Slice(full, 100 * k + depth, 100 * k + 99 - depth, annotation=annotation))
    found = stages(nested(slices), **more)  # type: ignore[arg-type]
    tops, at = [], 0
    for text in names:
        depth = len(text.split(" > "))
        tops.append(found[at + depth - 1].value)
        at += depth
    return tops


def test_copies_before_the_model_are_copies_and_casts_in_it_are_not() -> None:
    found = told("to > _to_copy > copy_", "to > _to_copy > copy_", "linear", "to > _to_copy", "linear", NODE)
    assert found == ["copy", "copy", "forward", "forward", "forward", "backward"]


def test_batches_that_are_put_together_by_hand_are_data() -> None:
    found = told("randperm", "arange", "index", "stack", "to > _to_copy", "embedding", "linear", NODE)
    assert found == [*["load_data"] * 4, "copy", "forward", "forward", "backward"]


def test_what_a_model_does_before_its_first_layer_is_no_data() -> None:
    assert told("arange", "unsqueeze", "embedding", NODE) == ["forward", "forward", "forward", "backward"]


def test_other_threads_that_only_copy_load_data() -> None:
    slices = [Slice("aten::linear", 0, 9), Slice("aten::relu", 10, 12), Slice("aten::pin_memory", 5, 20, 1)]
    ordered = nested([*slices, Slice(NODE, 30, 40, 2), Slice("aten::mm", 31, 35, 2)])
    found = dict(zip([one.name for one in ordered], stages(ordered), strict=True))
    assert found["aten::pin_memory"] is EventPhase.LOAD_DATA
    assert found["aten::linear"] is EventPhase.FORWARD
    assert found["aten::mm"] is EventPhase.BACKWARD


LOSSES = [
    ("mse", ["sub", "pow", "mean"]),
    ("cross entropy", ["flatten", "log_softmax", "gather", "neg", "mean"]),
    ("nll", ["view", "log_softmax", "view", "nll_loss_nd"]),
    ("huber", ["sub", "abs", "lt", "mul", "where", "sum"]),
    ("torch's", ["broadcast_tensors", "mse_loss"]),
    ("shifted", ["slice", "contiguous", "view", "cross_entropy_loss"]),
]


@pytest.mark.parametrize("ops", [ops for _, ops in LOSSES], ids=[name for name, _ in LOSSES])
def test_losses_are_known_by_what_they_do(ops: list[str]) -> None:
    found = told("linear", "relu", "linear", *ops, NODE)
    assert found == ["forward"] * 3 + ["loss"] * len(ops) + ["backward"]


def test_when_the_model_ran_tells_where_data_end_and_where_the_loss_begins() -> None:
    names = ("randn", "add", "linear", "sub", "pow", "square", NODE)
    inside = [name in ("linear", "sub") for name in names]
    assert told(*names, inside=inside) == [
        *["load_data"] * 2, "forward", "forward", "loss", "loss", "backward",
    ]  # fmt: skip


def test_setting_gradients_to_zero_before_the_forward_is_no_border() -> None:
    found = told("stack", "to > copy_", ZERO, "linear", "mse_loss", NODE, STEP)
    assert found == ["load_data", "copy", "optimizer", "forward", "loss", "backward", "optimizer"]


def test_an_optimizer_that_nobody_marks_ends_before_the_next_batch() -> None:
    step = ["stack", "linear", "sub", "pow", "mean", NODE, "add_", "add_"]
    stage = ["load_data", "forward", "loss", "loss", "loss", "backward", "optimizer", "optimizer"]
    assert told(*step, *step) == stage * 2


def test_clipping_gradients_is_of_the_optimizer_and_printing_the_loss_is_of_no_stage() -> None:
    found = told("linear", "mse_loss", NODE, "_foreach_norm", "stack", "mul_", STEP, "item")
    assert found == ["forward", "loss", "backward", *["optimizer"] * 4, "other"]


def test_ranges_whose_names_are_stages_are_believed() -> None:
    found = told(
        "[get_batch] > rand", "[forward] > linear", "[my criterion] > foo", "[bwd] > ones_like", NODE
    )
    assert found == ["load_data", "forward", "loss", "backward", "backward"]
    assert told("[DistributedDataParallel.forward] > rand", "linear", NODE)[0] == "forward"


def test_drivers_know_best_what_is_copied() -> None:
    rows = [
        ("cpu_op", "aten::to", 0, 10), ("cpu_op", "aten::_to_copy", 1, 8),
        ("cuda_runtime", "cudaMemcpyAsync", 2, 3),
        ("cpu_op", "aten::to", 20, 10), ("cpu_op", "aten::copy_", 21, 8),
        ("cpu_op", "aten::linear", 40, 10), ("cpu_op", NODE, 60, 10),
    ]  # fmt: skip
    text = json.dumps(
        [{"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in rows]
    )
    slices = parse_profile(text.encode())
    assert [one.moves for one in slices] == [True, True, False, False, False, False]
    phases = [event.phase.value for event in annotate(slices).events]
    assert phases == ["copy", "copy", "forward", "forward", "forward", "backward"]
