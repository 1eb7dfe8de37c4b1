"""Saved steps: the same bits in a process that captures nothing, and damaged files refused."""

import gc
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.cli.command import run
from tests.run.stepping import SGD, AdamW, batches, loss_of, mlp
from tests.run.training import budget_for
from tightrope import SavedStep, load, save
from tightrope.core import Graph, InfeasibleError, JudgeError, PlanFileError, TightropeError
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.price.kernels import resolve
from tightrope.run.compile import compile as planned
from tightrope.run.ledger.optimizer import assumed_update, by_page
from tightrope.run.step import step

FRAME = struct.Struct("<16sQQ")
LARGE = "64MiB"
FRESH = """
import sys, torch
torch.set_num_threads(1)
from tightrope.cli import main
try:
    main(["run", sys.argv[1], "--json"])
finally:
    wrong = {"torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd"} & set(sys.modules)
    assert not wrong, wrong
"""


@dataclass
class Kept:
    """A saved step, and what the next step gave in the process that saved it."""

    path: Path
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    random_state: torch.Tensor


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    model, (x, y) = mlp(), batches(1)[0]
    with pytest.raises(InfeasibleError) as refused:
        step(loss_of(model), budget="1%", model=model)(x, y)
    assert refused.value.smallest_found is not None
    sizes = [parameter.nbytes for parameter in model.parameters()]
    later = assumed_update(sizes).state + sum(map(by_page, sizes))  # nothing is updated here
    train = step(loss_of(model), budget=refused.value.smallest_found - later + 16384, model=model)
    train(x, y)
    model.zero_grad()
    path = tmp_path_factory.mktemp("saved") / "net.step"
    state = torch.get_rng_state()
    save(train, path, (x, y))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    loss = train(x, y)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    random_state = torch.get_rng_state()
    assert train.report().num_recomputed > 0
    train.accounts.release(train)
    return Kept(path, loss, gradients, buffers, random_state)


def repeat(saved: SavedStep) -> dict[str, torch.Tensor]:
    torch.set_rng_state(saved.random_state)
    return saved()


def assert_as_forecast(saved: SavedStep) -> None:
    assert saved.observed.observed_peak == saved.observed.forecast_peak
    assert not saved.observed.divergences
    assert saved.proof.checked


def test_a_loaded_step_gives_the_same_bits(kept: Kept) -> None:
    saved = load(kept.path, budget=LARGE)
    results = repeat(saved)
    assert torch.equal(results["loss"], kept.loss)
    for name, gradient in kept.gradients.items():
        assert torch.equal(results[f"gradient of {name}"], gradient), name
    for name, buffer in kept.buffers.items():
        assert torch.equal(saved.state[name], buffer), name
    assert torch.equal(torch.get_rng_state(), kept.random_state)
    assert list(saved.inputs) == ["input 0", "input 1"]
    assert saved.proof.num_again > 0
    assert_as_forecast(saved)


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bits_without_dynamo(kept: Kept) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(kept.path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    here = json.loads(run("run", kept.path, "--json", "--budget", LARGE).out)
    assert found["digests"] == here["digests"]
    assert found["losses"] == [kept.loss.item()]
    assert found["as_forecast"]
    assert found["enforced"]


def test_results_for_another_batch_and_more_steps(kept: Kept) -> None:
    saved = load(kept.path, budget=LARGE, verify=None)
    one = repeat(saved)["loss"]
    other = saved({"input 0": torch.zeros(128, 16)})["loss"]
    assert one != other
    assert saved.observed.num_steps == 2
    assert not saved.proof.checked
    with pytest.raises(TightropeError, match=r"'x'; there are: input 0, input 1"):
        saved({"x": torch.zeros(1)})
    with pytest.raises(TightropeError, match="planned for"):
        saved({"input 0": torch.zeros(3, 16)})


@pytest.mark.parametrize("wrong", [5, {"x": 3}])
def test_inputs_that_are_no_tensors_by_name_are_refused(kept: Kept, wrong: Any) -> None:
    with pytest.raises(TightropeError, match=r"inputs.*: give a (dict of )?tensor"):
        load(kept.path, budget=LARGE)(wrong)


def test_the_budget_is_held(kept: Kept) -> None:
    with pytest.raises(InfeasibleError, match="smallest feasible found") as refused:
        load(kept.path, budget="100KB")
    assert refused.value.smallest_found is not None
    saved = load(kept.path, budget=LARGE)
    saved._accounts.hold(saved, saved._accounts.charged())
    with pytest.raises(torch.OutOfMemoryError):
        saved()


def test_beside_a_living_model_the_budget_that_is_named_is_enough_and_used(tmp_path: Path) -> None:
    gc.collect()
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*layers), torch.ones(1024, 128)
    planned(model, budget=budget_for(model, (x,)) + (320 << 10), progress=False)
    model(x).sum().backward()
    save(model, tmp_path / "net.step", (x,))
    with pytest.raises(OutOfBudgetError) as refused:
        load(tmp_path / "net.step")()
    named = refused.value.budget_to_try
    assert named is not None
    del refused
    gc.collect()
    saved = load(tmp_path / "net.step", budget=named)
    saved()
    assert 0.9 * named < saved.observed.charged <= named


