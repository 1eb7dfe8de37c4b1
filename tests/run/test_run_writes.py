"""Results written over inputs: every form has the bits of its op, and steps those of steps without."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stepping import assert_same, batches, loss_of, mlp, trainable
from stepping import planned as stepped
from torch import Tensor, nn

import tightrope
from tightrope.capture import capture_program, measured
from tightrope.core import Alloc, Executable, Run, Schedule
from tightrope.lower import lower, with_writes
from tightrope.lower.writes import FORMS
from tightrope.native.build import compiler
from tightrope.native.kernels import batch_norm
from tightrope.plan import solve
from tightrope.price.kernels import norm_backward, resolve
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts

SINGLE = [target for target, form in FORMS.items() if not form.several]
enforced = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS: tuple[tuple[tuple[int, ...], Callable[[Tensor], Tensor]], ...] = (
    ((3, 5, 67), lambda tensor: tensor),
    ((2, 3, 8, 9), lambda tensor: tensor.contiguous(memory_format=torch.channels_last)),
)
EXTRA: dict[str, tuple[Any, ...]] = {
    "aten.threshold_backward.default": (0,),
    "aten.leaky_relu_backward.default": (0.1, False),
    "aten.softplus_backward.default": (1.0, 20.0),
    "aten.hardtanh_backward.default": (-1.0, 1.0),
    "aten.elu_backward.default": (1.0, 1.0, 1.0, False),
    "aten._softmax.default": (1, False),
    "aten._log_softmax.default": (-1, False),
    "aten.pow.Tensor_Scalar": (2.0,),
    "aten.clamp.default": (0.5, 1.0),
}


def arguments(target: str, dtype: torch.dtype, draw: Callable[[], Tensor]) -> list[Any]:
    """What an op is called with in a graph; values are positive, so that logarithms and roots are numbers."""
    if target.endswith("softmax_backward_data.default"):
        forward = torch.softmax if "log" not in target else torch.log_softmax
        return [draw(), forward(draw(), 1), 1, dtype]
    if target == "aten.where.self":
        return [draw() > 1, draw(), draw()]
    if target == "aten.elu_backward.default":
        return [draw(), *EXTRA[target], draw() - 1]
    two = target.endswith(".Tensor") or "_backward" in target
    return [draw() for _ in range(1 + two)] + list(EXTRA.get(target, ()))


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", SINGLE)
def test_a_form_has_the_bits_of_its_op(target: str, dtype: torch.dtype) -> None:
    form, generator = FORMS[target], torch.Generator().manual_seed(5)
    for shape, lay in LAYOUTS:

        def draw(shape: tuple[int, ...] = shape, lay: Callable[[Tensor], Tensor] = lay) -> Tensor:
            return lay((torch.rand(shape, generator=generator, dtype=torch.float64) * 3 + 0.05).to(dtype))

        given = arguments(target, dtype, draw)
        try:
            want = resolve(target)(*given)
        except NotImplementedError:
            pytest.skip("torch has no such kernel")
        if want.stride() != given[form.positions[0]].stride():  # it would not be written there
            continue
        for position in form.positions:
            mine = [value.clone() if isinstance(value, Tensor) else value for value in given]
            over = mine[position]
            told = {form.keyword: over} if form.keyword else {}
            got = resolve(form.target)(*mine, **told)
            assert got.data_ptr() == over.data_ptr()
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
            assert bits(over) == bits(want)
            for k, value in enumerate(mine):
                assert k == position or not isinstance(value, Tensor) or bits(value) == bits(given[k])


@pytest.mark.parametrize("target", SINGLE)
def test_a_tensor_on_both_sides_of_an_op_may_be_written_over(target: str) -> None:
    form = FORMS[target]
    if len(form.positions) < 2 or target == "aten.where.self":
        pytest.skip("reads one tensor at most")
    values = torch.rand(3, 37, generator=torch.Generator().manual_seed(2)) + 0.1
    extra = EXTRA.get(target, ())
    want = resolve(target)(values, values.clone(), *extra)
    resolve(form.target)(values, values, *extra, **{form.keyword: values})
    assert bits(values) == bits(want)


@enforced
@pytest.mark.parametrize("shape", [(4, 8, 14, 14), (1, 3, 7, 5), (16, 10), (5, 4, 9), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, False]])
def test_the_backward_of_batch_norm_has_the_bits_of_torch(shape: tuple[int, ...], wanted: list[bool]) -> None:
    assert not batch_norm.missing()
    for dtype in (torch.float32, torch.float64):
        given, gradient = (torch.randn(shape, dtype=dtype) for _ in range(2))
        weight = torch.randn(shape[1], dtype=dtype)
        aten = torch.ops.aten
        _, mean, deviation = aten._native_batch_norm_legit.no_stats(given, weight, weight, True, 0.1, 1e-5)
        for one in (weight, None):
            rest = (one, None, None, mean, deviation, True, 1e-5, wanted)
            want = aten.native_batch_norm_backward.default(gradient, given, *rest)
            got = norm_backward(gradient, given, *rest)
            for mine, yours in zip(got, want, strict=True):
                assert (mine is None) == (yours is None)
                assert mine is None or (bits(mine), mine.stride()) == (bits(yours), yours.stride())
            for position in (0, 1) if wanted[0] else ():
                copies = [gradient.clone(), given.clone()]
                over = resolve("tightrope.norm_backward.over")(*copies, *rest, over=copies[position])
                assert over[0] is copies[position]
                assert [value is None or bits(value) for value in over] == [
                    value is None or bits(value) for value in want
                ]
                assert bits(copies[1 - position]) == bits((gradient, given)[1 - position])


@enforced
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_backward_of_batch_norm_writes_over_what_ends_where_its_kernel_may(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(dtype)
    program, real = capture_program(model, (torch.randn(2, 3, 10, 10, dtype=dtype),), {})
    graph = with_writes(measured(program, real, accounts().allocator).graph)
    (norm,) = [op for op in graph.ops if op.target == "tightrope.norm_backward"]
    assert (norm.over in norm.reads) == (dtype is torch.float32)
    executable = lower(graph, Schedule(tuple(solve(graph, budget=2**40, planner="given").schedule.steps)))
    runs = [run for run in executable.flat() if isinstance(run, Run) and run.op == norm.id]
    assert [run.target for run in runs] == ["tightrope.norm_backward" + ".over" * (norm.over >= 0)]
    allocs = [event for event in runs[0].inside if isinstance(event, Alloc)]
    assert len(allocs) == len(graph.allocations(norm)) - (norm.over >= 0)


@enforced
def test_a_captured_batch_norm_allocates_its_gradient_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    data = torch.randn(2, 3, 10, 10)
    program, real = capture_program(model, (data,), {})
    graph = measured(program, real, accounts().allocator).graph
    (norm,) = [op for op in graph.ops if op.target == "tightrope.norm_backward"]
    sizes = [row.bytes for row in graph.allocations(norm)]
    assert sizes.count(2 * 8 * 8 * 8 * 4) == 1


@enforced
@pytest.mark.parametrize("why", ["", "the library does not load"])
def test_a_report_says_where_torch_s_own_batch_norm_runs(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm, "missing", lambda: why)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    tightrope.compile(model, budget=accounts().charged() + (64 << 20), progress=False)
    model(torch.randn(2, 3, 10, 10)).sum().backward()
    said = f"the backward of batch norm is torch's, with a tensor that it drops unused: {why}"
    assert tightrope.report(model).why == (said if why else "")


class Net(nn.Module):
    """Returns its loss, so that the largest tensors lie between the two halves of the graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64),
            nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 4096),
        )  # fmt: skip

    def forward(self, values: Tensor) -> Tensor:
        target = torch.arange(len(values))
        return nn.functional.cross_entropy(self.layers(values), target)


