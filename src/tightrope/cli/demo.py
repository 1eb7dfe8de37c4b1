"""`tightrope demo`: train on real data at full memory and at smaller budgets, and show every figure.

Each row trains a fresh copy of the same network on the same batches. Losses and gradients are
compared with plain eager training, bit for bit, over all steps; time is the median of paired
thread-CPU times, one eager step beside each planned one.
"""

import copy
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tightrope.cli.demo_nets import JOBS, Job
from tightrope.core import InfeasibleError, TightropeError, format_bytes, parse_bytes
from tightrope.run.compile import compile as compile_model
from tightrope.run.compile import handle_of
from tightrope.run.ledger import ledger
from tightrope.run.progress import Progress
from tightrope.run.report import Report, report
from tightrope.run.verify import digest

_SHARES = (0.75, 0.5)
_COLUMNS = (
    "budget",
    "forecast peak",
    "observed peak",
    "arena",
    "total",
    "time",
    "losses",
    "gradients",
    "recomputed",
)


def run_demo(
    *, net: str | None, budget: str | None, steps: int, console: Console | None
) -> list[dict[str, Any]]:
    """Run the demo and return one plain row per budget.

    Args:
        net: ``gpt2``, ``resnet`` or None for both.
        budget: one budget for all rows, or None for full memory, two shares and near the smallest.
        steps: training steps per row.
        console: where rows are printed as they are measured; None = nowhere.
    """
    if net is not None and net not in JOBS:
        raise TightropeError(f"no demo network {net!r}: choose {' or '.join(JOBS)}.")
    rows: list[dict[str, Any]] = []
    for name in [net] if net else list(JOBS):
        rows += _Demo(JOBS[name](), steps, console).run(budget)
    return rows


