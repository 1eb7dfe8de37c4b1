"""H10: plain profiles of nets that nobody tuned for, told with the model at hand and by names alone."""

import random
import tempfile
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.recorder.families import Case, draw
from benchmarks.recorder.row import Figure, Row
from benchmarks.zoo import Scale
from tightrope.core import Doubt, EventPhase, Module, Trace
from tightrope.core.trace import SURE_MATCH
from tightrope_trace import DryRun, annotate, dry_run, parse_profile, record_eager
from tightrope_trace.slices import Slice, nested

FIRST_UNSEEN: Final = 2000
"""Seeds from here on were not looked at while anything was chosen."""
_SEEDS: Final[dict[Scale, int]] = {"test": 4, "bench": 30}
_SCORED: Final = frozenset({EventPhase.FORWARD.value, EventPhase.LOSS.value, EventPhase.BACKWARD.value})
_LEAST: Final = 97.0


@dataclass(frozen=True, slots=True)
class Truth:
    """A plain profile of one run, and what hooks and marks saw in the same run.

    Attributes:
        data: as `torch.profiler` writes it.
        modules: the module tree.
        owners: modules by op, several where they share a parameter.
        stages: by op.
        case: what ran.
    """

    data: bytes
    modules: tuple[Module, ...]
    owners: list[frozenset[int]]
    stages: list[str]
    case: Case


@dataclass
class _Marks:
    """When a stage of the training loop began."""

    times: list[int] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def __call__(self, stage: EventPhase) -> None:
        self.times.append(time.time_ns())
        self.stages.append(stage.value)

    def at(self, when: int) -> str:
        """The stage at a moment."""
        position = bisect_right(self.times, when)
        return self.stages[position - 1] if position else EventPhase.LOAD_DATA.value


class _Batches(Dataset[tuple[torch.Tensor, ...]]):
    """Batches that are ready."""

    def __init__(self, ready: list[tuple[torch.Tensor, ...]]) -> None:
        self.ready = ready

    def __len__(self) -> int:
        return len(self.ready)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        return self.ready[number]


