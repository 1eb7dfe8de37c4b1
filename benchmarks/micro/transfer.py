"""T1: choose which parameters a step updates, beside the update of all, on a transfer between digits.

A residual net of six blocks of width 16 learns five classes of scikit-learn's digits, and then, with a
new last layer, the other five; accuracy is of images that were not trained on. *Arena* is the least in
which nothing that ops make is paged: weights are, fused updates and results in place are taken for both.
The choice gets a quarter of it. Gains come from 64 images of the new classes. Training is PyTorch's, on
one seed per row. Rates and numbers of epochs are those with the best mean of ``--fit``, which trains in both
ways on other seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.micro.digits import images, top1
from benchmarks.micro.nets import Block
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError
from tightrope.core.schedule import PageOut
from tightrope.micro import CompiledStep, MicroStep, capture_step, compile_step
from tightrope.micro.choose import SparseChoice, choose_updates, gains_of, sparse_step
from tightrope.micro.planning import STACK_RESERVE, STATIC_BYTES
from tightrope.plan.paging.economy import Economy

_RATE, _BATCH, _EPOCHS, _NUM_GAINS = 0.02, 8, 12, 64
_PLANS = 60
_SEEDS = (0, 1, 2, 3, 4, 5)
_TUNED: Final = {"all": (0.02, 12), "chosen": (0.02, 24), "last": (0.02, 24)}
"""Rate and epochs of each way, from `_fit`."""
_FIT_SEEDS, _FIT_RATES, _FIT_EPOCHS = (10, 11, 12, 13, 14, 15), (0.01, 0.02), (12, 24)
_BESIDE = STACK_RESERVE + STATIC_BYTES


class Digits(nn.Module):
    """A stem, six residual blocks of one width, the largest elements of each map, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(16, 16) for _ in range(6)))
        self.fc = nn.Linear(16 * 2 * 2, 5)

    def scores(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.blocks(F.relu(self.stem(x))), 4)
        found: Tensor = self.fc(x.flatten(1))
        return found

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(x), y)


def within(step: MicroStep, arena: int) -> CompiledStep | None:
    """Compile a step without pages of what ops make, None where that does not fit."""
    try:
        found = compile_step(step, find_machine("poet-cortex-m4f"), ram=arena + _BESIDE, economy=_economy())
    except InfeasibleError:
        return None
    copies = (step for step in found.planned.plan.schedule.steps if isinstance(step, PageOut))
    storages = found.planned.tiled.graph.storages
    return found if all(storages[one.storage].home for one in copies) else None


def _economy() -> Economy:
    return Economy(reruns=False, pages=False, walks=20)


def least_arena(step: MicroStep) -> int:
    """The least arena in which nothing that ops make is paged, within 256 bytes."""
    low, high = 0, 2**17
    while high - low > 256:
        middle = (low + high) // 2
        found = within(step, middle)
        low, high = (middle, high) if found is None else (low, found.manifest.arena)
    return high


def t1(console: Console, *, fit: bool = False) -> list[Row]:
    """A row per seed: accuracy and arena of both; ``fit`` prints what rates give on other seeds instead."""
    if fit:
        _fit(console)
        return []
    return [_row(seed) for seed in _SEEDS]


@dataclass(frozen=True)
class _Transfer:
    """A net that knows five classes, and what it learns next.

    Attributes:
        model: with a new last layer.
        start: its parameters.
        target: the other classes.
    """

    model: Digits
    start: dict[str, Tensor]
    target: "Digit"


def _transfer(seed: int) -> _Transfer:
    source, target = _halves(seed)
    torch.manual_seed(seed)
    model = Digits()
    _train(model, list(model.parameters()), *source[:2], seed, rate=_RATE, epochs=_EPOCHS)
    model.fc = nn.Linear(64, 5)
    return _Transfer(model, {name: value.clone() for name, value in model.state_dict().items()}, target)


def _fit(console: Console) -> None:
    """Print the mean and the least top-1 on seeds that are not reported, by way, rate and epochs."""
    known = [_transfer(seed) for seed in _FIT_SEEDS]
    sets = [(one, ("all", "chosen"), (list(one.start), _choice(one)[2].names)) for one in known]
    console.print(f"T1 top-1 on seeds {_FIT_SEEDS}: way, rate, epochs, mean, least")
    for at, way in enumerate(("all", "chosen")):
        for rate, epochs in product(_FIT_RATES, _FIT_EPOCHS):
            found = [
                _accuracy(one, names[at], seed, rate, epochs)
                for (one, _, names), seed in zip(sets, _FIT_SEEDS, strict=True)
            ]
            console.print(f"{way:<8} {rate} {epochs:>3} {fmean(found):.2f} {min(found):.2f}")


