"""Rows of the demo: train on real data at full memory and at smaller budgets, and show every figure.

Each row trains a fresh copy of the same network on the same batches. Losses and gradients are
compared with plain eager training, bit for bit, over all steps; time is the median ratio of
thread-CPU times over interleaved pairs of an eager and a planned step. Everything runs on one thread:
the CPU time of one thread says nothing about work that others do.
"""

import gc
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from tightrope.capture import capture_program, measured
from tightrope.core import Bytes, Graph, InfeasibleError, Plan, TightropeError, format_bytes, parse_bytes
from tightrope.core.ledger import Ledger, Row
from tightrope.core.units import shown
from tightrope.plan import smallest, solve
from tightrope.run.base.status import StatusLine
from tightrope.run.compile import compile as compile_model
from tightrope.run.compile import compiled_of
from tightrope.run.execute.check import digest
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.report import report
from tightrope_demo.nets import JOBS

if TYPE_CHECKING:
    from rich.console import Console

_SHARES = (1.0, 0.75, 0.55, 0.0)
"""Budgets: bytes held anyway + this share of the way from the smallest feasible step to the full one."""
_NUM_PAIRS = 7
_SLACK = 32768
"""For the loss, the batch and other small tensors of the training loop itself."""
_COLUMNS = (
    ("budget", 26),
    ("forecast peak", 13),
    ("observed peak", 13),
    ("arena", 10),
    ("most charged", 12),
    ("time", 6),
    ("losses", 7),
    ("gradients", 9),
    ("recomputed", 24),
)
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Line:
    """One line of the table; bytes, and time relative to eager."""

    net: str
    label: str
    budget: Bytes
    fits: bool
    error: str = ""
    forecast_peak: Bytes = 0
    observed_peak: Bytes = 0
    arena: Bytes = 0
    persistent: Bytes = 0
    observed_total: Bytes = 0
    time_ratio: float = 0.0
    losses_equal: bool = False
    gradients_equal: bool = False
    num_recomputed: int = 0
    recomputed: str = ""
    verified: str = ""


def run_demo(
    *, net: str | None, budget: str | None, steps: int, console: "Console | None"
) -> list[dict[str, Any]]:
    """Run the demo and return one plain row per budget.

    Args:
        net: ``gpt2``, ``resnet`` or None for both.
        budget: one budget for all rows, or None for four between full memory and the smallest.
        steps: training steps per row.
        console: where rows are printed as they are measured; None = nowhere.

    Raises:
        TightropeError: the budget cannot be read, or there is no such network.
    """
    if budget is not None:
        parse_bytes(budget, whole=1)
    if net is not None and net not in JOBS:
        raise TightropeError(f"no demo network {shown(net)}: give {' or '.join(JOBS)}.")
    rows: list[Line] = []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in [net] if net else list(JOBS):
            rows += _Demo(name, steps, console).run(budget)
    finally:
        torch.set_num_threads(num_threads)
    return [asdict(row) for row in rows]


