"""Whether a budget that is named trains, and is no more than the loop takes without a plan.

A tiny budget is given; what the refusal names for such a loop is typed in, and so on, until five steps run: a
refusal may name a second number for loops that drop their gradients before each forward. The loop without the
library is counted op by op: by the allocator hook, and what kernels take and give back behind torch's allocator.
Each seed has a process of its own.
"""

import gc
import json
import re
import subprocess
import sys
import tempfile
import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

import tightrope
from benchmarks.floor.nets import DROPS, OPTIMIZERS, Case, case
from tightrope.core import TightropeError
from tightrope.native.hook.allocator import Allocator
from tightrope.run.ledger.accounts import accounts

_STEPS, _MOST_TRIES, _WANTED, _TINY = 5, 9, 2, 1 << 18
_SECONDS = 300
HEADS = (
    "seed", "net, loss", "optimizer", "gradients dropped", "MiB named, and what stopped it", "used",
    "unplanned",
)  # fmt: skip


class _OpByOp(TorchDispatchMode):
    """The most that is charged during an op, and what its kernel takes outside of the allocator meanwhile."""

    def __init__(self, native: Allocator) -> None:
        super().__init__()
        self.native, self.most = native, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.most = max(self.most, self.native.stats().charged_peak)
        self.native.reset_peaks()
        self.native.begin_hidden()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            hidden = self.native.end_hidden()
            more = hidden.peak - max(hidden.left, 0)
            self.most = max(self.most, self.native.stats().charged_peak + more)


def unplanned(one: Case) -> int:
    """Most bytes that the loop takes without a plan; 0 = nothing counts them.

    What kernels keep from a first loop is not counted, here or under a budget.
    """
    native = accounts().allocator
    if native is None:
        return 0
    train(one, 0)
    gc.collect()
    native.attach_hidden()
    native.reset_peaks()
    with _OpByOp(native) as counted:
        train(one, 0)
    return max(counted.most, native.stats().charged_peak) + accounts().older


def train(one: Case, budget: int) -> tuple[str, int | float]:
    """Train under a budget; 0 = without the library.

    Returns:
        The empty string and the share of the budget that was used, or the class of the error, the step in
        which it was raised, and the budget that it names.
    """
    gc.collect()
    model, step = one.build(), 0
    optimizer = OPTIMIZERS[one.optimizer](model)
    if budget:
        tightrope.compile(model, budget=budget, progress=False)
    try:
        for step in range(_STEPS):
            batch = one.batch(step)
            if one.drops == DROPS[0]:
                optimizer.zero_grad()
            loss = one.call(model, batch)
            if one.drops != DROPS[0]:
                optimizer.zero_grad(set_to_none=one.drops == DROPS[1])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return "", tightrope.report(model).observed_total / budget if budget else 0.0
    except TightropeError as error:
        first = re.search(r"budget=(\d+)", str(error))
        named = int(first[1]) if first else 0
        dropping = re.search(r"drops its gradients before each forward works with budget=(\d+)", str(error))
        if dropping and one.drops == DROPS[0] and "about the step without a plan" not in str(error):
            named = int(dropping[1])
        return f"{type(error).__name__} in step {step}", named


def row(seed: int) -> dict[str, Any]:
    """Type in what is named until it works."""
    one, budget = case(seed), _TINY
    whole = unplanned(one)
    tried: list[dict[str, Any]] = []
    why, value = train(one, budget)
    while why and value > budget and len(tried) < _MOST_TRIES:
        budget = int(value)
        why, value = train(one, budget)
        tried.append({"budget": budget, "stopped": why})
    found: dict[str, Any] = {"seed": seed, "net": one.name, "optimizer": one.optimizer, "drops": one.drops}
    return found | {"tried": tried, "works": not why, "used": 0.0 if why else value, "unplanned": whole}


def _alone(seed: int) -> dict[str, Any]:
    """Make a row in a new process: kernels keep memory from one loop to the next."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks", "floor", "--seeds", f"{seed}-{seed}", "--json", str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if not path.exists():
            raise TightropeError(f"seed {seed} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
        found: dict[str, Any] = json.loads(path.read_text())[0]
        return found


def _row_in_silence(seed: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return row(seed)


def _print(found: dict[str, Any], console: Console) -> None:
    tried = ", ".join(f"{t['budget'] / 2**20:.2f} {t['stopped'] or 'works'}" for t in found["tried"])
    console.print(
        f"{found['seed']:4d}  {found['net']:26s}  {found['optimizer']:13s}  {found['drops']:24s}  {tried}  "
        f"{found['used']:.2f}  {found['unplanned'] / 2**20:.2f}",
        soft_wrap=True,
        highlight=False,
    )


def run(arguments: list[str], console: Console) -> int:
    """Print a table; with ``--json FILE`` write the figures, too."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-24", help="first and last seed, such as 0-24")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    first, last = map(int, given.seeds.split("-"))
    console.print("  ".join(HEADS))
    rows = []
    for seed in range(first, last + 1):
        rows.append(found := _row_in_silence(seed) if first == last else _alone(seed))
        _print(found, console)
    once = sum(found["works"] and len(found["tried"]) <= 1 for found in rows)
    twice = sum(found["works"] and len(found["tried"]) <= _WANTED for found in rows)
    works = [found for found in rows if found["works"]]
    tries, used = max(len(found["tried"]) for found in rows), min((found["used"] for found in works), default=0.0)
    console.print(
        f"{len(works)} of {len(rows)} train in a budget that was named, {once} in the first one, {twice} in "
        f"the first two; most tries {tries}, least used {used:.2f}"
    )
    above = [f for f in works if f["unplanned"] and f["tried"] and f["tried"][0]["budget"] > f["unplanned"]]
    console.print(f"first number above what the loop takes without a plan: {len(above)} of {len(rows)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0 if len(works) == len(rows) else 1
