"""What cannot be one graph runs at the highest level that works; a step that lives to the end is silent."""

import copy
import gc
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tightrope
from tightrope.native import compiler
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.rehearsal import rehearsed


class Masked(nn.Module):
    """A size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x[x[:, 0] > 0])
        return result


class Sparse(nn.Module):
    """Gradients without a storage."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.table(ids) * 2
        return result


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(batch).sum().backward()
    return [parameter.grad.to_dense() for parameter in model.parameters() if parameter.grad is not None]


def test_a_size_that_depends_on_values_is_planned_in_pieces() -> None:
    torch.manual_seed(0)
    model, batch = Masked(), torch.randn(32, 16)
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert "depends on values" in tightrope.report(model).why


class Experts(nn.Module):
    """Rows go to the expert that they are nearest to: how many go where depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(32, 4) for _ in range(4))
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, gate in enumerate(self.gates):
            weights, chosen = gate(x).softmax(-1).max(-1)
            result = torch.zeros_like(x)
            for number, expert in enumerate(self.experts[4 * layer : 4 * layer + 4]):
                rows = (chosen == number).nonzero().flatten()
                if len(rows):
                    result[rows] = expert(x[rows]).relu() * weights[rows, None]
            x = x + result
        return x


def trained(budget: int | str) -> list[torch.Tensor]:
    """Three steps of a loop that keeps everything until its next step; 0 = without the library."""
    torch.manual_seed(0)
    model: nn.Module = Experts()
    optimizer = torch.optim.AdamW(model.parameters())
    if budget:
        torch._dynamo.reset()
        model = tightrope.compile(model, budget=budget, progress=False)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(512, 32)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def unplanned() -> tuple[list[torch.Tensor], int]:
    """What the loop gives without the library, and the most bytes that are charged in it."""
    native = accounts().allocator
    assert native is not None
    native.reset_peaks()
    return trained(0), native.stats().charged_peak + accounts().older


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_a_tenth_more_than_the_unplanned_step_takes_is_always_enough() -> None:
    wanted, peak = unplanned()
    gc.collect()
    assert all(map(torch.equal, wanted, trained(peak + peak // 10)))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize("budget", ["60%", 0.6, 0.8, 0.9])
def test_the_first_number_that_is_named_trains_though_sizes_depend_on_values(budget: str | float) -> None:
    wanted, peak = unplanned()
    gc.collect()
    inputs = torch.zeros(512, 32).nbytes  # left for threads that may make them
    most = peak + accounts().charged() + RESERVE + inputs
    found, named, said = None, "", ""
    try:
        found = trained(budget if isinstance(budget, str) else int(budget * peak))
    except (tightrope.TightropeError, torch.OutOfMemoryError) as refused:
        said = str(refused)
        named = re.findall(r'budget="?(\d+%?)', said)[-1]
    gc.collect()
    if found is None:
        assert named.endswith("%") == isinstance(budget, str), said
        assert named.endswith("%") or int(named) <= most
        found = trained(named if named.endswith("%") else int(named))
    assert all(map(torch.equal, wanted, found))


def test_sparse_gradients_run_at_level_0() -> None:
    torch.manual_seed(0)
    model, batch = Sparse(), torch.randint(0, 50, (32,))
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(model).level == "L0"


class Shared(nn.Module):
    """Two buffers in one memory, both changed: torch traces no such thing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        whole = torch.zeros(32)
        self.register_buffer("all", whole)
        self.register_buffer("first", whole[:16])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.all, torch.Tensor)
        assert isinstance(self.first, torch.Tensor)
        self.all += 1
        result: torch.Tensor = self.layer(x + self.first)
        self.first.mul_(0.5)
        return result


