"""Do calls that break an assumption of a capture get eager's bits? 20 generated calls per assumption."""

import argparse
import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tightrope
from tightrope.capture.assumptions import GUARDED

WIDTH: Final = 16
Around = Callable[["Net"], Any]
Inputs = Callable[[random.Random], tuple[Any, ...]]


_ACTS: Final[list[Callable[[Tensor], Tensor]]] = [torch.tanh, torch.sin, functional.gelu, functional.silu]


class Net(nn.Module):
    """A small net; what it does beyond a layer is drawn, or wanted by the case."""

    def __init__(self, draw: random.Random, does: str) -> None:
        super().__init__()
        self.does, self.act = does, draw.choice(_ACTS)
        self.scale: Tensor
        self.inner, self.more = nn.Linear(WIDTH, WIDTH), draw.random() < 0.5
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor, y: Tensor, factor: float = 2.0) -> Tensor:
        if self.does == "write first":
            x.mul_(factor)
        if self.does == "write second":
            y.add_(factor)
        h = self.inner(x)
        if self.does == "attend":
            heads = (one.view(1, 2, -1, 8) for one in (h, h.cos(), h.sin()))
            h = functional.scaled_dot_product_attention(*heads).reshape(x.shape)
        if self.does == "look":
            y = y.as_strided((WIDTH,), (1,))
        h = self.act(h) * self.scale * torch.ones(WIDTH) + x * x.sin() + y
        if self.more:
            h = h * factor
        if self.training:
            h = h * 0.75
        loss: Tensor = h.abs().square().mean()
        return loss


@dataclass(frozen=True)
class Case:
    """Two kinds of calls: the second breaks an assumption that the first makes.

    Attributes:
        broken: inputs of the second.
        does: what the net does.
        first: inputs of the first.
        around: what the second call runs inside of.
        around_first: what the first call runs inside of.
    """

    broken: Inputs | None = None
    does: str = ""
    first: Inputs | None = None
    around: Around = field(default=lambda _: contextlib.nullcontext())
    around_first: Around = field(default=lambda _: contextlib.nullcontext())


def _pair(draw: random.Random) -> tuple[Tensor, Tensor]:
    return torch.randn(8, WIDTH), torch.randn(8, WIDTH)


def _second(change: Callable[[Tensor], Tensor]) -> Inputs:
    def made(draw: random.Random) -> tuple[Tensor, Tensor]:
        x, y = _pair(draw)
        return x, change(y)

    return made


def _first(change: Callable[[Tensor], Tensor]) -> Inputs:
    def made(draw: random.Random) -> tuple[Tensor, Tensor]:
        x, y = _pair(draw)
        return change(x), y

    return made


def _shared(draw: random.Random) -> tuple[Tensor, Tensor]:
    """Two inputs in one memory, in one of many ways."""
    whole = torch.randn(32, 2 * WIDTH)
    row, skip = draw.randrange(16), draw.choice([1, 3, 4, 7, 8])
    left = whole[:, :WIDTH]
    ways = (
        (left[row : row + 8], left[row + skip : row + skip + 8]),
        (left[row : row + 8], whole[row : row + 8, WIDTH:]),
        (left[row : row + 8], left[row : row + 8]),
        (left[row : row + 8], left[row : row + 8].detach()),
        (whole.view(-1, WIDTH)[row : row + 8], whole.view(-1)[row * 16 : row * 16 + 128].view(8, WIDTH)),
        (left[row : row + 8],) * 2,
    )
    return draw.choice(ways)


def _slice(draw: random.Random) -> tuple[Tensor, Tensor]:
    start = draw.randrange(1, 9)
    return torch.randn(8, WIDTH), torch.randn(20, WIDTH)[start : start + 8]


def _leaf(x: Tensor) -> Tensor:
    return x.requires_grad_()


def _same(draw: random.Random) -> tuple[Tensor, Tensor]:
    x, _ = _pair(draw)
    return x, x


@contextlib.contextmanager
def _during(do: Callable[[Net], Callable[[], object]], net: Net) -> Iterator[None]:
    undo = do(net)
    try:
        yield
    finally:
        undo()


def _setting(do: Callable[[Net], Callable[[], object]]) -> Around:
    return lambda net: _during(do, net)


def _set(change: Callable[[Any], Any], wanted: Any, before: Any) -> Around:
    def do(_: Net) -> Callable[[], object]:
        change(wanted)
        return lambda: change(before)

    return _setting(do)


def _without_bias(net: Net) -> Callable[[], object]:
    net.inner.bias.requires_grad_(False)
    return lambda: net.inner.bias.requires_grad_(True)


def _evaluate(net: Net) -> Callable[[], object]:
    net.eval()
    return lambda: net.train()