class _Loop:
    """A training loop as people write it, drawn."""

    def __init__(self, case: Case, rng: random.Random) -> None:
        self.case, self.rng = case, rng
        self.data = rng.choice(("given", "stacked", "loader", "sampled"))
        self.copies, self.by_hand, self.clips, self.logs = (rng.random() < p for p in (0.5, 0.3, 0.3, 0.5))
        kind = rng.choice((torch.optim.SGD, torch.optim.AdamW))
        self.optimizer = kind(case.model.parameters(), lr=1e-3)

    def batches(self, count: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Batches, made in one of several ways."""
        whole = (*self.case.inputs, self.case.target)
        if self.data == "loader":
            yield from DataLoader(_Batches([whole] * count), batch_size=None)
        for _ in range(count if self.data != "loader" else 0):
            if self.data == "stacked":
                yield tuple(torch.stack([row.clone() for row in one]) for one in whole)
            elif self.data == "sampled":
                torch.randperm(7)
                yield tuple(one[torch.arange(len(one))] for one in whole)
            else:
                yield whole

    def run(self, steps: int, mark: _Marks) -> None:
        """Train for some steps, and mark every stage."""
        model, batches = self.case.model, self.batches(steps)
        for _ in range(steps):
            mark(EventPhase.LOAD_DATA)
            batch = next(batches)
            if self.data == "sampled":
                torch.rand(3)
            mark(EventPhase.COPY)
            if self.copies:
                batch = tuple(one.to("cpu", copy=True) for one in batch)
            mark(EventPhase.OPTIMIZER)
            self.optimizer.zero_grad()
            mark(EventPhase.FORWARD)
            out = model(*batch[:-1])
            mark(EventPhase.LOSS)
            loss: Any = self.case.loss(out, batch[-1])
            mark(EventPhase.BACKWARD)
            loss.backward()
            mark(EventPhase.OPTIMIZER)
            self._update()
            mark(EventPhase.OTHER)
            if self.logs and not self.by_hand:
                loss.item()
        mark(EventPhase.LOAD_DATA)

    def _update(self) -> None:
        if self.clips:
            nn.utils.clip_grad_norm_(self.case.model.parameters(), 1.0)
        if not self.by_hand:
            self.optimizer.step()
            return
        with torch.no_grad():
            for parameter in self.case.model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-1e-3)


def observed(family: str, seed: int, *, watched: bool = False) -> Truth:
    """Run a net of a family under the profiler, with hooks beside it.

    Args:
        family: of nets.
        seed: of the net, and of its training loop.
        watched: whether somebody checks what some modules make, which the net does not do by itself.
    """
    case, rng, marks = draw(family, seed), random.Random(seed), _Marks()
    if watched:
        _watch(case, rng)
    loop = _Loop(case, rng)
    loop.run(1, _Marks())
    with record_eager(case.model, memory=False) as recording:
        loop.run(rng.randint(1, 2), marks)
    profile: Any = recording._profile
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile.export_chrome_trace(str(path))
        data = path.read_bytes()
    trace = recording.trace
    rows = [row for row in profile.profiler.kineto_results.events() if not row.name().startswith("[")]
    base = min(row.start_ns() for row in rows)
    stages = [marks.at(event.start + base) for event in trace.events]
    return Truth(data, trace.modules, _owners(case.model, trace), stages, case)


def _watch(case: Case, rng: random.Random) -> None:
    """Let some modules say whether what they make is finite.

    Not those that end with the model: what follows its last op is the loss for whoever reads a profile.
    """
    run = dry_run(case.model, case.inputs)
    ends = run.modules[run.owners[-1]].path
    for path, module in case.model.named_modules():
        inside = path and not f"{ends}.".startswith(f"{path}.")
        if rng.random() < 0.06 and inside and not isinstance(module, nn.ModuleList):
            module.register_forward_hook(_check)


def _check(_module: nn.Module, _args: Any, out: Any) -> None:
    torch.isfinite(out if isinstance(out, torch.Tensor) else out[0]).all()


def _owners(model: nn.Module, trace: Trace) -> list[frozenset[int]]:
    """Modules by op; a gradient that modules share may be said to be of any of them."""
    holders: dict[nn.Parameter, set[int]] = {}
    for number, module in enumerate(model.modules()):
        for parameter in module.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(number)
    shared = [frozenset(numbers) for numbers in holders.values() if len(numbers) > 1]
    found = []
    for event in trace.events:
        among = next((group for group in shared if event.module in group), None)
        sums = among is not None and event.name.endswith("AccumulateGrad")
        found.append(among if sums and among is not None else frozenset({event.module}))
    return found


def without_args(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Drop the numbers by which backward nodes find their forward ops, as public profiles often do."""
    return nested(
        [Slice(one.name, one.start, one.end, one.thread, annotation=one.annotation) for one in slices]
    )


@dataclass(frozen=True, slots=True)
class Score:
    """How one net was told.

    Attributes:
        right: percent of the ops of forward, loss and backward on the right module.
        seed: of the net.
        match: as told.
        silent: wrong ops that were not in doubt.
        doubted: percent of ops in doubt.
        stages: percent of all ops in the right stage.
        ops: how many are scored.
    """

    right: float
    seed: int
    match: float
    silent: int
    doubted: float
    stages: float
    ops: int

    @property
    def misleads(self) -> bool:
        """Whether anything is wrong at a match that says that nothing is."""
        return self.right < 100 and self.match >= SURE_MATCH


def score(trace: Trace, truth: Truth, seed: int) -> Score:
    """Compare a trace with what hooks saw."""
    assert len(trace.events) == len(truth.owners)
    ops = right = silent = doubted = staged = 0
    for event, owners, stage in zip(trace.events, truth.owners, truth.stages, strict=True):
        staged += event.phase.value == stage
        if stage in _SCORED:
            hit, doubt = event.module in owners, event.doubt is not Doubt.NONE
            ops, right, doubted = ops + 1, right + hit, doubted + doubt
            silent += not hit and not doubt
    match = trace.summary.match
    return Score(
        100 * right / max(ops, 1), seed, 1.0 if match is None else match, silent,
        100 * doubted / max(ops, 1), 100 * staged / max(len(trace.events), 1), ops,
    )  # fmt: skip


def _run_of(family: str, seed: int) -> DryRun:
    case = draw(family, seed)
    return dry_run(case.model, case.inputs)


def told(family: str, seed: int) -> dict[str, Score]:
    """Score one net in all ways: with the model, with one that is watched meanwhile, and by names alone."""
    truth, run = observed(family, seed), _run_of(family, seed)
    other = observed(family, seed, watched=True)
    slices = parse_profile(truth.data)
    bare = without_args(slices)
    return {
        "model": score(annotate(slices, run=run), truth, seed),
        "model, no args": score(annotate(bare, run=run), truth, seed),
        "model, watched": score(annotate(parse_profile(other.data), run=run), other, seed),
        "names": score(annotate(slices, truth.modules), truth, seed),
        "names, no args": score(annotate(bare, truth.modules), truth, seed),
    }


def others(family: str, scale: Scale) -> list[Row]:
    """Score a family: every way over all seeds, and its worst net."""
    warnings.simplefilter("ignore")  # torch's, about settings of its encoders
    scores: dict[str, list[Score]] = {}
    for seed in range(FIRST_UNSEEN, FIRST_UNSEEN + _SEEDS[scale]):
        for way, found in told(family, seed).items():
            scores.setdefault(way, []).append(found)
    return [_row(family, way, found) for way, found in scores.items()]


def _row(family: str, way: str, found: Sequence[Score]) -> Row:
    worst = min(found, key=lambda one: one.right)
    misleading = sum(one.misleads for one in found)
    figures: dict[str, Figure] = {
        "net": family,
        "told with     ": way.ljust(len("model, no args")),
        "nets": len(found),
        "ops": sum(one.ops for one in found),
        "right %": sum(one.right for one in found) / len(found),
        "worst %": worst.right,
        "worst seed": worst.seed,
        "its match": worst.match,
        "proved": sum(one.match >= SURE_MATCH for one in found),
        "wrong though proved": misleading,
        "wrong, not in doubt": sum(one.silent for one in found),
        "in doubt %": sum(one.doubted for one in found) / len(found),
        "stages %": sum(one.stages for one in found) / len(found),
        "worst stages %": min(one.stages for one in found),
    }
    enough = worst.right >= _LEAST or way not in ("model", "model, no args")
    return Row(figures, enough and not misleading)
