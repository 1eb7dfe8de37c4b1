"""Whole steps against eager: the same bits, in fewer bytes."""

import contextlib
import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from stepping import (
    OPTIMIZERS,
    SGD,
    AdamW,
    Batch,
    Layouts,
    Make,
    Run,
    assert_kept,
    assert_same,
    batches,
    eager,
    loss_of,
    mlp,
    planned,
    smallest_budget,
    trainable,
)
from torch import Tensor, nn

import tightrope
from benchmarks.zoo import build
from tightrope.core import (
    CaptureError,
    Compute,
    InfeasibleError,
    JudgeError,
    Kind,
    Phase,
    Schedule,
    TightropeError,
    VerificationError,
)
from tightrope.lower import walked
from tightrope.native.build import compiler
from tightrope.plan import smallest, solve
from tightrope.run.compile import compiled_of
from tightrope.run.execute import running
from tightrope.run.execute.reference import Reference
from tightrope.run.step import step

enforced = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module", autouse=True)
def _first_capture() -> None:
    """The first capture in a process allocates a few KiB that stay."""
    model = mlp()
    step(loss_of(model), budget="64MiB", model=model)(*batches(1)[0])


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    """Models of earlier tests count as held by the process: let them go."""
    gc.collect()
    yield
    torch.compiler.reset()
    gc.collect()


_QUICK = ("sgd", "momentum", "amsgrad", "adamw", "two_groups")
"""One of each kind of state; the others are run by `make test-all`."""


@pytest.mark.few(2)
@enforced
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_updates_have_the_bits_of_the_eager_optimizer_in_the_smallest_budget(name: str) -> None:
    make, data = OPTIMIZERS[name], batches()
    other = mlp()
    want = eager(other, loss_of(other), data, make(trainable(other)))
    model = mlp()
    budget = smallest_budget(model, loss_of(model), data[0], make)
    gc.collect()
    got = planned(model, loss_of(model), data, make(trainable(model)), budget=budget)
    assert_same(want, got)
    assert_kept(got)
    assert got.step is not None
    assert got.step.report().num_recomputed > 0


@pytest.mark.slow
@enforced
@pytest.mark.parametrize(
    ("net", "make"),
    [
        ("gpt2", OPTIMIZERS["adamw"]),
        pytest.param("resnet18", OPTIMIZERS["momentum"], marks=pytest.mark.slow),
        pytest.param("llama_lora", OPTIMIZERS["adam"], marks=pytest.mark.slow),
    ],
)
def test_zoo_nets_train_with_the_eager_bits(net: str, make: Make) -> None:
    one, two = build(net, scale="test"), build(net, scale="test")
    want = eager(one.model, one.model, [one.inputs] * 5, make(trainable(one.model)))
    optimizer = make(trainable(two.model))
    got = planned(two.model, two.model, [two.inputs] * 5, optimizer, budget="99.5%", verify=None)
    assert_same(want, got)
    assert_kept(got)


