"""Whether small models of many families train under a budget: ``python -m benchmarks families``.

    python -m benchmarks families [--only bert,detr] [--kept | --tuned] [--budgets 100%,75%,60%] [--json FILE]

Each run is a process of its own, on one thread, with no prices known. What the JSON file has is not repeated.
Times come from pairs of steps: an eager process and a planned one take turns.
"""

import json
import os
import shutil
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich.console import Console

from benchmarks.families import FAMILIES, hash_of, is_kept
from benchmarks.families.bars import line, summary
from benchmarks.families.worker import serve
from tightrope.core.cache import own_folder

_SECONDS, _NUM_PAIRS, _PAIRED, _PROBE = 90, 9, ("100%", "75%"), "10%"
Row = dict[str, Any]


class Process:
    """One run of a family in a process that was forked, so that libraries are loaded once."""

    def __init__(self, name: str, way: str, cache: Path) -> None:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(mode=0o700)
        for library in own.path.glob("*.so") if (own := own_folder()) is not None else ():
            shutil.copy2(library, cache)
        self._pipe, other = get_context("fork").Pipe()
        self._process = get_context("fork").Process(target=serve, args=(name, way, other, cache))
        self._process.start()
        other.close()

    def result(self, seconds: float = _SECONDS, *, of_step: bool = False) -> Any:
        """Wait for what it tells next, on request of one more step."""
        if of_step:
            self._pipe.send(True)
        if not self._pipe.poll(seconds):
            used = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            said = f"no answer in {seconds} s, {sum(map(int, used)) / os.sysconf('SC_CLK_TCK'):.0f} s of CPU"
            return {"failed": "timeout", "said": said, "step": -1}
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            return {"failed": "crash", "said": f"exit code {self._process.exitcode}", "step": -1}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _judged(told: Row, eager: Row) -> Row:
    """Compare a run that trained with eager, and drop what was compared."""
    if "losses" not in told:
        return told
    equal = [told[key] == eager[key] for key in ("losses", "parameters")]
    told["bits"] = "equal" if all(equal) else "named" if told["unlike_eager"] else "DIFFER"
    peak = max((water for water in told["waters"] if water > 0), default=0)
    told |= {"peak": peak, "kept": peak <= told["budget"], "first": told["cpu"][0]}
    told["as_forecast"] = told["forecast_peak"] == told["observed_peak"] and not told["divergences"]
    return {key: value for key, value in told.items() if key not in ("losses", "parameters", "cpu")}


def _pairs(one: Process, eager: Process) -> Row:
    """Medians over pairs of steps whose order alternates."""
    pairs: list[tuple[float, float]] = []
    for number in range(_NUM_PAIRS + 2):
        sides = (one, eager) if number % 2 else (eager, one)
        times = {side: side.result(20, of_step=True) for side in sides}
        if isinstance(times[one], dict) or isinstance(times[eager], dict):
            return {"later": times[one], "pairs": number}
        pairs.append((times[one], times[eager]))
    ratio = median(mine / other for mine, other in pairs[2:])
    return {"pairs": len(pairs) - 2, "ratio": ratio, "ms": 1e3 * median(mine for mine, _ in pairs[2:])}


def measured(name: str, budgets: Sequence[str], found: Row, cache: Path) -> Iterator[Row]:
    """Make the runs of a family that are missing; yield the row after each."""
    found |= {"name": name, "kept": is_kept(name), "package": FAMILIES[name].package}
    runs: Row = found.setdefault("runs", {})
    ways = [way for way in budgets if way not in runs and way != "named"]
    if not ways and ("named" not in budgets or "first number" in runs):
        return
    if "aot" not in found:
        with Process(name, "aot_eager", cache) as process:
            found["aot"] = process.result()
    with Process(name, "eager", cache) as process:
        eager = process.result()
        if "losses" not in eager:
            found["eager"] = eager
            yield found
            return
        peak = max(-water for water in eager["waters"])
        found["eager"] = {
            "ms": 1e3 * median(eager["times"][-5:]),
            "peak": peak,
            "share": eager["saved"] / peak,
        }
        for way in ways:
            runs[way] = _run(name, way, eager, process, cache)
            yield found
        if "named" in budgets:
            yield from _typed(name, found, eager, process, cache)


def _run(name: str, way: str, eager: Row, plain: Process, cache: Path) -> Row:
    with Process(name, way, cache) as process:
        told = _judged(process.result(), eager)
        return told | (_pairs(process, plain) if "bits" in told and way in _PAIRED else {})


def _typed(name: str, found: Row, eager: Row, plain: Process, cache: Path) -> Iterator[Row]:
    """Type in what a refusal names, twice; where none refuses, a tiny budget asks for a number."""
    runs = found["runs"]
    made = [one.get("later", one) for one in map(runs.get, ("100%", "75%", "60%")) if one]
    refused = [one for one in made if one.get("named")]
    last = refused[0] if refused else runs.setdefault(_PROBE, _run(name, _PROBE, eager, plain, cache))
    for title in ("first number", "second number"):
        if not last.get("named"):
            return
        last = runs[title] = {"typed": last["named"]} | _run(name, last["named"], eager, plain, cache)
        yield found


def run(arguments: Sequence[str], console: Console) -> int:
    """Print a row per family and a summary by the bars; 1 where a bar is missed."""
    parser = ArgumentParser(prog="python -m benchmarks families")
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", action="store_true", help="the half of the names that is kept unseen")
    parser.add_argument("--tuned", action="store_true", help="the other half")
    parser.add_argument("--budgets", default="100%,75%,60%,named")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    path: Path | None = options.json
    rows: dict[str, Row] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    names = options.only.split(",") if options.only else sorted(FAMILIES, key=hash_of)
    halves = {True: options.kept or not options.tuned, False: options.tuned or not options.kept}
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TIGHTROPE_PLANS": "off"}
    there = {package: _loaded(package) for package in {FAMILIES[name].package for name in names}}
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in names if halves[is_kept(name)]):
            if not there[FAMILIES[name].package]:
                console.print(f"{name}: left out, as {FAMILIES[name].package} is not installed")
                continue
            row = rows.setdefault(name, {})
            for _ in measured(name, options.budgets.split(","), row, Path(folder) / "cache"):
                if path is not None:
                    path.write_text(json.dumps(rows, indent=1))
            console.print(line(row), highlight=False, soft_wrap=True)
    lines, met = summary([row for row in rows.values() if "ms" in row.get("eager", {})])
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return int(not met)


def _loaded(package: str) -> bool:
    """Import what a family needs before processes are forked; say whether it is there."""
    for name in ("torch._dynamo", "torch._functorch.aot_autograd", package, f"{package}.nn"):
        with suppress(ImportError):
            import_module(name)
    return find_spec(package) is not None
