"""One loop, played twice: on a plain model and on a compiled twin. What both show must be the same bits."""

import functools
import gc
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import tightrope
from tightrope.capture import capture_program, measured
from tightrope.plan import smallest, solve
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE

SLACK = 256 * 1024
"""Room for gradients that outlive a step, counted by page, and for the optimizer of a small net."""


class Seen:
    """Digests of everything that a loop shows, in order; no tensor is kept alive."""

    def __init__(self) -> None:
        self.bits: list[str] = []

    def __call__(self, *values: Any) -> None:
        self.bits += [digest(value) for value in values]

    def gradients(self, model: nn.Module) -> None:
        self(*(parameter.grad for parameter in model.parameters()))

    def all(self, model: nn.Module) -> None:
        self(*model.parameters(), *model.buffers())
        self.gradients(model)
        self(torch.get_rng_state())


Loop = Callable[[Any, Seen], None]


def digest(value: Any) -> str:
    """Hash type, shape and bits."""
    if not isinstance(value, Tensor):
        return repr(value)
    value = value.to_local() if hasattr(value, "to_local") else value  # its shard, where it is divided
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype}{tuple(value.shape)}{hashlib.blake2b(raw, digest_size=12).hexdigest()}"


def play(model: nn.Module, loop: Loop) -> list[str]:
    """Run a loop from a fixed random state."""
    torch.manual_seed(7)
    seen = Seen()
    loop(model, seen)
    seen.all(model)
    return seen.bits


def built(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return build()


def budget_for(
    model: nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any] | None = None, *, share: float = 0.3
) -> int:
    """Bytes held now, plus the smallest arena found, plus a share of what the unplanned step needs beyond."""
    program, real = capture_program(model, inputs, kwargs)
    graph = measured(program, real, accounts().allocator).graph
    del program, real
    most = solve(graph, budget=2**60, planner="given").forecast
    least = smallest(graph).forecast
    tangents = sum(s.size for s in graph.storages if s.external and s.kind == "input")
    accounts().note_tensors([*model.parameters(), *model.buffers(), *inputs])
    gc.collect()
    room = least.arena + least.outside + share * max(most.total - least.total, 0)
    return int(accounts().charged() + tangents + RESERVE + SLACK + room)


def same(
    build: Callable[[], nn.Module],
    loop: Loop,
    inputs: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    share: float = 0.3,
    extra: int = 512 * 1024,
    twin: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> nn.Module:
    """Play ``loop`` on a plain model and on a compiled twin and compare.

    Args:
        build: makes the model; called twice from one random state.
        loop: shows values to its second argument.
        inputs: of one call, for the budget.
        kwargs: of one call.
        share: how much of the room between the smallest and the unplanned step is given.
        extra: bytes that the loop itself holds while the model runs.
        twin: what to compare with; `captured` where the captured graph is known to differ from eager.

    Returns:
        The compiled model, after the loop.
    """
    gc.collect()
    wanted = play(twin(built(build)), loop)
    gc.collect()
    model = built(build)
    budget = budget_for(model, inputs, kwargs, share=share) + extra
    tightrope.compile(model, budget=budget, progress=False)
    found = play(model, loop)
    different = [number for number, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b]
    assert not different, f"of {len(wanted)} values, these differ: {different[:20]}"
    held(model)
    return model


def captured(model: nn.Module) -> nn.Module:
    """The captured graph without a plan, run by torch."""
    model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    return model


def held(model: nn.Module) -> None:
    """The budget is on, was held in every step, everything that ran was judged and checked, as planned."""
    report = tightrope.report(model)
    calls = compiled_of(model).calls
    assert report.level == "L1"
    assert 0 < calls.observed_charged <= calls.budget
    assert calls.num_divergences == 0
    assert report.proofs
    assert all(running.prepared.proof.num_parts >= running.position > 0 for running in calls.recent)
    native = accounts().allocator
    assert native is not None
    assert native.limit is not None
    assert native.limit + accounts().older + accounts().hidden == report.budget


def num_recomputed(model: nn.Module) -> int:
    return tightrope.report(model).num_recomputed


class Blocks(nn.Module):
    """A net whose activations outweigh its weights: linear layers with norm, GELU and dropout."""

    def __init__(self, *, width: int = 32, depth: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width),
                nn.LayerNorm(width),
                nn.GELU(),
                nn.Linear(width, width),
                nn.Dropout(dropout),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        out: Tensor = self.head(x)
        return out


def batches(number: int, *, size: int = 1024, width: int = 32, seed: int = 11) -> list[tuple[Tensor, Tensor]]:
    """Inputs and classes; the allocator counts them from the start, once for all who ask for the same."""
    accounts()
    return [_batch(size, width, seed, position) for position in range(number)]


@functools.cache
def _batch(size: int, width: int, seed: int, position: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * seed + position)
    return torch.randn(size, width, generator=generator), torch.randint(4, (size,), generator=generator)


@torch.library.custom_op("tightrope_tests::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Copy, with the last two dimensions in the other order in memory; its shape function says contiguous."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


turned.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))
turned.register_autograd(lambda _context, gradient: gradient.clone())


def trains_as(plain: nn.Module, model: nn.Module, rows: Tensor) -> None:
    """Two steps of both give the same gradients and buffers."""
    for _ in range(2):
        for one in (plain, model):
            one.zero_grad()
            one(rows).backward()
        pairs = zip(plain.parameters(), model.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
        assert all(map(torch.equal, plain.buffers(), model.buffers()))