def test_a_scheduler_and_step_hooks_work_as_ever() -> None:
    runs, calls = [], []
    for how in (eager, planned):
        model = mlp()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        optimizer.register_step_post_hook(lambda *_, how=how: calls.append(how))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=5)

        def ahead(scheduler: Any = scheduler) -> None:
            scheduler.step()

        runs.append(how(model, loss_of(model), batches(4), optimizer, ahead))
    assert_same(*runs)
    assert calls == [eager] * 4 + [planned] * 4


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_optimizer_state_goes_to_torch_and_back(name: str) -> None:
    make, data = OPTIMIZERS[name], batches(6)
    other = mlp()
    want = eager(other, loss_of(other), data, make(trainable(other)))
    model = mlp()
    optimizer = make(trainable(model))
    train = step(loss_of(model), budget="64MiB", model=model, optimizer=optimizer)
    torch.manual_seed(7)
    losses = [train(*batch).item() for batch in data[:2]]

    second = make(trainable(model))
    second.load_state_dict(optimizer.state_dict())
    for batch in data[2:4]:
        loss = loss_of(model)(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        second.step()
        second.zero_grad()
        losses.append(loss.item())

    optimizer.load_state_dict(copy.deepcopy(second.state_dict()))
    losses += [train(*batch).item() for batch in data[4:]]
    assert_same(want, Run(model, optimizer, losses, torch.get_rng_state()))


def test_without_an_optimizer_gradients_are_written_then_added() -> None:
    one, two = mlp(), mlp()
    want = eager(one, loss_of(one), batches(3), None)
    got = planned(two, loss_of(two), batches(3), None)
    assert_same(want, got)
    assert_kept(got)


@pytest.mark.parametrize("make", [None, OPTIMIZERS["sgd"], OPTIMIZERS["adam"]])
def test_gradients_are_laid_out_as_autograd_would(make: Make | None) -> None:
    data: list[Batch] = [(torch.randn(7, 4, generator=torch.Generator().manual_seed(k)),) for k in range(3)]
    one, two = Layouts(), Layouts()
    want = eager(one, one, data, make(trainable(one)) if make else None)
    got = planned(two, two, data, make(trainable(two)) if make else None)
    assert_same(want, got)
    if make is None:
        storages = {p.grad.untyped_storage().data_ptr() for p in two.parameters() if p.grad is not None}
        assert len(storages) == len(list(two.parameters()))


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, other = nn.Linear(8, 8), nn.Linear(8, 8)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    for named in (model, other):
        train = step(lambda x: model(x).sum(), budget="64MiB", model=named, optimizer=sgd, progress=False)
        with pytest.raises(TightropeError, match="none of the parameters that the loss depends on"):
            train(torch.ones(2, 8))


def test_parameters_outside_the_optimizer_get_gradients() -> None:
    one, two = mlp(), mlp()
    want = eager(one, loss_of(one), batches(2), SGD(one[0].parameters(), lr=0.1, foreach=False))  # type: ignore[index]
    got = planned(two, loss_of(two), batches(2), SGD(two[0].parameters(), lr=0.1, foreach=False))  # type: ignore[index]
    assert_same(want, got)
    assert all(p.grad is None for p in two[0].parameters())  # type: ignore[index]


def test_other_outputs_come_back_detached() -> None:
    model = mlp()

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        logits = model(x)
        return nn.functional.cross_entropy(logits, y), logits, {"mean": logits.mean()}

    train = step(fn, budget="64MiB", model=model)
    torch.manual_seed(7)
    loss, logits, more = train(*batches(1)[0])
    other = mlp()
    torch.manual_seed(7)
    want = other(batches(1)[0][0])
    assert torch.equal(logits, want)
    assert torch.equal(more["mean"], want.mean())
    assert not any(value.requires_grad for value in (loss, logits, more["mean"]))


def test_every_shape_and_mode_is_planned_once() -> None:
    one, two = mlp(), mlp()
    data = [batch for size in (32, 48, 32, 48) for batch in batches(1, size)]
    want = eager(one, loss_of(one), data, SGD(one.parameters(), lr=0.1, foreach=False))
    got = planned(two, loss_of(two), data, SGD(two.parameters(), lr=0.1, foreach=False), budget="64MiB")
    assert_same(want, got)
    assert got.step is not None
    assert len(got.step.wholes) == 2
    two.eval()
    got.step(*data[0])
    assert len(got.step.wholes) == 3


@pytest.mark.parametrize("make", [OPTIMIZERS["momentum"], OPTIMIZERS["adamw"]])
def test_options_and_groups_may_change_while_training(make: Make) -> None:
    def change(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        done = 0

        def after() -> None:
            nonlocal done
            done += 1
            if done == 2:
                optimizer.param_groups[0]["weight_decay"] = 0.0
            if done == 3:
                optimizer.add_param_group({"params": list(model[9].parameters()), "lr": 0.03})
                for parameter in model[9].parameters():
                    parameter.grad = None

        return after

    runs = []
    for how in (eager, planned):
        model = mlp()
        assert isinstance(model, nn.Sequential)
        optimizer = make(trainable(model[:9]))
        runs.append(how(model, loss_of(model), batches(), optimizer, change(model, optimizer)))
    assert_same(*runs)
    train = runs[1].step
    assert train is not None
    assert len(train.wholes) == 1
    assert train.wholes[0].calls.num_divergences == 0


@enforced
def test_a_refused_budget_changes_nothing_and_the_named_one_is_accepted() -> None:
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    optimizer = AdamW(model.parameters())
    batch = batches(1)[0]
    with pytest.raises(InfeasibleError, match="smallest feasible found") as refused:
        step(loss_of(model), budget="100KiB", model=model, optimizer=optimizer)(*batch)
    error = refused.value
    assert error.smallest_found is not None
    assert error.lower_bound <= error.smallest_found
    assert error.op
    assert str(error).endswith("\nMore: docs/budget.md#refused")  # nothing of a backward to come
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    step(loss_of(model), budget=error.smallest_found, model=model, optimizer=optimizer)(*batch)
    with pytest.raises(InfeasibleError, match="one forward before each backward"):
        tightrope.compile(mlp(), budget="100KiB")(batch[0])


@pytest.mark.parametrize("make", [OPTIMIZERS["momentum"], OPTIMIZERS["amsgrad"]])
def test_a_step_equals_its_unplanned_graph_updates_included(make: Make) -> None:
    model = mlp()
    train = step(
        loss_of(model), budget="64MiB", model=model, optimizer=make(trainable(model)), verify="graph"
    )
    for batch in batches(2):
        train(*batch)
    assert "equal those of the captured graph without a plan" in train.report().verified


def test_a_difference_from_the_unplanned_step_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Reference):
        def after(self, part: int, outputs: list[Any]) -> None:
            self._live[0].add_(1)
            super().after(part, outputs)

    monkeypatch.setattr(running, "Reference", Wrong)
    model = mlp()
    train = step(
        loss_of(model), budget="64MiB", model=model, optimizer=AdamW(model.parameters()), verify="graph"
    )
    with pytest.raises(VerificationError, match="changed input 0 of part 0 differs"):
        train(*batches(1)[0])


def graph_of(net: str, optimizer: Make, *, scale: Any) -> tightrope.Graph:
    case = build(net, scale=scale)
    train = step(
        case.model, budget="8GiB", model=case.model, optimizer=optimizer(trainable(case.model)), verify=None
    )
    train(*case.inputs)
    return train.wholes[0].calls.captured[0].graph


@pytest.mark.slow
def test_a_gradient_dies_in_the_update_that_reads_it() -> None:
    graph = graph_of("gpt2", OPTIMIZERS["adamw"], scale="test")
    updates = [op for op in graph.ops if op.phase is Phase.OPTIMIZER]
    assert len(updates) == sum(storage.kind is Kind.PARAMETER for storage in graph.storages)
    assert sum(storage.kind is Kind.OPTIMIZER_STATE for storage in graph.storages) == 2 * len(updates)
    for update in updates:
        (gradient,) = {s for s in set(update.reads) - set(update.mutates) if not graph.storages[s].external}
        last = max(op.id for op in graph.ops if gradient in op.reads)
        assert graph.ops[last].phase is Phase.OPTIMIZER
        assert not graph.storages[gradient].resident_at_end
        readers = [op for op in graph.ops if set(op.reads) & set(update.mutates) and op is not update]
        assert all(op.id < update.id for op in readers)
    assert updates[0].id < max(op.id for op in graph.ops if op.phase is Phase.BACKWARD)


@pytest.mark.slow
def test_no_plan_reads_a_new_value_for_an_old_one() -> None:
    graph = graph_of("gpt2", OPTIMIZERS["adamw"], scale="test")
    update = next(op for op in graph.ops if op.phase is Phase.OPTIMIZER and op.module)
    reader = next(op for op in graph.ops if op.recomputable and set(op.reads) & set(update.mutates))
    steps = list(solve(graph, budget=2**40, planner="given").schedule.steps)
    at = steps.index(Compute(update.id)) + 1
    stale = [*steps[:at], Compute(reader.id, reader.creates), *steps[at:]]
    walked(graph, Schedule(tuple(steps)))
    with pytest.raises(JudgeError):
        walked(graph, Schedule(tuple(stale)))


@pytest.mark.slow
@enforced
def test_resnet18_needs_fewer_bytes_than_a_planned_model_and_a_separate_optimizer() -> None:
    case = build("resnet18")
    make = OPTIMIZERS["adamw"]
    whole = graph_of("resnet18", make, scale="bench")
    optimizer = make(trainable(case.model))
    model = tightrope.compile(case.model, budget="8GiB", verify=None)
    model(*case.inputs).backward()
    optimizer.step()
    parts = compiled_of(model).calls.captured[0].graph
    budget = 2**40
    one, two = (solve(graph, budget=budget, planner="given").forecast for graph in (whole, parts))
    assert (one.ns - sum(op.ns for op in whole.ops if op.phase is Phase.OPTIMIZER)) < 1.2 * two.ns
    assert one.tdi_percent == two.tdi_percent == 0.0
    assert one.peak < two.peak
    least = [smallest(graph, seconds=5).forecast for graph in (whole, parts)]
    assert least[0].arena + least[0].outside < least[1].arena + least[1].outside
    print(
        f"above parameters, state and inputs: {one.peak} B as a step, {two.peak} B as model + optimizer; "
        f"smallest {least[0].arena} B ({least[0].tdi_percent:.1f} % more time), "
        f"{least[1].arena} B ({least[1].tdi_percent:.1f} %)"
    )


@pytest.mark.slow
def test_wrong_uses_are_refused_with_the_next_step() -> None:
    model = mlp()
    fn, batch = loss_of(model), batches(1)[0]

    def refused(message: str, loss_fn: Callable[..., Any] = fn, **options: Any) -> None:
        with pytest.raises(TightropeError, match=message):
            step(loss_fn, budget="64MiB", model=model, **options)(*batch)

    p = list(model.parameters())
    refused("RMSprop cannot be part", optimizer=torch.optim.RMSprop(p))
    refused("LBFGS cannot be part.*tightrope.compile", optimizer=torch.optim.LBFGS(p))
    refused("returned no loss", lambda x, y: None)
    refused("must return the loss alone or first", lambda x, y: {"loss": fn(x, y)})
    refused("lr is a tensor", optimizer=SGD(p, lr=torch.tensor(0.1)))
    refused("fused=True", optimizer=AdamW(p, fused=True))
    refused('use "first", "graph", "eager", "always" or None', verify="ever")
    refused("must return the loss", lambda x, y: model(x))
    refused("does not depend on any parameter", lambda x, y: x.sum())
    empty = nn.Parameter(torch.ones(0))
    refused("without elements", lambda x, y: fn(x, y) + empty.sum())
    batch[0].requires_grad_()
    refused("is no parameter: detach it")


def test_a_step_that_is_not_one_graph_says_so() -> None:
    model = mlp()

    def fn(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model)(x, y)
        return loss if loss.item() > 0 else -loss

    with pytest.raises(CaptureError, match="cannot be captured as one graph"):
        step(fn, budget="64MiB", model=model)(*batches(1)[0])


def test_gradients_that_are_there_already_and_new_parameters_are_refused() -> None:
    model = mlp()
    assert isinstance(model, nn.Sequential)
    train = step(loss_of(model), budget="64MiB", model=model, optimizer=SGD(model.parameters(), lr=0.1))
    batch = batches(1)[0]
    train(*batch)
    loss_of(model)(*batch).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(TightropeError, match=r"'0\.weight' has a gradient already"):
        train(*batch)
    model.zero_grad()
    train(*batch)


def test_a_refused_step_lets_go_of_its_model_at_once() -> None:
    def refused() -> weakref.ref[nn.Module]:
        model = mlp()
        train = step(loss_of(model), budget="100KiB", model=model)
        for _ in range(2):
            with contextlib.suppress(InfeasibleError):
                train(*batches(1)[0])
        assert not train.wholes[0].num_steps
        return weakref.ref(model)

    gc.collect()
    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()


def test_a_report_is_refused_before_the_first_step() -> None:
    model = mlp()
    train = step(loss_of(model), budget="64MiB", model=model)
    with pytest.raises(TightropeError, match="no training step"):
        train.report()


@pytest.mark.slow
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "examples/whole_step.py"], capture_output=True, text=True, timeout=300, check=False
    )
    assert "weights equal, bit for bit: True" in done.stdout, done.stderr
