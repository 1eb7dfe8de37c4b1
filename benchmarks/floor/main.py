"""Whether a budget that is named trains, and is no more than the loop takes without a plan.

A tiny budget is given; what the refusal names for such a loop is typed in, and so on, until five steps run: a
refusal may name a second number for loops that drop their gradients before each forward. Every try is a new
process. The loop without the library takes what the allocator hook counts, and what kernels take behind
torch's allocator, as it was measured under the budget.
"""

import json
import re
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.floor.nets import case
from tightrope.core import TightropeError

_MOST_TRIES, _WANTED, _TINY, _SECONDS = 9, 2, 1 << 18, 300
HEADS = (
    "seed", "net, loss", "optimizer", "gradients dropped", "MiB named, and what stopped it", "used",
    "unplanned",
)  # fmt: skip


def _alone(*numbers: int) -> Any:
    """Run one loop in a new process: kernels and caches keep memory from one loop to the next."""
    command = [sys.executable, "-m", "benchmarks.floor.one", *map(str, numbers)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if ran.returncode:
        raise TightropeError(f"{' '.join(command[2:])} ended with {ran.returncode}: {ran.stderr[-500:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def row(seed: int) -> dict[str, Any]:
    """Type in what is named until it works."""
    one, budget = case(seed), _TINY
    whole = _alone(seed)
    tried: list[dict[str, Any]] = []
    why, value, hidden = _alone(seed, budget)
    while why and value > budget and len(tried) < _MOST_TRIES:
        budget = int(value)
        why, value, hidden = _alone(seed, budget)
        tried.append({"budget": budget, "stopped": why})
    found: dict[str, Any] = {"seed": seed, "net": one.name, "optimizer": one.optimizer, "drops": one.drops}
    whole += hidden * bool(whole)
    return found | {"tried": tried, "works": not why, "used": 0.0 if why else value, "unplanned": whole}


def _print(found: dict[str, Any], console: Console) -> None:
    tried = ", ".join(f"{t['budget'] / 2**20:.2f} {t['stopped'] or 'works'}" for t in found["tried"])
    console.print(
        f"{found['seed']:4d}  {found['net']:26s}  {found['optimizer']:13s}  {found['drops']:24s}  {tried}  "
        f"{found['used']:.2f}  {found['unplanned'] / 2**20:.2f}",
        soft_wrap=True,
        highlight=False,
    )


def _seeds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ArgumentTypeError(f"{text!r} is no seed, such as 7, or first and last one, such as 0-24")
    return int(found[1]), int(found[2] or found[1])


def run(arguments: list[str], console: Console) -> int:
    """Print a table; with ``--json FILE`` write the figures, too."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default="0-24", help="first and last seed, such as 0-24, or one alone"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    first, last = given.seeds
    console.print("  ".join(HEADS))
    rows = []
    for seed in range(first, last + 1):
        rows.append(found := row(seed))
        _print(found, console)
    once = sum(found["works"] and len(found["tried"]) <= 1 for found in rows)
    twice = sum(found["works"] and len(found["tried"]) <= _WANTED for found in rows)
    works = [found for found in rows if found["works"]]
    tries = max(len(found["tried"]) for found in rows)
    used = min((found["used"] for found in works), default=0.0)
    console.print(
        f"{len(works)} of {len(rows)} train in a budget that was named, {once} in the first one, {twice} in "
        f"the first two; most tries {tries}, least used {used:.2f}"
    )
    for which, most in (("first", 1), ("any", _MOST_TRIES)):
        above = sum(any(t["budget"] > f["unplanned"] > 0 for t in f["tried"][:most]) for f in rows)
        console.print(f"{which} number above what the loop takes without a plan: {above} of {len(rows)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0 if len(works) == len(rows) else 1
