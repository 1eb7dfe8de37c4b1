"""A case: a loop that is played as it is and under a budget, and shows what it computes."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

import tightrope

WAYS: Final = ("bytes", "percent", "step", "backend", "bucket", "fuse")
"""``compile`` in bytes, in percent, `step`, ``torch.compile``, ``shapes="bucket"``, ``fuse=True``."""
_MORE: Final = ("percent", "backend", "bucket", "fuse")
EAGER: Final = "eager"
AMPLE: Final = "256MiB"
WIDTH: Final = 16
_TOLERANCE: Final = {torch.float32: 2e-3, torch.float64: 1e-11, torch.bfloat16: 0.1, torch.float16: 0.02}

Function = TypeVar("Function", bound=Callable[["Play"], None])


class Play:
    """One run of a case.

    Args:
        way: one of `WAYS`, ``eager``, or ``aot``: torch's own backend without a plan.
        budget: of every model.
        whole: whether steps show what `tightrope.step` shows: no gradients.
    """

    def __init__(self, way: str = EAGER, budget: str | int = AMPLE, *, whole: bool = False) -> None:
        self.way, self.budget, self.whole = way, budget, whole
        self.seen: list[Any] = []
        self.planned: list[Any] = []
        self.trains = False

    def model(self, model: nn.Module) -> Any:
        """Wrap a model as the way wants it."""
        if self.way == "aot":
            return torch.compile(model, backend="aot_eager")
        if self.way in ("eager", "step"):
            return model
        if self.way == "backend":
            made: Any = torch.compile(model, backend="tightrope", options={"budget": self.budget})
        else:
            shapes = "bucket" if self.way == "bucket" else None
            made = tightrope.compile(
                model, budget=self.budget, shapes=shapes, fuse=self.way == "fuse", progress=False
            )
        self.planned.append(made)
        return made

    def saw(self, *values: Any) -> None:
        """Show values, also those inside of lists, tuples and dicts."""
        for value in values:
            if isinstance(value, dict):
                self.saw(*value.keys(), *value.values())
            elif isinstance(value, list | tuple):
                self.saw(*value)
            else:
                self.seen.append(_bits(value) if isinstance(value, Tensor) else repr(value))

    def state(self, *models: nn.Module) -> None:
        """Show gradients, parameters and buffers."""
        for model in models:
            if not self.whole:
                self.saw(*(one.grad for one in model.parameters()))
            self.saw(*model.parameters(), *model.buffers())

    def train(
        self,
        model: nn.Module,
        batches: Iterable[Sequence[Any]],
        loss: Callable[[Any], Any] | None = None,
        optimizer: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Train in the most common loop, or by `tightrope.step`; return what is called."""
        self.trains, loss = True, loss or mean_square
        found = (optimizer or sgd)([one for one in model.parameters() if one.requires_grad])
        if self.way == "step":
            step = tightrope.step(
                lambda *batch: loss(model(*batch)), budget=self.budget, model=model, optimizer=found,
                progress=False,
            )  # fmt: skip
            self.planned.append(step)
            for batch in batches:
                self.saw(step(*batch))
                self.state(model)
            self.saw(torch.get_rng_state())
            return step
        called = self.model(model)
        for batch in batches:
            value = loss(called(*batch))
            value.backward()
            self.saw(value)
            if not self.whole:
                self.saw(*(one.grad for one in model.parameters()))
            found.step()
            found.zero_grad()
            self.state(model)
        self.saw(torch.get_rng_state())
        return called

    def backward(self, loss: Any, *models: nn.Module) -> None:
        """Run a backward and show its gradients; then drop them."""
        loss.backward()
        self.saw(loss)
        self.state(*models)
        for model in models:
            model.zero_grad()


CASES: Final[dict[str, Callable[[Play], None]]] = {}


def case(function: Function) -> Function:
    """List a case."""
    assert function.__name__ not in CASES
    CASES[function.__name__] = function
    return function


def is_kept(name: str) -> bool:
    """Tell whether a case is of the half that is not looked into: it is run for the figure alone."""
    return hashlib.blake2b(name.encode()).digest()[0] % 2 == 1


def drawn_ways(name: str) -> tuple[str, ...]:
    """Draw the ways of a case: in bytes, as a step, and one more."""
    return "bytes", "step", _MORE[hashlib.blake2b(name.encode()).digest()[1] % len(_MORE)]


class Net(nn.Module):
    """A module around a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if type(part) is Tensor:
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def mlp(*, dropout: float = 0.0, depth: int = 2, width: int = WIDTH) -> Any:
    layers = [
        layer
        for _ in range(depth)
        for layer in (
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )
    ]
    return nn.Sequential(*layers)


def rows(number: int = 32, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(number, *(shape or (WIDTH,)), generator=torch.Generator().manual_seed(seed))


def batches(number: int = 4, size: int = 32) -> list[tuple[Tensor]]:
    return [(rows(size, seed=seed),) for seed in range(number)]


def mean_square(output: Tensor) -> Any:
    return output.float().square().mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


class Bits(NamedTuple):
    """A tensor's values, kept outside of what a budget counts."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    raw: bytes

    def tensor(self) -> Tensor:
        """Make the values a tensor again."""
        found = torch.frombuffer(bytearray(self.raw), dtype=self.dtype).reshape(self.shape)
        return torch.view_as_real(found) if found.is_complex() else found


def _bits(value: Tensor) -> Bits:
    plain = value.detach()
    plain = (plain if plain.layout is torch.strided else plain.to_dense()).resolve_conj().resolve_neg()
    raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Bits(plain.dtype, tuple(plain.shape), raw)


def same(wanted: Sequence[Any], found: Sequence[Any], *, within: bool) -> str:
    """Say where two runs differ first; empty if nowhere."""
    for number, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one == other:
            continue
        where = f"value {number} of {len(wanted)}"
        if not isinstance(one, Bits) or not isinstance(other, Bits):
            return f"{where}: {one!r:.150} and {other!r:.150}"
        if one[:2] != other[:2]:
            return f"{where}: {one[:2]} and {other[:2]}"
        a, b = one.tensor().double(), other.tensor().double()
        bound = a.nan_to_num().abs().max().item() * (_TOLERANCE.get(one.dtype, 0.0) if within else 0.0)
        if not within or not torch.allclose(a, b, rtol=0.0, atol=bound, equal_nan=True):
            return f"{where} {one.shape}: differs by {(a - b).abs().max().item():.3g}"
    return "" if len(wanted) == len(found) else f"{len(wanted)} values and {len(found)}"
