"""A compiled model is the module that it was: same class, state, hooks, copies; and what import costs."""

import copy
import gc
import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, Seen, batches, built, play, same, trains_as, turned

import tightrope
from benchmarks.zoo import build
from tightrope.core import InfeasibleError, TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts

DATA = batches(4)


def loop(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in DATA[:3]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()


class Turned(nn.Module):
    """Torch's tracing takes the result of an op for contiguous, which it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(turned(self.first(x))).flatten(0, 1).square().mean()


@torch.library.custom_op("tightrope_tests::through_numpy", mutates_args=())
def through_numpy(x: Tensor) -> Tensor:
    """Double; its backward leaves torch, which no tracing follows."""
    return x * 2


through_numpy.register_fake(torch.empty_like)
through_numpy.register_autograd(lambda _context, gradient: torch.from_numpy(gradient.numpy() * 2))


class Untraced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(through_numpy(self.first(x))).square().mean()


def test_where_torchs_tracing_fails_the_model_trains_as_in_eager() -> None:
    plain = built(Untraced)
    model = tightrope.compile(copy.deepcopy(plain), budget=accounts().charged() + (64 << 20), progress=False)
    with pytest.warns(UserWarning, match=r"level (E|L0) .*\.numpy\(\) is not supported"):
        trains_as(plain, model, torch.randn(4, 20, 32))
    assert ".numpy() is not supported" in tightrope.report(model).why


def test_where_torchs_tracing_takes_a_result_for_contiguous_a_copy_is_planned() -> None:
    plain = built(Turned)
    model = tightrope.compile(copy.deepcopy(plain), budget=accounts().charged() + (64 << 20), progress=False)
    trains_as(plain, model, torch.randn(4, 20, 32))
    assert tightrope.report(model).level == "L1"


class Swapped(nn.Module):
    """Torch's shape functions give the result of this batch norm other strides than its kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 50)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
        return self.last(hidden).flatten(0, 1).square().mean()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_batch_norm_over_the_last_dimension_is_planned(rows: int) -> None:
    plain = built(Swapped)
    model = tightrope.compile(copy.deepcopy(plain), budget=accounts().charged() + (64 << 20), progress=False)
    trains_as(plain, model, torch.randn(rows, 20, 32))
    assert tightrope.report(model).level == "L1"


def test_a_nested_batch_after_another_runs_as_in_eager() -> None:
    """Torch's guards on the first batch would end the process when they see the second."""
    model = nn.Linear(8, 8)
    rows = [torch.randn(2, 8), torch.randn(3, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about this layout
        batch = torch.nested.nested_tensor(rows)
        wanted = [one.detach() for one in model(batch).unbind()]
        tightrope.compile(model, budget="64MiB", progress=False)
        model(torch.randn(2, 8)).sum().backward()
        found = model(batch).unbind()
    assert all(map(torch.equal, found, wanted))
    assert "nested tensors" in tightrope.report(model).why


def test_a_jagged_batch_runs_as_in_eager_and_the_report_says_why() -> None:
    def step(model: nn.Module) -> Tensor:
        batch = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
        model(batch).values().square().mean().backward()
        assert isinstance(model.weight.grad, Tensor)
        return model.weight.grad

    model = nn.Linear(8, 8)
    wanted, model.weight.grad = step(model), None
    tightrope.compile(model, budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match=r"nested tensors have no sizes|evicts nothing"):
        assert torch.equal(step(model), wanted)
    assert "nested tensors" in tightrope.report(model).why


def test_class_state_and_parameters_stay_what_they_were() -> None:
    model = built(Blocks)
    names, ids = list(model.state_dict()), [id(p) for p in model.parameters()]
    found = tightrope.compile(model, budget="12MiB", progress=False)
    play(model, loop)
    assert found is model
    assert type(model) is Blocks
    assert list(model.state_dict()) == names
    assert [id(p) for p in model.parameters()] == ids
    assert model.training
    assert not model.eval().training


def test_copies_and_pickles_are_plain_models_with_the_same_values() -> None:
    model = tightrope.compile(built(Blocks), budget="16MiB", progress=False)
    play(model, loop)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    state.seek(0)
    fresh = Blocks()
    fresh.load_state_dict(torch.load(state))
    wanted = play(copy.deepcopy(model), loop)
    for twin in (loaded, fresh):
        assert type(twin) is Blocks
        twin.zero_grad()
        assert play(twin, loop) == wanted
        with pytest.raises(TightropeError, match="was not compiled"):
            tightrope.report(twin)
    twin = tightrope.compile(copy.deepcopy(model), budget="16MiB", progress=False)
    twin.zero_grad()
    model.zero_grad()
    assert play(twin, loop) == play(model, loop)


def test_state_that_is_loaded_counts() -> None:
    model = tightrope.compile(built(Blocks), budget="12MiB", progress=False)
    start = copy.deepcopy(model.state_dict())
    wanted = play(model, loop)
    model.load_state_dict(start)
    model.zero_grad()
    assert play(model, loop) == wanted


@pytest.mark.slow
def test_hooks_run_and_may_come_and_go() -> None:
    def hooked(model: nn.Module, see: Seen) -> None:
        seen: list[int] = []
        layer = model.get_submodule("layers.0")
        for step, (x, y) in enumerate(DATA):
            if step == 1:
                one = model.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
            if step == 2:
                two = layer.register_forward_hook(lambda _, __, out: out + 1)
                model.register_forward_hook(lambda _, __, ___: seen.append(1))
            if step == 3:
                one.remove()
                two.remove()
            model.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            see.gradients(model)
        see(len(seen))

    same(Blocks, hooked, DATA[0][:1], share=1.0)


@pytest.mark.slow
def test_hooks_on_gradients_run() -> None:
    def hooked(model: nn.Module, see: Seen) -> None:
        norms: list[float] = []
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 0.5)
            parameter.register_post_accumulate_grad_hook(lambda p: norms.append(float(p.grad.norm())))
        loop(model, see)
        see(*sorted(norms))  # eager calls them one by one, in another order

    same(Blocks, hooked, DATA[0][:1], share=0.3)


def test_compiling_again_replaces_the_budget() -> None:
    model = tightrope.compile(built(Blocks), budget="16MiB", progress=False)
    play(model, loop)
    tightrope.compile(model, budget="12MiB", progress=False)
    model.zero_grad()
    play(model, loop)
    assert tightrope.report(model).budget == 12 << 20
    assert allocator().limit == (12 << 20) - accounts().older


def test_a_share_of_the_unplanned_step_counts_all_that_is_held() -> None:
    held = torch.ones(1 << 20)
    model = tightrope.compile(built(Blocks), budget="100%", progress=False)
    functional.cross_entropy(model(DATA[0][0]), DATA[0][1]).backward()
    assert tightrope.report(model).num_recomputed == 0
    assert tightrope.report(model).budget > 4 * len(held)


def test_planning_ahead_changes_nothing() -> None:
    model = built(Blocks)
    model.register_buffer("extra", torch.zeros(3))
    wanted = play(model, lambda *_: None)
    tightrope.compile(model, budget="12MiB", example=DATA[0][:1], progress=False)
    assert play(model, lambda *_: None) == wanted
    assert len(compiled_of(model).calls.captured) == 1
    assert tightrope.report(model).arena > 0


class Hidden(Blocks):
    """Keeps out of every graph."""

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def test_a_model_that_cannot_be_captured_drops_to_level_0_with_the_reason() -> None:
    def steps(model: nn.Module, see: Seen) -> None:
        for _ in range(3):
            loop(model, see)

    wanted = play(built(Hidden), steps)
    gc.collect()
    model = tightrope.compile(built(Hidden), budget="32MiB", progress=False)
    with pytest.warns(UserWarning, match=r"level L0 .*cannot be captured as one graph"):
        found = play(model, steps)
    assert found == wanted
    report = tightrope.report(model)
    assert report.level == "L0"
    assert "cannot be captured" in report.why
    assert report.enforced
    assert report.budget == 32 << 20
    assert report.arena > 0
    assert 0 < report.observed_total <= report.budget
    assert "level L0" in str(report)
    native = allocator()
    assert native.limit is not None
    assert native.limit <= 32 << 20


def test_models_of_both_levels_take_turns() -> None:
    def turns(models: Any, see: Seen) -> None:
        for x, y in DATA:
            for model in models:
                model.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                see.gradients(model)

    wanted = play(nn.ModuleList([built(Hidden), built(Blocks)]), turns)
    models = nn.ModuleList(
        tightrope.compile(built(kind), budget="32MiB", progress=False) for kind in (Hidden, Blocks)
    )
    with pytest.warns(UserWarning, match="level L0"):
        assert play(models, turns) == wanted


def test_a_compiled_part_of_a_compiled_model_is_planned_with_the_whole() -> None:
    def nested(model: nn.Module, see: Seen) -> None:
        loop(nn.Sequential(model, nn.Identity()), see)

    wanted = play(built(Blocks), nested)
    part = tightrope.compile(built(Blocks), budget="12MiB", progress=False)

    def whole(model: nn.Module, see: Seen) -> None:
        outer = tightrope.compile(nn.Sequential(model, nn.Identity()), budget="12MiB", progress=False)
        loop(outer, see)
        assert len(compiled_of(outer).calls.captured) == 1

    assert play(part, whole) == wanted
    assert compiled_of(part).calls.captured == []


def test_level_0_holds_the_budget() -> None:
    budget = accounts().held() + (256 << 10)
    model = tightrope.compile(built(Hidden), budget=budget, fallback="replay", progress=False)
    with pytest.raises((torch.OutOfMemoryError, InfeasibleError)):
        play(model, loop)


def test_level_0_needs_bytes() -> None:
    model = tightrope.compile(built(Hidden), budget="80%", fallback="replay", progress=False)
    with pytest.raises(TightropeError, match=r"Give bytes.* budget=\d+"):
        model(DATA[0][0])


def test_a_report_before_the_first_step_says_so() -> None:
    model = tightrope.compile(Blocks(), budget="12MiB", progress=False)
    report = tightrope.report(model)
    assert report.why.startswith("nothing is planned yet")
    assert report.budget == 12 << 20


def test_a_step_gives_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = tightrope.compile(built(Blocks), budget="12MiB", progress=False)
        play(model, loop)
        case = build("custom_function", scale="test")
        tightrope.compile(case.model, budget="12MiB", progress=False)(*case.inputs).backward()
    assert [str(warning.message) for warning in caught] == []


def test_warnings_of_user_code_are_shown_once() -> None:
    model = tightrope.compile(built(Blocks), budget="12MiB", progress=False)
    play(model, loop)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for x, y in DATA:
            functional.cross_entropy(model(x), y).backward()
            warnings.warn("mine", UserWarning, stacklevel=1)
    assert len(caught) == 1


def test_importing_tightrope_imports_no_compiler() -> None:
    code = (
        "import sys, tightrope\n"
        "heavy = ('torch._inductor', 'torch._dynamo', 'transformers')\n"
        "found = [name for name in heavy if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept", [pytest.param("", marks=pytest.mark.slow), "import builtins; builtins.kept = model\n"]
)
def test_the_interpreter_ends_quietly(kept: str) -> None:
    code = (
        "import torch, tightrope\n"
        "model = tightrope.compile(torch.nn.Linear(8, 8), budget='64MiB', progress=False)\n"
        "loss = model(torch.ones(2, 8)).sum()\n"
        "loss.backward()\n"
        "loss = model(torch.ones(2, 8)).sum()\n"
        "other = torch.nn.Linear(8, 8)\n"
        "train = tightrope.step(lambda x: other(x).sum(), budget='64MiB', model=other, progress=False)\n"
        "train(torch.ones(2, 8))\n" + kept
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path.cwd(),
    )
    assert (done.returncode, done.stderr) == (0, "")
