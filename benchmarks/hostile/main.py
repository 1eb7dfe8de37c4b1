"""The command: play every case under every way in a process of its own, print and write what came of it."""

import gc
import multiprocessing
import os
import re
import resource
import signal
import time
import traceback
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import torch._dynamo
import torch._functorch.aot_autograd
from rich.console import Console
from rich.table import Table

import tightrope
from benchmarks.hostile import calls, control, gradients, hooks, inputs, loops, memory, state
from benchmarks.hostile.case import AMPLE, CASES, EAGER, WAYS, Play, drawn_ways, is_kept, same
from tightrope.core import TightropeError

FAMILIES: Final = (hooks, gradients, loops, state, inputs, memory, control, calls)
"""Importing them lists their cases."""
OUTCOMES: Final = (
    "equal", "named", "as torch", "refused", "does not apply", "SILENTLY WRONG", "RAW ERROR", "ABORT", "HANG",
)  # fmt: skip
_MOST_TRIES: Final = 6
_NAMED: Final = re.compile(r'budget="?([\d.]+ ?(?:%|[KMGi]*B)?)')


class Outcome(msgspec.Struct, frozen=True):
    """What came of a ``case`` under one of `WAYS`.

    Attributes:
        kind: one of `OUTCOMES`.
        kept: whether the case is of the half that is not looked into.
        said: the error, the warning, or what differs.
    """

    case: str
    way: str
    kind: str
    kept: bool
    said: str = ""
    seconds: float = 0.0


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks hostile`` and return its exit status."""
    parser = ArgumentParser(prog="python -m benchmarks hostile", description=__doc__)
    parser.add_argument("--only", default="", help="parts of names of cases, with commas between")
    parser.add_argument("--ways", default="", help="with commas between; default: those drawn for a case")
    parser.add_argument("--half", choices=("open", "kept", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=60, help="of the processor's: longer hangs")
    parser.add_argument("--json", type=Path, default=Path("results/hostile.json"))
    asked = parser.parse_args(arguments)
    wanted = [
        (name, way)
        for name in CASES
        for way in asked.ways.split(",") * bool(asked.ways) or drawn_ways(name)
        if any(part in name for part in asked.only.split(","))
        and asked.half in ("both", "kept" if is_kept(name) else "open")
    ]
    found = []
    for outcome in outcomes_of(wanted, asked.seconds):
        found.append(outcome)
        if not outcome.kept and (outcome.kind.isupper() or asked.only):
            what = f"{outcome.case} [{outcome.way}] {outcome.kind}: {' '.join(outcome.said.split())}"
            console.print(what, markup=False, soft_wrap=True, highlight=False)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    for half in ("open", "kept"):
        console.print(_table(half, [one for one in found if one.kept == (half == "kept")]))
    return int(any(one.kind == "SILENTLY WRONG" for one in found))


def _table(half: str, found: Sequence[Outcome]) -> Table:
    table = Table(half, *WAYS, title=f"the {half} half: {len({one.case for one in found})} cases")
    count = Counter((one.kind, one.way) for one in found)
    for kind in OUTCOMES:
        table.add_row(kind, *(str(count[kind, way]) for way in WAYS))
    return table


def outcomes_of(wanted: Sequence[tuple[str, str]], seconds: float) -> Iterator[Outcome]:
    """Play each case in a forked process: one that hangs or dies takes nothing along."""
    context = multiprocessing.get_context("fork")
    for name, way in wanted:
        ours, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(name, way, theirs, seconds))
        began = time.perf_counter()
        child.start()
        theirs.close()
        kind, said = "HANG", ""
        if ours.poll(10 * seconds):
            try:
                kind, said = ours.recv()
            except EOFError:
                child.join()
                if child.exitcode != -signal.SIGXCPU:
                    kind, said = "ABORT", f"exit code {child.exitcode}"
        child.kill()
        child.join()
        ours.close()
        yield Outcome(name, way, kind, is_kept(name), said[:2000], time.perf_counter() - began)


def _serve(name: str, way: str, pipe: Any, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), -1))
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        found = judged(name, way)
    except BaseException:  # of this benchmark's own
        found = "ABORT", traceback.format_exc()[-2000:]
    pipe.send(found)
    pipe.close()
    os._exit(0)


def played(name: str, play: Play) -> BaseException | None:
    """Play a case from a fixed random state; return what it raised."""
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(7)
    try:
        CASES[name](play)
    except BaseException as error:
        return error
    return None


def judged(name: str, way: str) -> tuple[str, str]:
    """Play a case as it is and under a way; say what came of it."""
    whole = way == "step"
    plain = Play(EAGER, whole=whole)
    if (error := played(name, plain)) is not None:
        raise error
    if way == "step" and not plain.trains:
        return "does not apply", ""
    budget: str | int = "40%" if way in ("percent", "step") else AMPLE
    for _ in range(_MOST_TRIES):
        play = Play(way, budget, whole=whole)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            error = played(name, play)
        more = _NAMED.search(str(error)) if isinstance(error, TightropeError) else None
        if error is None or more is None or way not in ("percent", "step"):
            break
        traceback.clear_frames(error.__traceback__)  # they keep the models of this run alive
        budget, error = int(more[1]) if more[1].isdigit() else more[1], None
    said = _said(error) if error is not None else same(plain.seen, play.seen, within=way == "fuse")
    if not said:
        return "equal", ""
    inner = getattr(error, "inner_exception", None)
    if isinstance(error, TightropeError) or isinstance(inner, TightropeError):
        return "refused", said
    if way == "backend" and _as_torch(name, error, play):
        return "as torch", said
    named = [str(one.message) for one in caught if "tightrope" in str(one.message)]
    if error is None and (unlike := _unlike(play)):
        return "named", f"{said}; {unlike}"
    return ("RAW ERROR" if error is not None else "SILENTLY WRONG"), f"{said} {named}"


def _unlike(play: Play) -> str:
    lines: list[str] = []
    for one in play.planned:
        try:
            lines += tightrope.report(one).unlike_eager
        except TightropeError:
            continue
    return "; ".join(lines)


def _as_torch(name: str, error: BaseException | None, play: Play) -> bool:
    """Tell whether torch's own backend without a plan does the same."""
    torchs = Play("aot")
    other = played(name, torchs)
    if error is None or other is None:
        return error is other and not same(torchs.seen, play.seen, within=False)
    return type(error) is type(other)


def _said(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = " ".join(f"@{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}: {str(error)[:600]} {where}"