def _hook(net: Net) -> Callable[[], None]:
    return net.inner.register_forward_hook(lambda _module, _args, output: output * 2).remove


def _move(net: Net) -> Callable[[], None]:
    net.scale = net.scale.flip(0)
    net.inner.weight.data = net.inner.weight.data.clone()
    return lambda: None


def _autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Around:
    return lambda _: torch.autocast("cpu", dtype, **options)


def _complex(y: Tensor) -> Tensor:
    return torch.complex(y, y.cos())


CASES: Final[dict[str, Case]] = {
    "shape": Case(lambda draw: tuple(torch.randn(2 * draw.randrange(1, 4), WIDTH) for _ in "x") * 2),
    "strides": Case(_second(lambda y: y.reshape(WIDTH, 8).t())),
    "dtype": Case(_second(torch.Tensor.double)),
    "conjugate and negative bits": Case(_second(lambda y: _complex(y).conj()), first=_second(_complex)),
    "class of a tensor": Case(_second(lambda y: nn.Parameter(y, requires_grad=False))),
    "the same tensor twice": Case(_same),
    "gradient of an input": Case(_first(_leaf)),
    "gradient of a parameter": Case(around=_setting(_without_bias)),
    "values of Python": Case(lambda draw: (*_pair(draw), draw.choice([0.5, 3.0, 1.0]))),
    "training mode": Case(around=_setting(_evaluate)),
    "module hooks": Case(around=_setting(_hook)),
    "grad mode": Case(around=lambda _: torch.no_grad()),
    "inference mode": Case(around=lambda _: torch.inference_mode()),
    "autocast": Case(around=_autocast()),
    "dtype of autocast": Case(around_first=_autocast(), around=_autocast(torch.float16)),
    "cache of autocast": Case(around_first=_autocast(), around=_autocast(cache_enabled=False)),
    "deterministic algorithms": Case(around=_set(torch.use_deterministic_algorithms, True, False)),
    "number of threads": Case(around=_set(torch.set_num_threads, 2, 1)),
    "default dtype": Case(around=_set(torch.set_default_dtype, torch.float64, torch.float32)),
    "default device": Case(around=lambda _: torch.device("cpu")),
    "memory of parameters and buffers": Case(around=_setting(_move)),
    "shared memory": Case(_shared, does="write"),
    "storage offset": Case(_slice, does="look"),
    "computed inputs": Case(_first(lambda x: _leaf(x) * 1.5), first=_first(_leaf)),
    "kernels of attention": Case(does="attend", around=lambda _: sdpa_kernel(SDPBackend.MATH)),
}


def bits(name: str, seed: int, wrap: Callable[[nn.Module], Any]) -> list[Any]:
    """Everything that three calls of a generated net show: the first kind, the second, and one of both."""
    case, draw = CASES[name], random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    does = draw.choice(["write first", "write second"]) if case.does == "write" else case.does
    net = Net(draw, does)
    run, found = wrap(net), list[Any]()
    order = draw.choice([(0, 1, 0), (1, 0, 1), (0, 1, 1)])
    for kind in order:
        inputs = (case.broken if kind else case.first) or _pair
        args = inputs(draw)
        with (case.around if kind else case.around_first)(net):
            loss = run(*args)
            if loss.requires_grad:
                total = loss + args[0].cos().mean() if args[0].requires_grad else loss
                total.backward()
        tensors = [loss.detach(), *args, *(one.grad for one in (*net.parameters(), args[0]) if one.is_leaf)]
        found += [
            (str(one.dtype), one.detach().resolve_conj().tolist()) if isinstance(one, Tensor) else one
            for one in tensors
        ]
        net.zero_grad()
    return found


def noticed(name: str, seed: int) -> bool:
    """Tell whether calls that break an assumption have eager's bits."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = bits(name, seed, lambda net: net)
        found = bits(name, seed, lambda net: tightrope.compile(net, budget="256MiB", progress=False))
    return found == wanted


def run(arguments: list[str], console: Console) -> int:
    """Generate calls for every assumption, and count those that differ from eager."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks guards", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="calls per assumption")
    parser.add_argument("--only", default="", help="assumptions whose names contain this")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    total, wrong = 0, list[str]()
    for name, by in GUARDED.items():
        if options.only not in name or name not in CASES:
            continue
        missed = [seed for seed in range(options.seeds) if not noticed(name, seed)]
        total, wrong = total + options.seeds, wrong + [f"{name} {seed}" for seed in missed]
        console.print(f"{name:34} {by:24} {options.seeds - len(missed)}/{options.seeds}")
    console.print(f"{total - len(wrong)} of {total} calls have eager's bits. {', '.join(wrong)}")
    return 1 if wrong else 0