class _Demo:
    """One network: the eager run that all rows are compared with, then the rows."""

    def __init__(self, job: Job, steps: int, console: Console | None) -> None:
        self.job, self.steps, self.console = job, steps, console
        self.batches = list(itertools.islice(job.batches, steps))
        self.progress = Progress()

    def run(self, budget: str | None) -> list[dict[str, Any]]:
        books = ledger()
        self._print(f"\n{self.job.title}: {self.steps} steps, SGD with momentum")
        self._header()
        eager = self._eager()
        full, smallest = self._range()
        if budget is not None:
            budgets: list[tuple[str, int]] = [(budget, parse_bytes(budget, whole=full))]
        else:
            near = smallest + (full - smallest) // 50
            shares = [(f"{share:.0%}", max(int(full * share), near)) for share in _SHARES]
            budgets = [("full", full), *shares, ("near smallest", near)]
        rows = [self._row(label, size, eager) for label, size in budgets]
        if books.allocator is None:
            self._print(books.note)
        self._smallest(smallest)
        return rows

    def _model(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(self.job.model)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def _eager(self) -> list[tuple[str, list[str]]]:
        model, optimizer = self._model()
        return [_step(model, optimizer, batch, number)[:2] for number, batch in enumerate(self.batches)]

    def _range(self) -> tuple[int, int]:
        """Total bytes that the unplanned step needs, and the smallest feasible total."""
        from tightrope.capture import capture_program, measured
        from tightrope.plan import smallest, solve
        from tightrope.run.runner import RESERVE

        model, _ = self._model()
        with self.progress.task("capturing and measuring", 1):
            program, real = capture_program(model, self.batches[0])
            self.graph = measured(program, real, ledger().allocator).graph
        with self.progress.task("looking for the smallest budget", 1):
            self.least = smallest(self.graph)
        base = solve(self.graph, budget=2**60, planner="given")
        state = sum(p.numel() * p.element_size() for p in model.parameters())
        held = self._held() + state + RESERVE - self.graph.persistent
        return base.forecast.total + held + 2**16, self.least.forecast.total + held + 2**16

    def _held(self) -> int:
        """Bytes that the process holds before a row begins, the model of the row included."""
        ledger().note_tensors(itertools.chain(self.job.model.parameters(), self.job.model.buffers()))
        model, _ = self._model()
        ledger().note_tensors(itertools.chain(model.parameters(), model.buffers()))
        return ledger().charged()

    def _row(self, label: str, size: int, eager: list[tuple[str, list[str]]]) -> dict[str, Any]:
        twin, twin_optimizer = self._model()
        model, optimizer = self._model()
        del twin, twin_optimizer
        row: dict[str, Any] = {"net": self.job.name, "label": label, "budget": size, "fits": True}
        try:
            compile_model(model, budget=size, progress=None)
            found = [_step(model, optimizer, batch, number) for number, batch in enumerate(self.batches)]
        except InfeasibleError as error:
            row |= {"fits": False, "error": str(error)}
            self._print(f"{format_bytes(size)}: {error}")
            return row
        seen = report(model)
        row |= _figures(seen)
        row["losses_equal"] = all(a[0] == b[0] for a, b in zip(found, eager, strict=True))
        row["gradients_equal"] = all(a[1] == b[1] for a, b in zip(found, eager, strict=True))
        ledger().release(handle_of(model))
        row["time_ratio"] = self._time(model, optimizer)
        self._line(row)
        return row

    def _time(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Median ratio of planned to eager thread-CPU time over interleaved pairs (ABBA)."""
        twin, twin_optimizer = self._model()
        pair: list[Callable[[], float]] = [
            lambda: _step(model, optimizer, self.batches[0], 0)[2],
            lambda: _step(twin, twin_optimizer, self.batches[0], 0)[2],
        ]
        ratios = []
        for number in range(6):
            planned, plain = (pair[0](), pair[1]()) if number % 2 else tuple(reversed((pair[1](), pair[0]())))
            ratios.append(planned / plain)
        return statistics.median(ratios[1:])

    # printing

    def _print(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, markup=False)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, width=118)
        for width in (26, 13, 13, 11, 11, 7, 7, 10, 12):
            table.add_column(width=width)
        return table

    def _header(self) -> None:
        if self.console is not None:
            table = self._table()
            table.add_row(*_COLUMNS)
            self.console.print(table)

    def _line(self, row: dict[str, Any]) -> None:
        if self.console is None:
            return
        table = self._table()
        table.add_row(
            f"{row['label']} = {format_bytes(row['budget'])}", format_bytes(row["forecast_peak"]), format_bytes(row["observed_peak"]),
            format_bytes(row["arena"]), format_bytes(row["observed_total"]), f"{row['time_ratio']:.2f}x",
            "equal" if row["losses_equal"] else "DIFFER", "equal" if row["gradients_equal"] else "DIFFER",
            f"{row['num_recomputed']} ops",
        )  # fmt: skip
        self.console.print(table)

    def _smallest(self, size: int) -> None:
        witness = self.least.certificate.witness
        name = self.graph.op(witness).describe() if witness >= 0 else ""
        self._print(
            f"smallest feasible budget found: {format_bytes(size)} ({size} bytes); the op that needs most: {name}"
        )


def _figures(seen: Report) -> dict[str, Any]:
    names = (
        "persistent", "arena", "outside", "forecast_peak", "observed_peak", "observed_total", "overhead", "num_recomputed",
        "verified", "level", "enforced", "divergences",
    )  # fmt: skip
    return {name: getattr(seen, name) for name in names}


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...], number: int
) -> tuple[str, list[str], float]:
    """One training step; returns digests of the loss and the gradients, and its thread-CPU seconds."""
    torch.manual_seed(number)
    optimizer.zero_grad(set_to_none=True)
    start = time.thread_time()
    loss = model(*batch)
    loss.backward()
    spent = time.thread_time() - start
    result = digest(loss), [digest(parameter.grad) for parameter in model.parameters()]
    del loss
    optimizer.step()
    return *result, spent