def _choice(one: _Transfer) -> tuple[MicroStep, int, SparseChoice]:
    """The whole step, its least arena, and the choice within a quarter of that."""
    model, target = one.model, one.target
    batch = target[0][:1], target[1][:1]
    step = capture_step(model, batch, torch.optim.SGD(model.parameters(), lr=_RATE))
    machine, full = find_machine("poet-cortex-m4f"), least_arena(step)
    gains = gains_of(model, [(target[0][:_NUM_GAINS], target[1][:_NUM_GAINS])])
    found = choose_updates(
        step,
        machine,
        gains,
        ram=full // 4 + _BESIDE,
        plans=_PLANS,
        compiles=lambda one: _compiled(one, full // 4),
    )
    return step, full, found


def _row(seed: int) -> Row:
    one = _transfer(seed)
    step, full, found = _choice(one)
    names = [name for name, _ in one.model.named_parameters()]
    sets = {"all": names, "chosen": found.names, "last": [name for name in names if name.startswith("fc.")]}
    scores = {what: _accuracy(one, some, seed, *_TUNED[what]) for what, some in sets.items()}
    return _said(seed, full, step, found, scores)


def _compiled(step: MicroStep, arena: int) -> CompiledStep:
    found = within(step, arena)
    if found is None:
        raise InfeasibleError(f"what ops make has to be paged within {arena} B", asked=arena)
    return found


def _one_more(step: MicroStep, names: Sequence[str], every: Sequence[str]) -> int:
    """The least arena that was found for a set with one parameter more."""
    found = []
    for name in every:
        if name not in names:
            more = sparse_step(step, [one for one in every if one in names or one == name])
            try:
                compile_step(more, find_machine("poet-cortex-m4f"), ram=_BESIDE, economy=_economy())
            except InfeasibleError as error:
                found.append((error.smallest_found or error.lower_bound) - _BESIDE)
    return min(found)


def _said(seed: int, full: int, step: MicroStep, found: SparseChoice, scores: dict[str, float]) -> Row:
    everything, some = within(step, full), found.compiled.manifest
    assert everything is not None
    all_of_it = everything.manifest
    chosen, every, last = (f"{scores[what]:.2f} %" for what in ("chosen", "all", "last"))
    ended = "" if found.closed else ", search not ended"
    rates = ", ".join(f"{what} {rate:g} for {epochs} epochs" for what, (rate, epochs) in _TUNED.items())
    ours = (
        f"seed {seed}: arena {some.arena} B, of all {full} B ({full / some.arena:.2f} times); top-1 of new "
        f"digits {chosen}, of all {every}, of the last layer alone {last}; with any one parameter more the "
        f"arena is at least {_one_more(step, found.names, all_of_it.updated)} B; "
        f"{len(found.names)} of {len(all_of_it.updated)} parameters, {100 * found.gain:.0f} % of the gain, "
        f"after {found.num_plans} plans{ended}; modelled {some.seconds:.2f} s and {some.joules:.4f} J a "
        f"step, of all {all_of_it.seconds:.2f} s and {all_of_it.joules:.4f} J; bytes written "
        f"{some.pages.bytes_out}, of all {all_of_it.pages.bytes_out}; rates: {rates}"
    )
    held = 4 * some.arena <= full and scores["chosen"] >= scores["all"] - 1.0
    return Row("T1", "arena <= 1/4 of that of all updates, accuracy within 1 point", ours, held)


Digit = tuple[Tensor, Tensor, Tensor, Tensor]


def _halves(seed: int) -> tuple[Digit, Digit]:
    """Images, classes, images and classes of tests: of five drawn classes, and of the others."""
    data = images()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    place = torch.empty(10, dtype=torch.long)
    place[order] = torch.arange(10)
    found = []
    for first in (True, False):
        known, labels = place[data.known], place[data.labels]
        mine, tests = (known < 5) == first, (labels < 5) == first
        found.append((data.train[mine], known[mine] % 5, data.test[tests], labels[tests] % 5))
    return found[0], found[1]


def _train(
    model: nn.Module,
    updated: Sequence[nn.Parameter],
    x: Tensor,
    y: Tensor,
    seed: int,
    *,
    rate: float,
    epochs: int,
) -> None:
    rule = torch.optim.SGD(updated, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            model.zero_grad()
            model(x[batch], y[batch]).backward()
            rule.step()


def _accuracy(one: _Transfer, names: Sequence[str], seed: int, rate: float, epochs: int) -> float:
    """Train the named parameters from the same start, and test."""
    model, (x, y, test, labels) = one.model, one.target
    model.load_state_dict(one.start)
    some = [parameter for name, parameter in model.named_parameters() if name in names]
    _train(model, some, x, y, seed, rate=rate, epochs=epochs)
    with torch.no_grad():
        return top1(model.scores(test), labels)
