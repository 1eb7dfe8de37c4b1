"""T1: choose which parameters a step updates, beside the update of all, on a transfer between digits.

A residual net of six blocks of width 16 learns five classes of scikit-learn's digits, and then, with a
new last layer, the other five; accuracy is of images that were not trained on. *Arena* is the least in
which nothing that ops make is paged: weights are, fused updates and results in place are taken for both.
The choice gets a quarter of it. Gains come from 64 images of the new classes. Training is PyTorch's, on
one seed per row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.micro.digits import images, top1
from benchmarks.micro.nets import Block
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError
from tightrope.core.schedule import PageOut
from tightrope.micro import CompiledStep, MicroStep, capture_step, compile_step
from tightrope.micro.choose import SparseChoice, choose_updates, gains_of
from tightrope.micro.planning import STACK_RESERVE, STATIC_BYTES
from tightrope.plan.paging.economy import Economy

_RATE, _BATCH, _EPOCHS, _NUM_GAINS = 0.02, 8, 12, 64
_PLANS = 200
_SEEDS = (0, 1, 2)
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


def t1() -> list[Row]:
    """A row per seed: accuracy and arena of both."""
    return [_row(seed) for seed in _SEEDS]


def _row(seed: int) -> Row:
    source, target = _halves(seed)
    torch.manual_seed(seed)
    model = Digits()
    _train(model, list(model.parameters()), *source[:2], seed, epochs=_EPOCHS)
    model.fc = nn.Linear(64, 5)
    start = {name: value.clone() for name, value in model.state_dict().items()}
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
    last = [name for name in gains if name.startswith("fc.")]
    scores = {
        what: _accuracy(model, start, names, target, seed)
        for what, names in (("all", list(gains)), ("chosen", list(found.names)), ("last", last))
    }
    return _said(seed, full, step, found, scores)


def _compiled(step: MicroStep, arena: int) -> CompiledStep:
    found = within(step, arena)
    if found is None:
        raise InfeasibleError(f"what ops make has to be paged within {arena} B", asked=arena)
    return found


def _said(seed: int, full: int, step: MicroStep, found: SparseChoice, scores: dict[str, float]) -> Row:
    everything, some = within(step, full), found.compiled.manifest
    assert everything is not None
    all_of_it = everything.manifest
    chosen, every, last = (f"{scores[what]:.2f} %" for what in ("chosen", "all", "last"))
    ended = "" if found.closed else ", search not ended"
    ours = (
        f"seed {seed}: arena {some.arena} B, of all {full} B ({full / some.arena:.2f} times); top-1 of new "
        f"digits {chosen}, of all {every}, of the last layer alone {last}; "
        f"{len(found.names)} of {len(all_of_it.updated)} parameters, {100 * found.gain:.0f} % of the gain, "
        f"after {found.num_plans} plans{ended}; modelled {some.seconds:.2f} s and {some.joules:.4f} J a "
        f"step, of all {all_of_it.seconds:.2f} s and {all_of_it.joules:.4f} J; bytes written "
        f"{some.pages.bytes_out}, of all {all_of_it.pages.bytes_out}"
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
    model: nn.Module, updated: Sequence[nn.Parameter], x: Tensor, y: Tensor, seed: int, *, epochs: int
) -> None:
    rule = torch.optim.SGD(updated, lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            model.zero_grad()
            model(x[batch], y[batch]).backward()
            rule.step()


def _accuracy(
    model: Digits, start: dict[str, Tensor], names: Sequence[str], target: Digit, seed: int
) -> float:
    """Train the named parameters from the same start, and test."""
    model.load_state_dict(start)
    _train(
        model,
        [one for name, one in model.named_parameters() if name in names],
        *target[:2],
        seed,
        epochs=_EPOCHS,
    )
    with torch.no_grad():
        return top1(model.scores(target[2]), target[3])