class _Demo:
    """One network: the eager run that every row is compared with, then the rows."""

    def __init__(self, name: str, steps: int, console: "Console | None") -> None:
        self.name, self.steps, self.console = name, steps, console
        self.progress = StatusLine(lines=True)

    def run(self, budget: str | None) -> list[Line]:
        accounts()  # installs the allocator hook, so that every tensor from here on is counted
        job = JOBS[self.name]()
        self.batches = list(itertools.islice(job.batches, self.steps))
        self._print(f"\n{job.title}: {self.steps} steps, SGD with momentum, one thread")
        del job
        with self.progress.task("training eagerly, for comparison", self.steps):
            eager = self._train(self._fresh())
        graph, full, least = self._range()
        self._header()
        rows = []
        for label, size in self._budgets(budget, full, least):
            rows.append(self._row(label, size, eager))
        witness = least.certificate.witness
        found = format_bytes(least.forecast.arena + least.forecast.outside)
        bound = format_bytes(least.certificate.lower_bound - graph.persistent)
        name = graph.op(witness).describe() if witness >= 0 else "nothing"
        self._print(
            f"smallest feasible step: {found} above what is held anyway, proved >= {bound}; set by {name}"
        )
        if accounts().allocator is None:
            self._print(accounts().note)
        return rows

    def _fresh(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = JOBS[self.name]().model
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def _train(
        self, pair: tuple[torch.nn.Module, torch.optim.Optimizer]
    ) -> list[tuple[str, tuple[str, ...]]]:
        return [_step(*pair, batch, number)[0] for number, batch in enumerate(self.batches)]

    def _range(self) -> tuple[Graph, Plan, Plan]:
        """The graph, its plan at full memory, and its smallest plan."""
        model, _ = self._fresh()
        with self.progress.task("capturing and measuring ops", 1):
            program, real = capture_program(model, self.batches[0])
            graph = measured(program, real, accounts().allocator).graph
        with self.progress.task("looking for the smallest budget", 1):
            return graph, solve(graph, budget=2**60, planner="given"), smallest(graph)

    def _budgets(self, asked: str | None, full: Plan, least: Plan) -> list[tuple[str, Bytes]]:
        """Labels and total bytes: what is held anyway, optimizer state included, and the step."""
        _clean()
        model, _ = self._fresh()
        state = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        held = Ledger(0).plus(
            Row("held by the process", _held(model, self.batches)),
            Row("optimizer state", state, "forecast"),
            Row("runtime reserve", RESERVE + _SLACK),
        )
        del model
        top = full.forecast.arena + full.forecast.outside
        low = least.forecast.arena + least.forecast.outside
        if asked is not None:
            return [(asked, parse_bytes(asked, whole=held.needed(top)))]
        names = {1.0: "full", 0.0: "smallest"}
        return [
            (names.get(share, f"{share:.0%} of the way"), held.needed(low + int(share * (top - low))))
            for share in _SHARES
        ]

    def _row(self, label: str, size: Bytes, eager: list[tuple[str, tuple[str, ...]]]) -> Line:
        _clean()
        model, optimizer = self._fresh()
        compile_model(model, budget=size)
        try:
            found = self._train((model, optimizer))
        except InfeasibleError as error:
            row = Line(self.name, label, size, fits=False, error=str(error))
            self._print(f"{label} = {format_bytes(size)}: {error}")
            return row
        seen = report(model)
        names = ("forecast_peak", "observed_peak", "arena", "persistent", "observed_total", "num_recomputed")
        accounts().release(compiled_of(model))
        row = Line(
            self.name,
            label,
            size,
            fits=True,
            **{name: getattr(seen, name) for name in names},
            time_ratio=self._time(model, optimizer),
            losses_equal=[step[0] for step in found] == [step[0] for step in eager],
            gradients_equal=[step[1] for step in found] == [step[1] for step in eager],
            recomputed=_most_recomputed(seen.recomputed),
            verified=seen.verified,
        )
        self._line(row)
        return row

    def _time(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Median ratio of planned to eager thread-CPU time over interleaved pairs (ABBA).

        Both run the same model object, so that nothing more is held than while training.
        """
        planned_call = model._compiled_call_impl
        ratios = []
        for number in range(_NUM_PAIRS):
            times = {}
            for planned in (True, False) if number % 2 else (False, True):
                model._compiled_call_impl = planned_call if planned else None
                times[planned] = _step(model, optimizer, self.batches[0], 0)[1]
            ratios.append(times[True] / times[False])
        model._compiled_call_impl = planned_call
        return statistics.median(ratios[1:])

    # printing

    def _print(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False, soft_wrap=True)

    def _cells(self, cells: list[str]) -> None:
        if self.console is not None:
            line = "  ".join(cell.ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
            self.console.print(line.rstrip(), markup=False, soft_wrap=True)

    def _header(self) -> None:
        self._cells([name for name, _ in _COLUMNS])

    def _line(self, row: Line) -> None:
        sizes = (row.forecast_peak, row.observed_peak, row.arena, row.observed_total)
        equal = {True: "equal", False: "DIFFER"}
        self._cells(
            [
                f"{format_bytes(row.budget)} {row.label}",
                *(format_bytes(size) for size in sizes),
                f"{row.time_ratio:.2f}x",
                equal[row.losses_equal],
                equal[row.gradients_equal],
                row.recomputed,
            ]
        )


def _most_recomputed(found: tuple[tuple[str, str, int], ...]) -> str:
    """Sum up what runs again: the number of ops and the commonest kinds."""
    if not found:
        return "nothing"
    kinds: dict[str, int] = {}
    for _, target, _ in found:
        name = target.split(".")[1] if "." in target else target
        kinds[name] = kinds.get(name, 0) + 1
    top = sorted(kinds, key=lambda kind: -kinds[kind])[:2]
    return f"{len(found)} ops: " + ", ".join(top)


def _held(model: torch.nn.Module, batches: Sequence[Batch]) -> Bytes:
    """Bytes charged now, the parameters and buffers of ``model`` and all batches included."""
    accounts().note_tensors(itertools.chain(model.parameters(), model.buffers(), *batches))
    return accounts().charged()


def _clean() -> None:
    """Let go of earlier rows: compiled code refers to its model until it is reset."""
    from tightrope.capture._torch import reset_dynamo

    reset_dynamo()
    gc.collect()


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, number: int
) -> tuple[tuple[str, tuple[str, ...]], float]:
    """One training step: digests of the loss and of the gradients, and its thread-CPU seconds."""
    torch.manual_seed(number)
    optimizer.zero_grad(set_to_none=True)
    start = time.thread_time()
    loss = model(*batch)
    loss.backward()
    spent = time.thread_time() - start
    result = digest(loss), tuple(digest(parameter.grad) for parameter in model.parameters())
    del loss
    optimizer.step()
    return result, spent