def num_writes(executable: Executable) -> int:
    targets = {form.target for form in FORMS.values()}
    return sum(isinstance(i, Run) and i.target in targets for i in executable.instructions)


def trained(model: nn.Module, steps: int = 3) -> list[bytes]:
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    torch.manual_seed(11)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 32, generator=generator))
        loss.backward()
        found += [
            bits(loss.detach().reshape(1)),
            *(bits(p.grad) for p in model.parameters() if p.grad is not None),
        ]
        optimizer.step()
    return [*found, *(bits(p.detach()) for p in model.parameters())]


def test_a_compiled_step_has_equal_bits_in_fewer_bytes() -> None:
    want, peaks, seen = trained(Net()), {}, {}
    for overwrite in (True, False):
        model = tightrope.compile(Net(), budget="1GiB", overwrite=overwrite, progress=False, verify="graph")
        assert trained(model) == want
        found = tightrope.report(model)
        assert found.observed_peak == found.forecast_peak
        peaks[overwrite] = found.observed_peak
        seen[overwrite] = num_writes(compiled_of(model).calls.recent[0].prepared.executable)
        del model
        gc.collect()
    assert seen[True] >= 5
    assert seen[False] == 0
    assert peaks[True] < 0.8 * peaks[False]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_whole_step_has_equal_bits(optimizer: str) -> None:
    made: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    }
    runs = []
    for overwrite in (True, False):
        model = mlp()
        runs.append(
            stepped(
                model, loss_of(model), batches(), made[optimizer](trainable(model)), budget="64MiB",
                overwrite=overwrite,
            )
        )  # fmt: skip
    with_them, without = runs
    assert_same(without, with_them)
    assert with_them.step is not None
    assert without.step is not None
    found = with_them.step.report()
    assert found.observed_peak == found.forecast_peak < without.step.report().forecast_peak


def test_a_second_backward_reads_what_the_forward_kept() -> None:
    """Saved activations are not written over: the backward may come twice."""
    data = torch.randn(64, 32, generator=torch.Generator().manual_seed(3))
    plain, model = Net().eval(), tightrope.compile(Net().eval(), budget="1GiB", progress=False)
    for one in (plain, model):
        loss = one(data)
        loss.backward(retain_graph=True)
        loss.backward()
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        assert want.grad is not None
        assert got.grad is not None
        assert bits(want.grad) == bits(got.grad)
