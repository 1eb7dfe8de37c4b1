"""T1: choose which parameters a step updates, beside the update of all, on a transfer between digits.

A residual net of six blocks of width 16 learns five classes of scikit-learn's digits, and then, with a
new last layer, the other five; accuracy is of images that were not trained on. *Arena* is the least in
which nothing that ops make is paged: weights are, fused updates and results in place are taken for both.
The choice gets a quarter of it. Gains come from 64 images of the new classes. What is learned next is learned
as the step that is compiled learns it, one image a step, by PyTorch (`benchmarks.micro.together`). Rates and
numbers of epochs are those with the best mean of ``--fit``, which trains in both ways on other seeds, with
the choice of the first of them.

A row per seed, and one for all: a test has some 270 images, so that one is 0.37 points, and on one seed
chance weighs as much as the bar.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import fmean, stdev
from typing import Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.micro.digits import images, top1
from benchmarks.micro.nets import Block
from benchmarks.micro.rows import Row
from benchmarks.micro.together import Lesson, learned
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError
from tightrope.core.plan import PageOut
from tightrope_micro import CompiledStep, MicroStep, capture_step, compile_step
from tightrope_micro.choose import SparseChoice, choose_updates, gains_of, sparse_step
from tightrope_micro.paging.economy import Economy
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES

_RATE, _BATCH, _EPOCHS, _NUM_GAINS = 0.02, 8, 12, 64
"""Of what is learned first, in batches, and of gains."""
_PLANS = 60
_SEEDS = (0, 1, 2, 3, 4, 5, 30, 31, 32, 33, 34, 35)
_TUNED: Final = {"all": (0.0025, 24), "chosen": (0.01, 24), "last": (0.01, 24)}
"""Rate and epochs of each way, from `_fit`."""
_FIT_SEEDS, _FIT_RATES, _FIT_EPOCHS = tuple(range(10, 22)), (0.0025, 0.005, 0.01), (12, 24)
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
    """A row per seed, accuracy and arena of both, and one of all; ``fit`` prints what rates give instead."""
    if fit:
        _fit(console)
        return []
    known = [_transfer(seed) for seed in _SEEDS]
    choices = [_choice(one) for one in known]
    every = [name for name, _ in known[0].model.named_parameters()]
    last = [name for name in every if name.startswith("fc.")]
    sets: dict[str, list[Sequence[str]]] = {
        "all": [every] * len(known),
        "chosen": [choice[2].names for choice in choices],
        "last": [last] * len(known),
    }
    scores = {way: _accuracies(known, _SEEDS, names, *_TUNED[way]) for way, names in sets.items()}
    found = [
        _said(seed, choice, len(one.target[2]), {way: values[at] for way, values in scores.items()})
        for at, (seed, choice, one) in enumerate(zip(_SEEDS, choices, known, strict=True))
    ]
    return [*found, _together(scores, known)]


def _together(scores: dict[str, list[float]], known: Sequence["_Transfer"]) -> Row:
    """All seeds in one row: the mean difference and its standard error, and the worst."""
    apart = [some - full for some, full in zip(scores["chosen"], scores["all"], strict=True)]
    error = stdev(apart) / sqrt(len(apart))
    below = sum(one < -1.0 for one in apart)
    ours = (
        f"{len(apart)} seeds, {sum(len(one.target[2]) for one in known)} images: top-1 with the choice "
        f"{fmean(scores['chosen']):.2f} %, of all {fmean(scores['all']):.2f} %, of the last layer alone "
        f"{fmean(scores['last']):.2f} %; difference {fmean(apart):+.2f} points (standard error {error:.2f}), "
        f"worst {min(apart):+.2f}; more than a point below on {below}"
    )
    return Row("T1", "accuracy within 1 point, in the mean of all seeds", ours, fmean(apart) >= -1.0)


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
    _train_first(model, *source[:2], seed)
    model.fc = nn.Linear(64, 5)
    return _Transfer(model, {name: value.clone() for name, value in model.state_dict().items()}, target)


def _fit(console: Console) -> None:
    """Print the mean and the least top-1 on seeds that are not reported, by way, rate and epochs."""
    known = [_transfer(seed) for seed in _FIT_SEEDS]
    sets = {"all": tuple(known[0].start), "chosen": _choice(known[0])[2].names}
    console.print(f"T1 top-1 on seeds {_FIT_SEEDS}: way, rate, epochs, mean, least")
    for way, names in sets.items():
        for rate, epochs in product(_FIT_RATES, _FIT_EPOCHS):
            found = _accuracies(known, _FIT_SEEDS, [names] * len(known), rate, epochs)
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


def _compiled(step: MicroStep, arena: int) -> CompiledStep:
    found = within(step, arena)
    if found is None:
        raise InfeasibleError(f"what ops make has to be paged within {arena} B", asked=arena)
    return found


def _one_more(step: MicroStep, names: Sequence[str], every: Sequence[str]) -> int:
    """The least arena that was found for a set with one parameter more."""
    found: list[int] = []
    for name in every:
        if name not in names:
            more = sparse_step(step, [one for one in every if one in names or one == name])
            try:
                compile_step(more, find_machine("poet-cortex-m4f"), ram=_BESIDE, economy=_economy())
            except InfeasibleError as error:
                found.append((error.smallest_found or error.lower_bound) - _BESIDE)
    return min(found)


def _said(
    seed: int, choice: tuple[MicroStep, int, SparseChoice], num_tests: int, scores: dict[str, float]
) -> Row:
    step, full, found = choice
    everything, some = within(step, full), found.compiled.manifest
    assert everything is not None
    all_of_it = everything.manifest
    chosen, every, last = (f"{scores[what]:.2f} %" for what in ("chosen", "all", "last"))
    ended = "" if found.closed else ", search not ended"
    rates = ", ".join(f"{what} {rate:g} for {epochs} epochs" for what, (rate, epochs) in _TUNED.items())
    ours = (
        f"seed {seed}: arena {some.arena} B, of all {full} B ({full / some.arena:.2f} times); top-1 of "
        f"{num_tests} new digits {chosen}, of all {every}, of the last layer alone {last}; with any one "
        f"parameter more the arena is at least {_one_more(step, found.names, all_of_it.updated)} B; "
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


def _train_first(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> None:
    rule = torch.optim.SGD(model.parameters(), lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_EPOCHS):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            model.zero_grad()
            model(x[batch], y[batch]).backward()
            rule.step()


def _accuracies(
    known: Sequence[_Transfer], seeds: Sequence[int], names: Sequence[Sequence[str]], rate: float, epochs: int
) -> list[float]:
    """Train the named parameters of every net from where it starts, and test."""
    lessons = [
        Lesson(one.start, frozenset(some), *one.target[:2], seed)
        for one, seed, some in zip(known, seeds, names, strict=True)
    ]
    found = []
    for one, after in zip(known, learned(lessons, rate=rate, epochs=epochs), strict=True):
        one.model.load_state_dict(after)
        with torch.no_grad():
            found.append(top1(one.model.scores(one.target[2]), one.target[3]))
        one.model.load_state_dict(one.start)
    return found
