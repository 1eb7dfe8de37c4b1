"""Exported files, run in plain PyTorch: ``python -m benchmarks export [--nets NAME ...] [--pairs N]``.

E5  twelve nets x three budgets x three targets that run on a CPU: how far the observed peak is from the
    forecast, whether the loss, all gradients, buffers and the random state have the plain model's bits,
    whether exactly the promised ops run again, how far the ratio of step times is from the forecast,
    and the time against checkpointing every block at its bytes

The budgets are that of checkpointing every member of the best list of modules (where it saves anything), and
half and four fifths of the way from the smallest form to the plain step. A form that two points share is run
once. Six of the nets were never looked at while the search was written. Times are medians of interleaved
pairs of thread-CPU time on one thread; peaks are those of the counting allocator.
"""

import json
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from benchmarks.export.nets import NETS, UNSEEN, built
from tightrope.core import InfeasibleError
from tightrope_export.choose import ChosenForm, Hints, Search, choose
from tightrope_export.commands.exporting import written
from tightrope_export.costs import measured_costs
from tightrope_export.judge import findings
from tightrope_export.peak import Walker
from tightrope_export.play import Player, imported, shown
from tightrope_export.record import record_step
from tightrope_export.values.form import AgainRegion, Form, Target

_TARGETS: Final[tuple[Target, ...]] = ("sac", "hf", "blocks")
_SHARES: Final = (0.5, 0.8)


class _Bench:
    """One net: its plain player, and what every form that was run showed."""

    def __init__(self, name: str, folder: Path, pairs: int) -> None:
        self.name, self.folder, self.pairs = name, folder, pairs
        self.model, self.inputs = built(name)
        tape = record_step(self.model, self.inputs)
        self.walker = Walker(tape, measured_costs(tape, self.model, self.inputs))
        self.plain = Player(self.model, self.inputs)
        self.known: dict[Form, dict[str, Any]] = {}
        self.ratios: dict[Form, float] = {}

    def blocks(self) -> Form:
        """Every member of the list that saves most when its members are computed again."""
        search = Search(self.walker, 1, Hints())
        forms = [tuple(map(AgainRegion, members)) for members in search.lists.values() if len(members) > 1]
        return min(forms, key=lambda form: self.walker.promise(form).total, default=())

    def run(self, chosen: ChosenForm) -> dict[str, Any]:
        """Write a form, run it and time it."""
        if chosen.form not in self.known:
            path = self.folder / f"{self.name}_{len(self.known)}.py"
            path.write_text(written(self.walker, chosen, type(self.model).__name__, path.stem))
            player = Player(self.model, self.inputs, None, imported(path).apply)
            seen = shown(self.plain, player)
            self.known[chosen.form] = {
                "observed_peak": seen.peak,
                "wrong": findings(chosen.promise, seen),
                "player": player,
                "ratio": time_ratio(self.plain, player, self.pairs) if chosen.form else 1.0,
            }
        return self.known[chosen.form]

    def over(self, form: Form, blocks: Form) -> float:
        """Time of a form over that of checkpointing every block, in pairs of their own."""
        if form not in self.ratios:
            first, second = (self.known[one]["player"] for one in (blocks, form))
            self.ratios[form] = time_ratio(first, second, self.pairs) if form != blocks else 1.0
        return self.ratios[form]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every point of the net."""
        whole, blocks = self.walker.promise(()), self.blocks()
        of_blocks = self.walker.promise(blocks)
        self.run(ChosenForm(blocks, of_blocks))
        for target in _TARGETS:
            small = _smallest(self.walker, target)
            budgets = [int(small + share * (whole.total - small)) for share in _SHARES]
            if of_blocks.total < whole.total:
                budgets = [max(of_blocks.total, small), *budgets]
            else:
                budgets = [small, *budgets]
            for budget in budgets:
                chosen = choose(self.walker, target, budget)
                found, promise = self.run(chosen), chosen.promise
                is_same = budget == of_blocks.total
                yield {
                    "net": self.name,
                    "unseen": self.name in UNSEEN,
                    "target": target,
                    "budget": budget,
                    "forecast": promise.total,
                    "peak_off": promise.peak / max(found["observed_peak"], 1) - 1,
                    "ratio_forecast": promise.ratio,
                    "ratio": found["ratio"],
                    "ratio_off": promise.ratio / found["ratio"] - 1,
                    "wrong": found["wrong"],
                    "modules": len(chosen.form),
                    "kept": sum(len(region.saved) for region in chosen.form),
                    "smallest_over_whole": small / whole.total,
                    "against_blocks": self.over(chosen.form, blocks) if is_same else None,
                    "forecast_against_blocks": promise.ns / of_blocks.ns if is_same else None,
                }


def _smallest(walker: Walker, target: Target) -> int:
    try:
        return choose(walker, target, 1).promise.total
    except InfeasibleError as error:
        return error.smallest_found or 0


def time_ratio(first: Player, second: Player, pairs: int) -> float:
    """The median ratio of the times of two steps, the second over the first, run in pairs of both orders."""
    found = []
    for number in range(pairs + 1):
        order = (first, second) if number % 2 else (second, first)
        spent = {id(one): _seconds(one) for one in order}
        found.append(spent[id(second)] / max(spent[id(first)], 1e-9))
    return statistics.median(found[1:])


def _seconds(player: Player) -> float:
    player.reset()
    began = time.thread_time()
    player.step()
    return time.thread_time() - began


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the table; write it as JSON where asked."""
    parser = ArgumentParser(prog="python -m benchmarks export")
    parser.add_argument("--nets", nargs="*", choices=list(NETS), default=list(NETS))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.nets:
            for row in _Bench(name, Path(folder), options.pairs).rows():
                rows.append(row)
                console.print(_line(row), highlight=False, soft_wrap=True)
    for line in _summary(rows):
        console.print(line, highlight=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


def _line(row: dict[str, Any]) -> str:
    over = row["against_blocks"]
    return (
        f"{row['net']:9} {row['target']:6} budget {row['budget'] / 2**20:6.2f} MiB, forecast "
        f"{row['forecast'] / 2**20:6.2f}, peak off {row['peak_off']:+.2%}; time {row['ratio']:.3f}, forecast "
        f"{row['ratio_forecast']:.3f}, off {row['ratio_off']:+.1%}; "
        + ("" if over is None else f"over blocks {over:.3f}; ")
        + f"{row['modules']} modules, {row['kept']} kept; {len(row['wrong'])} wrong"
    )


def _summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for kind in (False, True):
        some = [row for row in rows if row["unseen"] is kind]
        if not some:
            continue
        peak = max(some, key=lambda row: abs(row["peak_off"]))
        time = max(some, key=lambda row: abs(row["ratio_off"]))
        over = [row["against_blocks"] for row in some if row["against_blocks"] is not None]
        said = [row["forecast_against_blocks"] for row in some if row["forecast_against_blocks"] is not None]
        wrong = sum(bool(row["wrong"]) for row in some)
        within = sum(abs(row["ratio_off"]) <= 0.05 for row in some)
        yield (
            f"{'unseen' if kind else 'seen'}: {len(some)} points, {wrong} wrong; peak off by at most "
            f"{abs(peak['peak_off']):.2%} ({peak['net']} {peak['target']}); time by at most "
            f"{abs(time['ratio_off']):.1%} ({time['net']} {time['target']}), {within} within 5 %; over "
            f"blocks at their bytes {max(over, default=0):.3f} measured, {max(said, default=0):.3f} forecast"
        )