@pytest.mark.parametrize(
    "make", [lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=False), lambda p: AdamW(p, 0.01)]
)
def test_updates_go_on_where_they_were(make: Callable[[Any], Any], tmp_path: Path) -> None:
    model, (x, y) = mlp(), batches(1)[0]
    train = step(loss_of(model), budget=LARGE, model=model, optimizer=make(list(model.parameters())))
    train(x, y)
    save(train, tmp_path / "net.step", (x, y))
    losses = [train(x, y).item() for _ in range(3)]
    saved = load(tmp_path / "net.step", budget=LARGE)
    assert [repeat(saved)["loss"].item(), *(saved()["loss"].item() for _ in range(2))] == losses
    for name, value in model.state_dict().items():
        assert torch.equal(saved.state[name], value), name
    assert_as_forecast(saved)


def test_a_compiled_model_is_saved_with_its_backward(tmp_path: Path) -> None:
    model, (x, _) = mlp(), batches(1)[0]
    planned(model, budget=LARGE)
    model(x).sum().backward()
    save(model, tmp_path / "net.step", (x,))
    model.zero_grad()
    out = model(x)
    out.sum().backward()
    saved = load(tmp_path / "net.step", budget=LARGE)
    results = repeat(saved)
    assert torch.equal(results["output 0"], out)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(results[f"gradient of {name}"], parameter.grad), name
    torch.set_rng_state(saved.random_state)
    twice = saved(tangents=[torch.full((128, 8), 2.0)])["gradient of 9.bias"]
    assert torch.equal(twice, 2 * results["gradient of 9.bias"])
    with pytest.raises(TightropeError, match="0 tangents given; the backward starts from 1"):
        saved(tangents=[])
    assert_as_forecast(saved)


def test_inference_is_saved_too(tmp_path: Path) -> None:
    model, (x, _) = mlp().eval(), batches(1)[0]
    planned(model, budget=LARGE)
    with torch.no_grad():
        out = model(x)
        save(model, tmp_path / "net.step", (x,))
    saved = load(tmp_path / "net.step", budget=LARGE)
    assert list(results := saved()) == ["output 0"]
    assert torch.equal(results["output 0"], out)
    assert_as_forecast(saved)


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    model, (x, y) = mlp(), batches(1)[0]
    train = step(loss_of(model), budget=LARGE, model=model)
    with pytest.raises(TightropeError, match="make it once, then save it"):
        save(train, tmp_path / "net.step", (x, y))
    with pytest.raises(TightropeError, match="give a tuple"):
        save(train, tmp_path / "net.step", x)  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="was not compiled"):
        save(mlp(), tmp_path / "net.step", (x,))
    assert not list(tmp_path.iterdir())


