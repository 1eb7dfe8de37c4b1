"""X2: a saved step runs in a fresh process that captures nothing, and gives the same bits.

Each net is planned under a tight budget, runs one step, is saved, and runs another; a fresh process runs
the file. Compared are the loss, every gradient (with an optimizer: every parameter), buffers and the
state of the random generator.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

import tightrope
from benchmarks.spine.bar import TEN, Bar, Column, Row, Settings, Verdict
from benchmarks.spine.nets import fresh, native
from benchmarks.zoo import Case, optimizer
from tightrope.cli.saved_figures import together
from tightrope.core import Bytes, InfeasibleError, TightropeError, format_bytes
from tightrope.run.execute.check import digest
from tightrope.run.report import Report
from tightrope.run.step import TrainingStep

_WAYS = ("step", "compile")
_MORE = ("gpt2 adamw", "resnet18 sgd")
_MOST_SECONDS = 1.5
_SLACK = 1.05
"""Budget over the smallest one that is found."""


@dataclass
class _Planned:
    """A planned net: its step, and what `tightrope.save` takes."""

    case: Case
    way: str
    target: TrainingStep | torch.nn.Module
    step: Callable[[], torch.Tensor]

    @property
    def report(self) -> Report:
        """Figures of the last step."""
        return tightrope.report(self.target)


def _cases(settings: Settings) -> Sequence[str]:
    nets = settings.choose(*TEN)
    return [f"{net} {_WAYS[number % 2]}" for number, net in enumerate(nets)] + list(_MORE)


def _planned(case: Case, way: str, budget: Bytes) -> _Planned:
    if way == "compile":
        model: Any = tightrope.compile(case.model, budget=budget, progress=False)

        def both() -> torch.Tensor:
            loss: torch.Tensor = model(*case.inputs)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        return _Planned(case, way, case.model, both)
    updates = None if way == "step" else optimizer(case, "sgd" if way == "sgd" else "adamw")
    train = tightrope.step(
        lambda *batch: case.model(*batch), budget=budget, model=case.model, optimizer=updates, progress=False
    )
    return _Planned(case, way, train, lambda: train(*case.inputs))


def _tight(name: str, way: str, settings: Settings) -> _Planned:
    """Plan a net with 5 % more than the smallest budget that is found."""
    case = fresh(name, settings)
    try:
        _planned(case, way, 64).step()
    except InfeasibleError as error:
        if error.smallest_found is None:
            raise
        budget = int(_SLACK * error.smallest_found)
    else:
        raise TightropeError(f"{name} runs within 64 bytes: that cannot be.")
    return _planned(case, way, budget)


def _clear(case: Case) -> None:
    for parameter in case.model.parameters():
        parameter.grad = None


def _bits(net: _Planned, loss: torch.Tensor) -> dict[str, Any]:
    model = net.case.model
    return {
        "loss": digest(loss),
        "gradients": {n: digest(p.grad) for n, p in model.named_parameters() if p.grad is not None},
        "buffers": {name: digest(buffer) for name, buffer in model.named_buffers()},
        "parameters": together(dict(model.named_parameters())),
        "random": together({"random": torch.get_rng_state()}),
    }


def _rows(name: str, settings: Settings) -> Iterator[Row]:
    zoo_name, way = name.split()
    torch.manual_seed(0)
    net = _tight(zoo_name, way, settings)
    net.step()
    _clear(net.case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.step"
        tightrope.save(net.target, path, net.case.inputs)
        size = path.stat().st_size
        mine = _bits(net, net.step())
        theirs = run_fresh(path)
    report = net.report
    different = [
        what
        for what, same in {
            "loss": next(iter(theirs["outputs"].values())) == mine["loss"],
            "gradients": theirs["gradients"] == mine["gradients"],
            "buffers": theirs["buffers"].items() <= mine["buffers"].items(),
            "parameters": theirs["digests"]["parameters"] == mine["parameters"],
            "random": theirs["digests"]["random"] == mine["random"],
        }.items()
        if not same
    ]
    native().limit = None
    yield {
        "net": name,
        "num_ops": theirs["num_ops"],
        "budget": theirs["budget_bytes"],
        "num_recomputed": report.num_recomputed,
        "file_bytes": size,
        "different": different,
        "num_gradients": len(mine["gradients"]),
        "num_buffers": len(theirs["buffers"]),
        "forecast": theirs["forecast_peak_bytes"],
        "observed": theirs["observed_peak_bytes"],
        "there": report.observed_peak,
        "divergences": len(theirs["divergences"]),
        "captured": theirs["captured"],
        "import_seconds": theirs["import_seconds"],
        "load_seconds": theirs["load_seconds"],
        "step_seconds": theirs["first_step_seconds"],
        "seconds": theirs["seconds"],
        "cpu_seconds": theirs["cpu_seconds"],
        "checked": "checked in its first run" in theirs["proof"],
    }


def run_fresh(path: Path) -> dict[str, Any]:
    """Run a saved step in a process of its own and return its figures.

    Raises:
        TightropeError: it failed; says how.
    """
    command = [sys.executable, "-m", "benchmarks.executable.fresh", str(path)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise TightropeError(f"the fresh process failed: {done.stderr.strip()[-1000:]}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def _verdicts(rows: Sequence[Row], settings: Settings) -> list[Verdict]:
    equal = sum(not row["different"] for row in rows)
    peaks = [{row["forecast"], row["observed"], row["there"]} for row in rows if not row["divergences"]]
    exact = sum(len(figures) == 1 for figures in peaks)
    blank = sum(not row["captured"] for row in rows)
    checked = sum(row["checked"] for row in rows)
    num = len(rows)
    slowest = max(rows, key=lambda row: row["seconds"])
    fast = slowest["seconds"] <= _MOST_SECONDS
    figure = (
        f"{equal}/{num} bit-equal, {exact}/{num} as forecast, {checked}/{num} judged and checked, "
        f"{blank}/{num} with nothing imported that captures; slowest first step {slowest['seconds']:.2f} s "
        f"after import torch ({slowest['net']}, {slowest['cpu_seconds']:.2f} s of the processor), "
        f"at most {_MOST_SECONDS} s; {settings.scale} scale"
    )
    met = {equal, exact, blank, checked} == {len(rows)} and fast and len(rows) >= len(TEN)
    return [Verdict("X2", met, figure)]


def _seconds(value: float) -> str:
    return f"{value:.2f}"


BAR = Bar(
    ids=("X2",),
    title="a saved step in a fresh process: bits, bytes, and seconds from import torch to the end of a step",
    columns=(
        Column("net", "net, way", 20),
        Column("num_ops", "runs", 5),
        Column("num_recomputed", "again", 5),
        Column("file_bytes", "file", 10, format_bytes),
        Column("num_gradients", "gradients", 9),
        Column("num_buffers", "buffers", 7),
        Column("different", "differ", 10, lambda names: ",".join(names) or "nothing"),
        Column("forecast", "forecast", 10, format_bytes),
        Column("observed", "observed", 10, format_bytes),
        Column("import_seconds", "import", 6, _seconds),
        Column("load_seconds", "load", 5, _seconds),
        Column("step_seconds", "step", 5, _seconds),
        Column("seconds", "wall", 5, _seconds),
        Column("cpu_seconds", "cpu", 5, _seconds),
    ),
    cases=_cases,
    rows=_rows,
    verdicts=_verdicts,
)
"""Bits, bytes and seconds of a saved step in a fresh process."""
