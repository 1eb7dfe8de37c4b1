"""How far forecast times of steps are from observed ones, before and after a graph's pace is known.

    python -m benchmarks pace [--steps N] [--rounds N] [--nets mlp,lstm]

Every net is compiled at several budgets in one process. 110 % and each other one run blocks of steps in
turn, so that what else the machine does meets both. *As measured*: the plan's own forecast, from ops measured
alone. *Same plan*: what two steps at 110 % let later ones expect. *Other budget*: what steps at 110 % alone
let the other plan expect. *Again*: 110 % against itself, one block later; what differs from 1 there is noise.
Times are thread-CPU times of forward and backward; printed is the median over rounds of observed over
forecast, or of its inverse where that is larger.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import torch
from rich.console import Console
from torch import Tensor, nn

import tightrope
from benchmarks.zoo import build
from tightrope.capture._torch import reset_dynamo
from tightrope.price import StepTime

BUDGETS: Final = ("110%", "92%", "80%", "70%", "60%")


def run(arguments: Sequence[str], console: Console) -> int:
    """Print a row per net and budget, and the worst of all."""
    parser = ArgumentParser(prog="python -m benchmarks pace")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", default=",".join(_NETS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    worst: dict[str, float] = {}

    def tell(name: str, budget: str, found: dict[str, float]) -> None:
        console.print(
            f"{name:13}{budget:>5}  " + "  ".join(f"{what} {off:.3f}" for what, off in found.items())
        )
        worst.update({what: max(off, worst.get(what, 1.0)) for what, off in found.items()})

    for name in options.nets.split(","):
        first = _Loop(name, BUDGETS[0])
        first.step()
        first.step()
        said = first.time().expected_ns
        found = first.run(options.steps)
        off = _off(found.forecast_ns, found.observed_ns)
        tell(name, BUDGETS[0], {"as measured": off, "same plan": _off(said, found.observed_ns)})
        for budget in BUDGETS[1:]:
            try:
                other = _Loop(name, budget)
                tell(name, budget, _compared(first, other, rounds=options.rounds, steps=options.steps))
            except tightrope.InfeasibleError:
                break
    console.print(f"worst:  {_row(worst)}")
    return 0


def _compared(first: "_Loop", other: "_Loop", *, rounds: int, steps: int) -> dict[str, float]:
    other.run(3)  # plans again where room was left in vain
    found: dict[str, list[float]] = {"as measured": [], "other budget": [], "again": []}
    for _ in range(rounds):
        before = first.run(steps)
        said, seen = other.time(), other.run(steps)
        found["as measured"].append(_off(said.forecast_ns, seen.observed_ns))
        found["other budget"].append(_off(said.expected_ns, seen.observed_ns))
        found["again"].append(_off(before.observed_ns, first.run(steps).observed_ns))
    return {what: median(offs) for what, offs in found.items()}


def _row(found: dict[str, float]) -> str:
    return "  ".join(f"{what} {off:.3f}" for what, off in found.items())


def _off(said: int | None, seen: int | None) -> float:
    if not said or not seen:
        raise ValueError("a time is not known")
    return max(said / seen, seen / said)


class _Loop:
    """Training steps of one net under one budget."""

    def __init__(self, name: str, budget: str) -> None:
        reset_dynamo()
        torch.manual_seed(0)
        model, self.inputs = _NETS[name]()
        self.model = tightrope.compile(model, budget=budget, progress=False)

    def step(self) -> None:
        self.model.zero_grad()
        found = self.model(*self.inputs)
        (found if found.dim() == 0 else found.square().mean()).backward()

    def time(self) -> StepTime:
        return tightrope.report(self.model).time

    def run(self, steps: int) -> StepTime:
        """Run steps after one that finds cold caches, and return what is known then."""
        for _ in range(steps + 1):
            self.step()
        return self.time()


def _mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(2048, 256),)


def _gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1000, n_positions=128, n_embd=128, n_layer=2, n_head=4, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = GPT2LMHeadModel(config)

        def forward(self, tokens: Tensor) -> Tensor:
            logits = self.net(input_ids=tokens).logits
            return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return Loss(), (torch.randint(0, 1000, (4, 128)),)


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 100)

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(given)[0])
        return found


def _lstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _Lstm(), (torch.randn(16, 64, 128),)


def _zoo(name: str) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def made() -> tuple[nn.Module, tuple[Tensor, ...]]:
        case = build(name, scale="bench")
        return case.model, case.inputs

    return made


_NETS: Final = {
    "mlp": _mlp,
    "gpt2": _gpt2,
    "resnet18": _zoo("resnet18"),
    "unet": _zoo("unet"),
    "lstm": _lstm,
    "mobilenetv2": _zoo("mobilenetv2"),
    "densenet121": _zoo("densenet121"),
    "vit": _zoo("vit"),
}