def test_what_is_missing_in_a_call_is_said(tmp_path: Path) -> None:
    model, x = planned(mlp(), budget=LARGE), batches(1)[0][0]
    model(x).sum().backward()
    with pytest.raises(TightropeError, match=r"missing a required argument: 'input'.*save\(step, path"):
        save(model, tmp_path / "net.step")
    for wrong in (None, 3):
        with pytest.raises(TightropeError, match=f"path={wrong}: give the path"):
            load(wrong)  # type: ignore[arg-type]
        with pytest.raises(TightropeError, match=f"path={wrong}: give the path"):
            save(model, wrong, (x,))  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match=r"no folder '.*absent' to write 'net\.step' in"):
        save(model, tmp_path / "absent" / "net.step", (x,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda rows: [["weight_decoy" if n == "weight_decay" else n, v] for n, v in rows], "weight_decoy"),
        (lambda rows: rows[1:], "there are weight_decay"),
        (lambda rows: [*rows, rows[0]], "decoupled_weight_decay, lr"),
        (lambda rows: [[n, v * 2 if n == "lr" else v] for n, v in rows], "lr has 2 numbers"),
    ],
)
def test_options_of_an_update_are_those_of_its_rule(
    options: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    model, (x, y) = mlp(), batches(1)[0]
    train = step(loss_of(model), budget=LARGE, model=model, optimizer=AdamW(model.parameters(), 0.01))
    train(x, y)
    path = tmp_path / "net.step"
    save(train, path, (x, y))
    tree, data = parts(path.read_bytes())
    tree["updates"][1]["options"] = options(tree["updates"][1]["options"])
    path.write_bytes(joined(tree, data))
    with pytest.raises(PlanFileError, match=rf"updates\[1\]\.options: .*{message}"):
        load(path, budget=LARGE)


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    _, header, _ = FRAME.unpack(data[: FRAME.size])
    end = FRAME.size + header
    return json.loads(data[FRAME.size : end]), data[end + -end % 64 :]


def joined(tree: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(tree).encode()
    head = FRAME.pack(b"tightrope step 1", len(header), len(data)) + header
    return head + b"\0" * (-len(head) % 64) + data


def changed(*path: int | str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        at: Any = tree
        for one in path[:-1]:
            at = at[one]
        at[path[-1]] = value

    return change


def with_target(target: str) -> Callable[[dict[str, Any]], None]:
    """Name another op in the graph and in the executable alike."""

    def change(tree: dict[str, Any]) -> None:
        tree["graph"]["ops"][0]["target"] = target
        for item in tree["executable"]["instructions"]:
            if item[0] == "run" and item[1] == 0:
                item[2] = target

    return change


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "fingerprint": (with_target("aten.relu.default"), "the fingerprint of"),
    "extent offset": (changed("extents", 1, 1, value=1), "where the one before ends"),
    "extent bytes": (changed("extents", 0, 2, value=2**40), "extents"),
    "extent storage": (changed("extents", 0, 0, value=99), "one for each storage"),
    "random state": (changed("random_state", 2, value=2**30), "random_state.bytes = 1073741824"),
    "names": (changed("inputs", value=[]), "one per input"),
    "same name": (changed("inputs", 1, 0, value="0.weight"), "given once"),
    "role": (changed("inputs", 0, 1, value="root"), "root"),
    "outputs": (changed("outputs", value=[[]]), "one name for each output"),
    "changed": (changed("changed", value=[[0, 10**6]]), "changed"),
    "rule": (changed("rule", value="os.system"), "os.system"),
    "budget": (changed("budget", value=0), "budget = 0"),
    "unknown field": (changed("code", value="import os"), "unknown field 'code'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_headers_are_refused(name: str, kept: Kept, tmp_path: Path) -> None:
    change, message = DAMAGED[name]
    tree, data = parts(kept.path.read_bytes())
    change(tree)
    path = tmp_path / "bad.step"
    path.write_bytes(joined(tree, data))
    with pytest.raises(PlanFileError, match=message):
        load(path, budget=LARGE)


def test_damaged_files_are_refused(kept: Kept, tmp_path: Path) -> None:
    whole, path = kept.path.read_bytes(), tmp_path / "bad.step"
    for data, message in (
        (b"", "is no saved step"),
        (b"PK\3\4" + whole, "is no saved step"),
        (whole[:20], "is cut off"),
        (whole[:-64], "is cut off or damaged"),
        (whole + b"\0", "is cut off or damaged"),
        (FRAME.pack(whole[:16], 2**60, 0), "bytes of the header"),
        (FRAME.pack(whole[:16], 8, 2**62) + whole[32:], "bytes of the data"),
        (whole[:32] + b"x" + whole[33:], "not JSON"),
        (whole.replace(b'"budget":', b'"budget": 1, "budget":', 1), "is cut off or damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(PlanFileError, match=message):
            load(path)
        assert run("run", path).code == 2
    tree, data = parts(whole)
    text = json.dumps(tree).replace('"budget":', '"budget": 1, "budget":', 1)
    head = FRAME.pack(whole[:16], len(text), len(data)) + text.encode()
    path.write_bytes(head + b"\0" * (-len(head) % 64) + data)
    with pytest.raises(PlanFileError, match="'budget' is given twice"):
        load(path)
    with pytest.raises(PlanFileError, match="is not a file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("aten.from_file.default", "reaches beyond its tensors"),
        ("aten.mm.__init__", "is no overload"),
        ("aten.__class__.mro", "is no overload"),
        ("aten.mm.nothing", "has no op"),
        ("os.path.join", "is of the library 'os'"),
        ("profiler._record_function_enter.default", "is of the library 'profiler'"),
        ("tightrope.nothing", "is no op"),
    ],
)
def test_only_overloads_of_ops_are_called(target: str, message: str, kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match=message):
        resolve(target, allow=())
    tree, data = parts(kept.path.read_bytes())
    with_target(target)(tree)
    path = tmp_path / "bad.step"
    path.write_bytes(resealed(tree, data))
    with pytest.raises(TightropeError, match=message):
        load(path, budget=LARGE)


def resealed(tree: dict[str, Any], data: bytes) -> bytes:
    """A file whose graph has been changed, with the fingerprint that belongs to it."""
    tree["executable"]["graph"] = msgspec.convert(tree["graph"], Graph).fingerprint
    return joined(tree, data)


def test_what_the_judge_refuses_does_not_run(kept: Kept, tmp_path: Path) -> None:
    tree, data = parts(kept.path.read_bytes())
    instructions = tree["executable"]["instructions"]
    first = next(k for k, item in enumerate(instructions) if item[0] == "release")
    del instructions[first]
    path = tmp_path / "bad.step"
    path.write_bytes(joined(tree, data))
    with pytest.raises(JudgeError):
        load(path, budget=LARGE)


def test_the_command_prints_lines_and_ends_with_stable_codes(kept: Kept, tmp_path: Path) -> None:
    shown = run("run", kept.path, "--budget", LARGE, "--steps", "2")
    assert shown.code == 0
    assert "2 steps of" in shown.out
    assert "judged at" in shown.out
    assert "checked in its first run" in shown.out
    small = run("run", kept.path, "--budget", "100KB")
    assert (small.code, small.out) == (3, "")
    assert small.err.startswith("tightrope: asked 97.66 KiB; smallest feasible found")
    assert run("run", tmp_path / "none.step").code == 2
    assert "tightrope run train.step" in run("run", "--help").out


def test_views_are_saved_where_they_were_captured(tmp_path: Path) -> None:
    model, rows = mlp(), torch.randn(256, 16)
    y = torch.zeros(128, dtype=torch.long)
    train = step(loss_of(model), budget=LARGE, model=model)
    train(rows[:128], y)
    model.zero_grad()
    save(train, tmp_path / "net.step", (rows[128:], y))
    saved = load(tmp_path / "net.step", budget=LARGE)
    assert torch.equal(saved.inputs["input 0"], rows[128:])
    loss = train(rows[128:], y)
    assert torch.equal(repeat(saved)["loss"], loss)
