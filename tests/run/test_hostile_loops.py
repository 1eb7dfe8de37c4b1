"""Loops that `benchmarks.hostile` found to differ from eager, or to end in an error of torch's insides."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import digest

import tightrope
from tightrope.core import TightropeError

ROWS = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))


def bits(model: nn.Module, out: Tensor) -> list[str]:
    model.zero_grad()
    out.square().mean().backward()
    return [digest(out), *(digest(one.grad) for one in model.parameters())]


def both(build: Callable[[], nn.Module], play: Callable[[nn.Module], Any]) -> tuple[Any, Any]:
    """What a loop shows of a plain model and of a compiled one."""
    found = []
    for planned in (False, True):
        torch.manual_seed(3)
        model = build()
        if planned:
            tightrope.compile(model, budget="64MiB", progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(play(model))
    return found[0], found[1]


class Failing(nn.Module):
    """Draws random numbers and counts in a buffer, then fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, fail: bool) -> Tensor:
        h = F.dropout(self.norm(self.one(x)), 0.5)
        if fail:
            raise KeyError("of the user")
        result: Tensor = self.two(h)
        return result


def test_after_an_error_of_the_forward_buffers_and_random_numbers_are_eager_s() -> None:
    def play(model: nn.Module) -> list[str]:
        with pytest.raises(KeyError, match="of the user"):
            model(ROWS, True)
        return [*bits(model, model(ROWS, False)), *map(digest, model.buffers())]

    wanted, found = both(Failing, play)
    assert found == wanted


class Around(nn.Module):
    """A part that Dynamo cannot look into, between layers."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.layer = part, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(self.part(x)) * 2
        return result


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_a_scripted_part_gets_real_gradients_and_keeps_those_it_had() -> None:
    def build() -> nn.Module:
        return Around(torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), ROWS))  # type: ignore[no-untyped-call]

    def play(model: nn.Module) -> list[str]:
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        model(ROWS).sum().backward()
        assert all(type(one.grad) is Tensor for one in model.parameters())
        return [digest(one.grad) for one in model.parameters()]

    wanted, found = both(build, play)
    assert found == wanted


def test_lazy_layers_get_their_sizes_in_the_first_call() -> None:
    def play(model: nn.Module) -> list[list[str]]:
        return [bits(model, model(ROWS)) for _ in range(3)]

    wanted, found = both(lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4)), play)
    assert found == wanted


class Wrapped(Tensor):
    """A tensor without memory of its own around one that has some."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, _meta: Any, _size: Any, _stride: Any) -> Any:
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = torch.utils._pytree.tree_map_only(Wrapped, lambda one: one.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Wrapped, func(*leaves[0], **leaves[1]))


def test_an_input_that_wraps_another_tensor_runs_as_in_eager() -> None:
    def play(model: nn.Module) -> list[str]:
        out = model(Wrapped(ROWS))
        return [type(out).__name__, digest(out.inner)]

    wanted, found = both(lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh()), play)
    assert found == wanted


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_step_refuses_hooks_on_gradients_that_it_would_not_call(hook: str) -> None:
    model = nn.Linear(16, 16)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tightrope.step(
        lambda x: model(x).square().mean(), budget="64MiB", model=model, optimizer=sgd, progress=False
    )
    handle = getattr(model.weight, hook)(lambda _: None)
    before = digest(model.weight)
    with pytest.raises(TightropeError, match="'weight' has a hook on its gradient"):
        step(ROWS)
    assert digest(model.weight) == before
    handle.remove()
    step(ROWS)
    assert digest(model.weight) != before


def test_a_backward_of_many_gradients_at_once_is_refused_and_the_next_one_is_right() -> None:
    model = tightrope.compile(nn.Sequential(nn.Linear(16, 16), nn.GELU()), budget="64MiB", progress=False)
    x = ROWS.clone().requires_grad_()
    with pytest.raises(TightropeError, match="is_grads_batched"):
        torch.autograd.grad(model(x).sum(0), x, torch.eye(16), is_grads_batched=True)
    (found,) = torch.autograd.grad(model(x).sum(), x)
    (wanted,) = torch.autograd.grad(model.forward(x).sum(), x)
    assert torch.equal(found, wanted)


class Choosing(nn.Module):
    """A branch on a value that torch takes as an op."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, self.one.forward, self.two.forward, (x,))
        return result


def test_a_branch_that_is_an_op_is_refused_by_name_at_level_e() -> None:
    model = tightrope.compile(Choosing(), budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match="level E"), pytest.raises(TightropeError, match=r"torch\.cond"):
        model(ROWS)


class Checkpointed(nn.Module):
    """A batch norm inside of a checkpoint: eager's backward runs it again, and averages again."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.body, x, use_reentrant=False)
        return result


def test_averages_that_a_checkpoint_updates_twice_are_named() -> None:
    model = tightrope.compile(Checkpointed(), budget="64MiB", progress=False)
    model(ROWS).sum().backward()
    assert any(
        "batch_norm inside of a checkpoint" in line and "test_hostile_loops.py" in line
        for line in tightrope.report(model).unlike_eager
    )
    plain = tightrope.compile(Checkpointed().eval(), budget="64MiB", progress=False)
    plain(ROWS).sum().backward()
    assert tightrope.report(plain).unlike_eager == ()
