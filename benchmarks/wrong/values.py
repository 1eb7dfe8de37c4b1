"""Values that are wrong, by family: drawn by name, so that a case can be drawn again."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import torch

import tightrope
from benchmarks.wrong.files import World, damaged, odd_path

HUGE: Final = 10**40


class Broken:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Raising(torch.nn.Module):
    """A model whose forward raises an error of its own."""

    def forward(self, *_: Any) -> Any:
        raise ZeroDivisionError("the user's own error")


@dataclass(frozen=True)
class Drawn:
    """A wrong value.

    Attributes:
        value: what is given.
        name: of the family and the member.
        must: taking it would be wrong.
        path: it is the path of a file that may be wrong inside, so that a field of it is quoted.
    """

    value: Any
    name: str
    must: bool = True
    path: bool = False


def _generator() -> Iterator[int]:
    yield 1


JUNK: Final[dict[str, Callable[[World], Any]]] = {
    "None": lambda world: None,
    "nan": lambda world: math.nan,
    "inf": lambda world: math.inf,
    "negative": lambda world: -7,
    "zero": lambda world: 0,
    "huge": lambda world: HUGE,
    "fraction": lambda world: 0.5,
    "True": lambda world: True,
    "complex": lambda world: 1j,
    "empty text": lambda world: "",
    "unicode": lambda world: "modèle—名前🎈",
    "surrogate": lambda world: "\ud800",
    "nul": lambda world: "a\0b",
    "long text": lambda world: "x" * 10_000,
    "escape": lambda world: "\x1b[2Jx",
    "bytes": lambda world: b"x",
    "list": lambda world: [1],
    "empty list": lambda world: [],
    "dict": lambda world: {"a": 1},
    "deep list": lambda world: _deep(500),
    "object": lambda world: object(),
    "class": lambda world: torch.nn.Linear,
    "function": lambda world: _generator,
    "generator": lambda world: _generator(),
    "tensor": lambda world: torch.ones(2, 8),
    "empty tensor": lambda world: torch.ones(0),
    "meta tensor": lambda world: torch.ones(2, device="meta"),
    "device": lambda world: torch.device("cpu"),
    "dtype": lambda world: torch.float32,
    "module": lambda world: torch.nn.Linear(3, 3),
    "broken": lambda world: Broken(),
    "plan": lambda world: tightrope.Plan.load(world["plan"]),
    "error": lambda world: ValueError("x"),
}
_NUMBERS: Final = ("zero", "negative", "huge", "fraction", "True")


def _deep(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


def _junk(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    name = rng.choice([one for one in JUNK if one not in taken])
    return Drawn(JUNK[name](world), name)


def _budget(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.4:
        return _junk(rng, world, taken)
    unit = rng.choice(("parsecs", "bit", "MiBs", "%%", "M iB", "εB", "zib", "e3", "MiB\n\nx", "% of it"))
    number = rng.choice(("-3", "nan", "1e9", "0", "0.0", "", "1/3", "٣", "1_000", "9" * 30, ".5", "0x10"))
    text = rng.choice((f"{number}{unit}", f"{number}MiB", f"64{unit}", f"{number}%", f"+64{unit}"))
    return Drawn(text, "budget text", must=not text.startswith("٣"))


def _small_budget(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    text = rng.choice((1, 63, "1%", "0.000000001%", "1KiB", "10%", 70_000, "65KiB"))
    return Drawn(text, "budget too small", must=False)


def _path(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.25:
        return _junk(rng, world, (*taken, "empty text", "unicode", "surrogate", "nul", "long text", "escape"))
    name, path, must = odd_path(rng, world)
    return Drawn(path, f"path: {name}", must)


def _out(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    name = rng.choice(("folder", "no folder", "nul", "long", "below a file", "empty", "proc"))
    path = {
        "folder": str(world.folder), "no folder": str(world.folder / "none" / "x"), "nul": "a\0b",
        "long": "y" * 5000, "below a file": world["plan"] + "/x", "empty": "", "proc": "/proc/none/x",
    }[name]  # fmt: skip
    return Drawn(path, f"output: {name}")


def _file(kind: str) -> "Draw":
    def draw(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
        chance = rng.random()
        if chance < 0.25:
            return _path(rng, world, taken)
        if chance < 0.45:
            other = rng.choice([one for one in world.files if one != kind and one not in taken])
            return Drawn(world[other], f"file of another kind: {other}", path=True)
        name, path, must = damaged(rng, world, kind)
        return Drawn(path, f"{kind}: {name}", must, path=True)

    return draw


def _model(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.5:
        return _junk(rng, world, (*taken, "module"))
    odd: dict[str, Callable[[], Any]] = {
        "no forward": lambda: torch.nn.ModuleList([torch.nn.Linear(8, 8)]),
        "raises": Raising,
        "on meta": lambda: torch.nn.Linear(8, 8, device="meta"),
        "other shapes": lambda: torch.nn.Linear(5, 3),
        "double": lambda: torch.nn.Linear(8, 8).double(),
        "half": lambda: torch.nn.Linear(8, 8).half(),
        "frozen": lambda: torch.nn.Linear(8, 8).requires_grad_(False),
        "no parameters": torch.nn.ReLU,
        "scripted": lambda: torch.jit.trace(  # type: ignore[no-untyped-call]
            torch.nn.Linear(8, 8), torch.ones(2, 8)
        ),
        "optimized": lambda: torch.compile(torch.nn.Linear(8, 8), backend="eager"),
        "exported": lambda: torch.export.export(torch.nn.Linear(8, 8), (torch.ones(2, 8),)).module(),
        "parallel": lambda: torch.nn.DataParallel(torch.nn.Linear(8, 8)),
        "weightless": lambda: _weightless(),
        "lazy": lambda: torch.nn.LazyLinear(8),
    }
    name = rng.choice(list(odd))
    return Drawn(odd[name](), f"model: {name}", must=False)


def _weightless() -> torch.nn.Module:
    model = torch.nn.Linear(8, 8)
    del model.weight
    return model


def _machine(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.4:
        return _junk(rng, world, taken)
    from tightrope.core.machine import Tier

    tier: dict[str, Any] = {"name": "ram", "bytes": 2**40}
    key = rng.choice(("bytes", "alignment", "read", "write", "latency", "engines", "name"))
    tier[key] = rng.choice((-1, 0, math.nan, "x", None, HUGE, [], 0.5))
    made = tightrope.Machine("odd", (Tier(**tier),))
    return Drawn(made, f"machine: {key}={tier[key]!r:.20}", must=key in ("bytes", "alignment"))


def _optimizer(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.4:
        return _junk(rng, world, taken)
    mine = [torch.nn.Parameter(torch.ones(8, 8))]
    odd: dict[str, Callable[[], Any]] = {
        "other model's": lambda: torch.optim.SGD(mine, lr=0.1),
        "not known": lambda: torch.optim.LBFGS(mine),
        "rare": lambda: torch.optim.Rprop(mine),
        "sparse": lambda: torch.optim.SparseAdam(mine),
        "lr nan": lambda: torch.optim.SGD(mine, lr=math.nan),
        "lr tensor": lambda: torch.optim.Adam(mine, lr=torch.tensor(0.1)),
        "capturable": lambda: torch.optim.Adam(mine, lr=0.1, capturable=True),
        "differentiable": lambda: torch.optim.Adam(mine, lr=0.1, differentiable=True),
        "no groups": lambda: _emptied(torch.optim.SGD(mine, lr=0.1)),
        "lr text": lambda: _set(torch.optim.SGD(mine, lr=0.1), lr="fast"),
        "no lr": lambda: _unset(torch.optim.SGD(mine, lr=0.1), "lr"),
    }
    name = rng.choice(list(odd))
    return Drawn(odd[name](), f"optimizer: {name}", must=name not in ("rare", "lr tensor"))


def _emptied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.param_groups.clear()
    return optimizer


def _set(optimizer: torch.optim.Optimizer, **options: Any) -> torch.optim.Optimizer:
    optimizer.param_groups[0].update(options)
    return optimizer


def _unset(optimizer: torch.optim.Optimizer, name: str) -> torch.optim.Optimizer:
    del optimizer.param_groups[0][name]
    return optimizer


def _function(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    if rng.random() < 0.4:
        return _junk(rng, world, (*taken, "function", "class", "module"))
    made = world.net()
    odd: dict[str, Callable[..., Any]] = {
        "returns None": lambda x: None,
        "returns text": lambda x: "loss",
        "returns a number": lambda x: 1.5,
        "returns no scalar": lambda x: made(x),
        "returns a constant": lambda x: torch.ones(()),
        "returns an empty tuple": lambda x: (),
        "returns a dict": lambda x: {"loss": made(x).sum()},
        "returns integers": lambda x: made(x).sum().long(),
        "returns complex": lambda x: made(x).sum() * 1j,
        "raises": lambda x: 1 // 0,
        "calls backward": lambda x: made(x).sum().backward(),
        "takes two": lambda x, y: made(x).sum() + y,
        "takes none": lambda: made(torch.ones(2, 8)).sum(),
        "detaches": lambda x: made(x).sum().detach(),
        "branches": lambda x: made(x).sum() if made(x).sum() > 0 else None,
        "reads": lambda x: made(x).sum() * made(x).sum().item(),
        "no gradient": torch.no_grad()(lambda x: made(x).sum()),
        "generator": lambda x: (yield made(x).sum()),
    }
    name = rng.choice(list(odd))
    return Drawn(odd[name], f"function: {name}", must=False)


def batch_values(rng: Random, right: torch.Tensor) -> tuple[str, Any]:
    """Draw something in place of a batch of shape (2, 8) or the like."""
    odd: dict[str, Callable[[], Any]] = {
        "double": right.double,
        "long": right.long,
        "half": right.half,
        "complex": lambda: right * 1j if right.is_floating_point() else right.to(torch.complex64),
        "bool": right.bool,
        "one more": lambda: torch.cat([right, right], -1),
        "one dimension more": lambda: right[None],
        "one dimension less": lambda: right[0],
        "no dimension": lambda: right.flatten()[0],
        "no rows": lambda: right[:0],
        "more rows": lambda: torch.cat([right, right]),
        "transposed": lambda: right.transpose(0, 1),
        "sparse": lambda: right.float().to_sparse(),
        "on meta": lambda: right.to("meta"),
        "trained": lambda: torch.nn.Parameter(right.float()),
        "nan": lambda: torch.full_like(right, math.nan) if right.is_floating_point() else right * 0 - 1,
        "None": lambda: None,
        "numpy": lambda: right.numpy(),
        "list": right.tolist,
        "text": lambda: "batch",
        "number": lambda: 3,
        "object": object,
        "nested": lambda: torch.nested.nested_tensor([right[0], right[0][:1]]),
        "quantized": lambda: torch.quantize_per_tensor(right.float(), 0.1, 0, torch.quint8),
        "conjugated": lambda: (right * 1j).conj(),
        "expanded": lambda: right[:1].expand(3, *right.shape[1:]),
    }
    name = rng.choice(list(odd))
    return name, odd[name]()


def _batch(rng: Random, world: World, taken: tuple[str, ...]) -> Drawn:
    name, value = batch_values(rng, torch.ones(2, 8))
    return Drawn(value, f"batch: {name}", must=False)


Draw = Callable[[Random, World, tuple[str, ...]], Drawn]
FAMILIES: Final[dict[str, Draw]] = {
    "junk": _junk,
    "budget": _budget,
    "small budget": _small_budget,
    "path": _path,
    "output": _out,
    "model": _model,
    "machine": _machine,
    "optimizer": _optimizer,
    "function": _function,
    "batch": _batch,
    **{
        f"{kind} file": _file(kind)
        for kind in ("plan", "graph", "trace", "step", "machine", "script", "csv", "profile")
    },
}  # fmt: skip
"""How to draw a value for an argument; names of `JUNK` that it takes are left out."""
