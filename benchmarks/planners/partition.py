"""A budget in bytes inside stock torch.compile, beside torch's own share of activation memory.

``peak`` is observed: live bytes of a step above those at its start. ``asked`` and ``modelled`` are what
our budget leaves for the ops, and what the choice is simulated to take. ``gradient`` is the largest
relative difference from the same backend without recomputation; with dropout, torch's own is wrong.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch import Tensor, nn

from benchmarks._measure import Loop, live_peak
from benchmarks.planners.question import Question, Row, Settings
from tightrope.capture._torch import reset_dynamo
from tightrope.native.hook.allocator import allocator
from tightrope_planners import partition

SHARES = (1.0, 0.8, 0.5, 0.3, 0.1, 0.0)
BUDGETS = (0.9, 0.7, 0.6, 0.5, 0.4)
"""Of the eager peak above the inputs."""
_MIB = 2**20


class Dropped(nn.Module):
    """Residual blocks with dropout: random ops between everything that can be made again."""

    def __init__(self, width: int = 256, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + nn.functional.dropout(nn.functional.gelu(layer(norm(x))), 0.2)
        return x.square().mean()


class Attending(nn.Module):
    def __init__(self, width: int = 128, depth: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.inner = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(len(self.inner)):
            query, key, value = self.inner[i](self.norms[2 * i](x)).chunk(3, -1)
            x = x + self.outer[i](torch.softmax(query @ key.transpose(-1, -2) / 11, -1) @ value)
            x = x + self.down[i](nn.functional.gelu(self.up[i](self.norms[2 * i + 1](x))))
        return x.square().mean()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dropout": (Dropped, (2048, 256)),
    "attention": (Attending, (4, 128, 128)),
}


def run(settings: Settings) -> Iterator[Row]:
    if not settings.wants("compile"):
        return
    torch.set_num_threads(1)
    for name in list(NETS)[: 1 if settings.quick else None]:
        inputs = _persistent(name)
        eager, _, _ = _measure(name, None, nullcontext())
        for backend in ("aot_eager",) if settings.quick else ("aot_eager", "inductor"):
            right: list[Tensor] = []
            for share in SHARES:
                peak, grads, _ = _measure(name, backend, functorch.patch(activation_memory_budget=share))
                right = right or grads
                yield _row(name, backend, f"torch {share:g}", None, None, peak, _differs(grads, right))
            for share in BUDGETS:
                asked = int(share * eager)
                try:
                    setting = partition.within(inputs + asked)
                    peak, grads, model = _measure(name, backend, setting)
                except Exception as error:
                    if "InfeasibleError" not in str(error):
                        raise
                    yield _row(name, backend, "ours", asked, None, None, None)
                    continue
                modelled = None if model is None else model - inputs
                yield _row(name, backend, "ours", asked, modelled, peak, _differs(grads, right))


def _row(
    name: str,
    backend: str,
    setting: str,
    asked: int | None,
    modelled: int | None,
    peak: int | None,
    error: float | None,
) -> Row:
    figures = {"asked": asked, "modelled": modelled, "peak": peak}
    mib = {key: None if value is None else round(value / _MIB, 2) for key, value in figures.items()}
    wrong = None if error is None else round(error, 6)
    return {"net": name, "backend": backend, "setting": setting, **mib, "gradient": wrong}


def _made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    make, shape = NETS[name]
    return make(), torch.randn(shape)


def _persistent(name: str) -> int:
    model, x = _made(name)
    sizes = [t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers(), x)]
    return sum(-(-size // 64) * 64 for size in sizes)


def _measure(
    name: str, backend: str | None, setting: AbstractContextManager[Any]
) -> tuple[int, list[Tensor], int | None]:
    """Return the observed peak, the gradients of one seed, and what the choice was simulated to take."""
    reset_dynamo()
    gc.collect()
    model, x = _made(name)
    call: Callable[..., Tensor] = model.forward if backend is None else _compiled(model, backend)
    loop, chosen = Loop(model, (x,), call), list[int]()
    choose = partition.choose

    def noted(*args: Any, **options: Any) -> Any:
        choice = choose(*args, **options)
        chosen.append(choice.peak)
        return choice

    partition.choose = noted
    try:
        with setting, inductor.patch(force_disable_caches=True):
            peak = live_peak(loop, allocator())
            torch.manual_seed(0)
            loop.clear()
            loop.step()
    finally:
        partition.choose = choose
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return peak, grads, chosen[-1] if chosen else None


def _compiled(model: nn.Module, backend: str) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(model, backend=backend, dynamic=False)
    return compiled


def _differs(grads: list[Tensor], right: list[Tensor]) -> float:
    pairs = zip(grads, right, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


QUESTION = Question(("compile",), "Bytes inside torch.compile: our partition beside torch's own", run)