class Overwritten(nn.Module):
    """A forward that destroys what its backward needs: an error in eager, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        x.add_(1)
        return result


class Fixed(nn.Module):
    """No graph at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def test_what_torch_refuses_to_trace_runs_without_a_plan_as_in_eager() -> None:
    torch.manual_seed(0)
    model, batch = Shared(), torch.randn(32, 16)
    planned = tightrope.compile(copy.deepcopy(model), budget="64MiB", progress=False)
    assert all(map(torch.equal, gradients(model, batch), gradients(planned, batch)))
    assert all(map(torch.equal, model.buffers(), planned.buffers()))
    assert "share storage" in tightrope.report(planned).why


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_the_backward_is_that_of_eager() -> None:
    model = tightrope.compile(Overwritten(), budget="64MiB", progress=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        model(torch.randn(32, 16)).sum().backward()
    assert type(error.value) is RuntimeError
    plain = Overwritten()
    train = tightrope.step(lambda x: plain(x).sum(), model=plain, budget="64MiB", progress=False)
    with pytest.raises(tightrope.CaptureError, match="modified by an inplace operation"):
        train(torch.randn(32, 16))


@pytest.mark.slow
def test_a_step_that_lives_to_the_end_of_the_process_says_nothing() -> None:
    script = (
        "import torch, tightrope\nmodel = torch.nn.Linear(8, 8)\n"
        "train = tightrope.step(lambda x: model(x).sum(), budget='64MiB', model=model, progress=False)\n"
        "train(torch.ones(2, 8))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


class Inverse(nn.Module):
    """A kernel that raises an error that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8) + 0.1 * torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.linalg.inv(self.weight)


class Volume(Inverse):
    """A kernel that takes integers that count from one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linalg.slogdet(self.weight)[1]


@pytest.mark.parametrize(("kind", "level"), [(Inverse, "L0"), (Volume, "L1")])
def test_linear_algebra_runs(kind: type[nn.Module], level: str) -> None:
    model, batch = kind(), torch.ones(4, 8)
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(model).level == level


@pytest.mark.parametrize("planned_before", [False, True])
@pytest.mark.parametrize("budget", ["64MiB", "200%"])
def test_inside_of_a_dispatch_mode_a_call_is_limited_alone_and_the_next_is_planned(
    budget: str, planned_before: bool
) -> None:
    torch.manual_seed(0)
    plain, batch = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)), torch.randn(32, 16)
    model = tightrope.compile(copy.deepcopy(plain), budget=budget, progress=False)
    if planned_before:
        gradients(model, batch)
        model.zero_grad()
    with pytest.warns(UserWarning, match="FlopCounterMode, torch captures nothing"):  # noqa: SIM117
        with FlopCounterMode(display=False) as counted:
            model(batch).sum().backward()
    assert counted.get_total_flops() > 0
    model.zero_grad()
    assert all(map(torch.equal, gradients(plain, batch), gradients(model, batch)))
    assert tightrope.report(model).level == "L1"
    assert tightrope.report(model).forecast_peak > 0


def test_a_step_and_a_capture_inside_of_a_dispatch_mode_are_refused_and_work_outside() -> None:
    model, batch = nn.Linear(16, 16), torch.randn(32, 16)
    train = tightrope.step(lambda x: model(x).sum(), model=model, budget="64MiB", progress=False)
    with FlopCounterMode(display=False):
        with pytest.raises(tightrope.TightropeError, match="call the step outside of it"):
            train(batch)
        with pytest.raises(tightrope.CaptureError, match="capture Linear outside of it"):
            tightrope.capture(model, batch)
    train(batch)
    assert len(tightrope.capture(model, batch).ops) > 0


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed")
def test_a_block_of_level_e_that_is_left_open_does_not_keep_others_from_plans() -> None:
    batch = torch.randn(32, 16)
    evicted = tightrope.compile(Fixed(), budget="64MiB", progress=False, fallback="evict")
    gradients(evicted, batch)
    assert tightrope.report(evicted).level == "E"
    planned = tightrope.compile(nn.Linear(16, 16), budget="64MiB", progress=False)
    gradients(planned, batch)
    assert tightrope.report(planned).forecast_peak > 0
    gradients(evicted, batch)
    model = nn.Linear(16, 16)
    train = tightrope.step(lambda x: model(x).sum(), model=model, budget="64MiB", progress=False)
    train(batch)
    assert train.report().forecast_peak > 0


class Counting(nn.Module):
    """Keeps count of its calls, and makes a layer in the first one; a size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.seen, self.calls = nn.Linear(16, 16), list[int](), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "last"):
            self.last = nn.Linear(16, 16)
        self.calls += 1
        self.seen.append(self.calls)
        result: torch.Tensor = self.last(self.first(x)[x[:, 0] > 0])
        return result


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_a_forward_that_is_counted_leaves_no_trace_in_the_model() -> None:
    torch.manual_seed(0)
    model, batch = Counting(), torch.randn(32, 16)
    state = torch.get_rng_state()
    assert rehearsed(model, (batch,), {}) is not None
    assert (model.calls, model.seen, hasattr(model, "last")) == (0, [], False)
    assert torch.equal(state, torch.get_rng_state())
