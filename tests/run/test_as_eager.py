"""A compiled model gives eager's bits, unplanned in no more bytes: one net for each way to miss that."""

import gc
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.variables.tensor import TensorVariable
from torch.nn import functional as F

import tightrope
from tests.run.training import digest
from tightrope.capture import _eager
from tightrope.run.ledger.accounts import accounts

Around = Callable[[], AbstractContextManager[Any]]
AMPLE = "8GiB"
MOST = 1.005
"""Unplanned bytes, as a share of eager's."""


def given(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Calling(nn.Module):
    """A module around a function of its layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.layers, *inputs)


def dropouts(p: float) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 256), nn.Dropout(p), nn.Linear(256, 256), nn.Dropout(p))


def under_autocast(model: nn.Module) -> nn.Module:
    def run(layers: nn.ModuleList, *inputs: Tensor) -> Tensor:
        with autocast():
            out: Tensor = layers[0](*inputs)
        return out

    return Calling(run, model)


def upsampling(mode: str) -> nn.Module:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        high = layers[0](x).relu()
        low = layers[1](F.max_pool2d(high, 2))
        corners = {} if mode == "nearest" else {"align_corners": False}
        low = F.interpolate(low, scale_factor=2, mode=mode, **corners)
        out: Tensor = layers[2](torch.cat([high, low], 1)).square().mean()
        return out

    return Calling(run, nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 4, 1))


def grouped() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, groups, stride in ((3, 1, 1), (16, 8, 2), (16, 16, 2), (16, 1, 1)):
        layers += [nn.Conv2d(channels, 16, 3, stride, 1, groups=groups), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers)


def unpacking() -> nn.Module:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        q, k, v = layers[0](x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        out: Tensor = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        return out

    return Calling(run, nn.Linear(64, 192))


def logit_scale() -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            logits: Tensor = self.scale.exp() * F.normalize(one, dim=-1) @ F.normalize(two, dim=-1).t()
            return logits

    def run(layers: nn.ModuleList, x: Tensor, y: Tensor) -> Tensor:
        logits = layers[2](layers[0](x), layers[1](y))
        at = torch.arange(len(logits))
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)) / 2

    return Calling(run, nn.Linear(24, 32), nn.Linear(40, 32), Scaled())


def attention(*, frozen: bool) -> nn.Module:
    net = nn.MultiheadAttention(32, 4, batch_first=True).eval().requires_grad_(not frozen)

    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        out: Tensor = layers[0](x, x, x, need_weights=False)[0]
        return out

    return Calling(run, net)


def is_zero(x: Tensor) -> bool | Tensor:
    """Look into a tensor unless that would break a graph, as libraries do."""
    return not torch.compiler.is_compiling() and (x == 0).all()


def asking() -> nn.Module:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        jumps = (torch.arange(x.shape[1]).diff() != 1).cumsum(-1)
        y: Tensor = layers[0](x)
        return y.sin() if is_zero(jumps) else y.relu()

    return Calling(run, nn.Linear(64, 64))


def shrinking() -> nn.Module:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        y: Tensor = layers[0](x)
        at = torch.arange(len(y)) % 8
        return F.multi_margin_loss(F.hardshrink(y, 0.1), at) + F.softshrink(y, 0.2).sum()

    return Calling(run, nn.Linear(32, 8))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "dropout": (lambda: dropouts(0.1), (given(64, 32),)),
    "dropout, odd share": (lambda: dropouts(0.37), (given(64, 32),)),
    "dropout, autocast inside": (lambda: under_autocast(dropouts(0.1)), (given(64, 32),)),
    "dropout, double": (lambda: dropouts(0.1).double(), (given(64, 32).double(),)),
    "dropout, evaluation": (lambda: dropouts(0.1).eval(), (given(64, 32),)),
    "bilinear": (lambda: upsampling("bilinear"), (given(2, 3, 32, 32),)),
    "bicubic": (lambda: upsampling("bicubic"), (given(2, 3, 32, 32),)),
    "nearest": (lambda: upsampling("nearest"), (given(2, 3, 32, 32),)),
    "bilinear, channels last": (
        lambda: upsampling("bilinear").to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        (channels_last(given(2, 3, 32, 32)),),
    ),
    "batch norm, grouped, channels last": (
        lambda: grouped().to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        (channels_last(given(2, 3, 8, 8)),),
    ),
    "convolutions, autocast inside": (lambda: under_autocast(grouped()), (given(4, 3, 16, 16),)),
    "unpacked": (unpacking, (given(4, 16, 64),)),
    "logit scale": (logit_scale, (given(24, 24), given(24, 40, seed=1))),
    "attention, evaluation": (lambda: attention(frozen=False), (given(4, 16, 32),)),
    "attention, fast path": (lambda: attention(frozen=True), (given(4, 16, 32),)),
    "asking": (asking, (given(4, 16, 64),)),
    "shrinking": (shrinking, (given(64, 32),)),
}
CAST_AROUND = ("dropout", "unpacked", "batch norm, grouped, channels last", "logit scale")


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    model = build()
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    return model


def step(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    around: Around = nullcontext,
) -> Tensor:
    with around():
        out: Tensor = model(*inputs)
    if out.requires_grad:
        out.float().square().mean().backward()  # type: ignore[no-untyped-call]
    return out


def shown(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    around: Around = nullcontext,
) -> dict[str, str]:
    """Digests of everything that a step shows."""
    values = {"output": step(model, inputs, around)}
    values |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}  # type: ignore[misc]
    values |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
    return {name: digest(value) for name, value in values.items()} | {
        f"random state of {name}": digest(state) for name, state in states.items()
    }


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_eager(case: str) -> None:
    build, inputs = CASES[case]
    wanted = shown(seeded(build), inputs)
    model = tightrope.compile(seeded(build), budget=AMPLE, progress=False)
    assert shown(model, inputs) == wanted
    assert tightrope.report(model).level == "L1"


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CAST_AROUND)
def test_bits_are_those_of_eager_inside_autocast(case: str) -> None:
    build, inputs = CASES[case]
    wanted = shown(seeded(build), inputs, autocast)
    model = tightrope.compile(seeded(build), budget=AMPLE, progress=False)
    assert shown(model, inputs, autocast) == wanted


@pytest.mark.few(5)
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"attention, evaluation"}))
def test_the_unplanned_graph_needs_no_more_than_eager(case: str) -> None:
    build, inputs = CASES[case]
    allocator = accounts().allocator
    assert allocator is not None
    step(seeded(build), inputs)  # kernels keep what they make in their first run
    plain = seeded(build)
    gc.collect()
    allocator.reset_peaks()
    before = allocator.stats().live
    step(plain, inputs)
    eager = allocator.stats().live_peak - before
    model = tightrope.compile(seeded(build), budget=AMPLE, progress=False)
    for _ in range(2):  # the first backward shows how gradients are laid out
        step(model, inputs)
    report = tightrope.report(model)
    assert report.num_recomputed == report.divergences == 0
    assert report.observed_peak <= MOST * eager


def test_numpy_draws_from_its_own_generator() -> None:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.randn(32).astype("float32"))
        out: Tensor = layers[0](x + noise)
        return out

    def build() -> nn.Module:
        return Calling(run, nn.Linear(32, 8))

    inputs = (given(8, 32),)
    twin, model = seeded(build), seeded(build)
    seeded(build)
    wanted = [shown(twin, inputs) for _ in range(3)]
    tightrope.compile(model, budget=AMPLE, fallback="pieces", progress=False)
    seeded(build)
    with pytest.warns(UserWarning, match="in pieces.*numpy"):
        found = [shown(model, inputs)]
    found += [shown(model, inputs) for _ in range(2)]
    assert found == wanted


def test_who_cannot_be_traced_as_eager_is_told_so_and_named() -> None:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        y: Tensor = layers[0](x)
        y = y.sin() if is_zero(torch.zeros(3)) else y.relu()
        return y.cos() if is_zero(x) else y.exp()

    model = tightrope.compile(Calling(run, nn.Linear(32, 8)), budget=AMPLE, progress=False)
    x = given(8, 32)
    assert torch.equal(model(x), model.layers[0](x).sin().exp())  # type: ignore[index, operator]
    report = tightrope.report(model)
    assert report.level == "L1"
    assert not report.why
    (line,) = report.unlike_eager
    assert "is_compiling() decides at" in line
    assert f"{__file__}:{run.__code__.co_firstlineno + 3}" in line


@pytest.mark.parametrize("known", ["drawn", "changed"])
def test_a_branch_is_followed_only_where_its_tensor_never_differs(known: str) -> None:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        y: Tensor = layers[0](x)
        at = torch.zeros(())
        if known == "changed":
            at.add_(x[0, 0])
        return y.sin() if (torch.full((), 0.5).bernoulli() if known == "drawn" else at) > 0.5 else y.relu()

    def build() -> nn.Module:
        return Calling(run, nn.Linear(32, 8))

    steps = [(torch.full((8, 32), value),) for value in (0.0, 1.0) * 4]
    twin, model = seeded(build), seeded(build)
    wanted = [shown(twin, inputs) for inputs in steps]
    tightrope.compile(model, budget=AMPLE, fallback="pieces", progress=False)
    seeded(build)
    with pytest.warns(UserWarning, match="in pieces"):
        found = [shown(model, inputs) for inputs in steps]
    assert found == wanted


def test_a_sum_of_gradients_of_an_input_that_is_given_out_again_is_named() -> None:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()  # type: ignore[no-untyped-call]
        y: Tensor = layers[0](x)
        torch._dynamo.graph_break()  # type: ignore[no-untyped-call]
        z, turned = y.sin() + y.cos(), y.t()
        torch._dynamo.graph_break()  # type: ignore[no-untyped-call]
        return turned.t() * z

    layers = Calling(run, nn.Linear(32, 8))
    model = tightrope.compile(layers, budget=AMPLE, fallback="pieces", progress=False)
    with pytest.warns(UserWarning, match="in pieces"):
        step(model, (given(8, 32),))
    (line,) = tightrope.report(model).unlike_eager
    assert "add" in line


SEEN: ContextVar[list[Tensor] | None] = ContextVar("SEEN", default=None)


@pytest.mark.parametrize("put_back", [True, False])
def test_a_context_variable_is_followed_where_it_is_put_back(put_back: bool) -> None:
    def run(layers: nn.ModuleList, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return layers[0](x).exp()  # type: ignore[no-any-return]
        outer = SEEN.set([])
        inner = SEEN.set([x.cos()])
        SEEN.get().append(layers[0](x))  # type: ignore[union-attr]
        found = SEEN.get()
        SEEN.reset(inner)
        assert found is not None
        assert SEEN.get() == []
        if put_back:
            SEEN.reset(outer)
        return found[1].sin()

    SEEN.set(None)
    model, x = Calling(run, nn.Linear(32, 8)), given(8, 32)
    wanted, left = model(x), SEEN.get()
    SEEN.set(None)
    tightrope.compile(model, budget=AMPLE, progress=False)
    found, report = model(x), tightrope.report(model)
    assert report.level == "L1"
    assert not report.why
    assert SEEN.get() is None
    if put_back:
        assert left is None
        assert torch.equal(found, wanted)
        assert report.unlike_eager == ()
    else:  # told so, and named: what runs would not set it
        assert any("is_compiling() decides at" in line for line in report.unlike_eager)


class Wrong(nn.Module):
    """Shapes that do not go together."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x


class Reading(nn.Module):
    """A graph break at `item`."""

    def forward(self, x: Tensor) -> Tensor:
        return x[: int(x.abs().sum().item()) % 5 + 1]


@pytest.mark.parametrize("build", [Wrong, Reading])
def test_torch_logs_nothing_about_traces_that_are_reported_and_all_about_others(
    build: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    x = given(8, 32)

    def call(model: Any) -> list[str]:
        caplog.clear()
        with warnings.catch_warnings(), suppress(RuntimeError), caplog.at_level("WARNING"):
            warnings.simplefilter("ignore")
            model(x)
        return [record.name for record in caplog.records if record.levelno >= logging.WARNING]

    for name in ("torch", "torch._dynamo"):  # torch's loggers hand nothing on to others
        caplog.handler.setLevel("WARNING")
        logging.getLogger(name).addHandler(caplog.handler)
    try:
        assert call(tightrope.compile(build(), budget=AMPLE, progress=False)) == []
        torch._dynamo.reset()
        assert call(torch.compile(build(), backend="eager")) != []
    finally:
        for name in ("torch", "torch._dynamo"):
            logging.getLogger(name).removeHandler(caplog.handler)


def test_a_trace_teaches_torch_where_an_earlier_one_failed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(_eager, "_taught", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), _eager.traced_as_eager():
            pass
    unpack = TensorVariable.unpack_var_sequence
    with _eager.traced_as_eager():
        with _eager.traced_as_eager():
            assert TensorVariable.unpack_var_sequence is not unpack
        assert TensorVariable.unpack_var_sequence is not unpack
    assert TensorVariable.unpack_var_sequence is unpack
