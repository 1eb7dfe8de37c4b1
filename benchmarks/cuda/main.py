"""The command: every net in a process of its own, those that only count bytes side by side.

python -m benchmarks cuda [--only C1,C3,C4] [--nets gpt2,unet] [--seconds 8] [--json FILE]
"""

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from benchmarks.cuda import batch, beside, held
from benchmarks.cuda.nets import NETS, TRANSFORMERS
from tightrope.core import format_bytes

_Rows = Callable[..., Iterator[dict[str, Any]]]
_KINDS: Final[dict[str, tuple[_Rows, tuple[str, ...]]]] = {
    "C1": (held.rows, tuple(NETS)),
    "C3": (beside.rows, TRANSFORMERS),
    "C4": (batch.rows, ("gpt2_medium",)),
}
"""C1 decides C2 and C5, too."""
_BYTES: Final = ("asked", "reserved", "first", "refused", "budget", "needs", "all_reserved")


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks cuda`` and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cuda", description=__doc__)
    parser.add_argument("--only", default="C1,C3,C4")
    parser.add_argument("--nets", default="")
    parser.add_argument("--seconds", type=float, default=8.0, help="of search per plan")
    parser.add_argument("--workers", type=int, default=6, help="processes that count bytes side by side")
    parser.add_argument("--json", default="build/cuda.json")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        console.print("no NVIDIA GPU here, or a torch without CUDA: nothing is measured.")
        return 1
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    began, found = time.perf_counter(), []
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, search of {asked.seconds} s")
    path = Path(asked.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in asked.only.split(","):
        _, nets = _KINDS[kind]
        chosen = [net for net in nets if net in (asked.nets.split(",") if asked.nets else nets)]
        workers = asked.workers if kind == "C1" else 1
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
            waiting = [
                pool.submit(_measured, kind, net, asked.seconds, path.with_suffix(".rows")) for net in chosen
            ]
            for done in as_completed(waiting):
                for row in done.result():
                    found.append({"kind": kind, **row})
                    console.print(_line(found[-1]), markup=False, highlight=False, soft_wrap=True)
                path.write_text(json.dumps(found, indent=1))
    for line in verdicts(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{time.perf_counter() - began:.0f} s; figures in {asked.json}", highlight=False)
    return 0


def _measured(kind: str, net: str, seconds: float, log: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    began = time.perf_counter()
    try:
        for row in _KINDS[kind][0](net, seconds=seconds):
            found.append({**row, "at_s": round(time.perf_counter() - began, 1)})
            with log.open("a") as file:  # rows outlive a run that is cut short
                file.write(json.dumps({"kind": kind, **found[-1]}) + "\n")
    except Exception as error:
        said = "".join(traceback.format_exception(error)[-6:])
        found.append(
            {"net": net, "failed": f"{type(error).__name__}: {str(error)[:300]}", "trace": said[-3000:]}
        )
    return found


def _line(row: dict[str, Any]) -> str:
    cells = []
    for name, value in row.items():
        if name == "trace" or value in (None, ""):
            continue
        if name in _BYTES and isinstance(value, int):
            value = format_bytes(value)
        cells.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(cells)


def verdicts(found: Sequence[dict[str, Any]]) -> list[str]:
    """Say of every bar whether it is met, with the figure that decides."""
    planned = [row for row in found if row["kind"] == "C1" and "within" in row]
    limited = [row for row in planned if row["budget"] != "no limit"]
    said = []
    if limited:
        within = sum(row["within"] for row in limited)
        off = max(row["forecast_off"] or 0.0 for row in planned)
        equal = sum(row["equal_bits"] for row in limited)
        live = max(row["reserved_over_live"] for row in limited)
        said += [
            f"C1 {_word(within == len(limited) and off <= 0.005)}: reserved within the budget in {within} of "
            f"{len(limited)} runs that were accepted; forecast off by at most {off:.3%}",
            f"C2 {_word(equal == len(limited))}: bits of the unplanned graph in {equal} of {len(limited)}",
            f"C5 {_word(live <= 1.01)}: reserved over peak live at most {live:.4f}",
        ]
    pairs = [row for row in found if row["kind"] == "C3" and "ratio" in row]
    if pairs:
        faster = sum(row["ratio"] <= 1.0 for row in pairs)
        said.append(f"C3 {_word(faster == len(pairs))}: not slower than the peer in {faster} of {len(pairs)}")
    times = [row["times"] for row in found if row["kind"] == "C4" and "times" in row]
    if times:
        said.append(f"C4 {_word(max(times) >= 1.75)}: {max(times):.2f} times the batch of eager")
    failed = [row for row in found if "failed" in row]
    return said + [f"failed: {row['kind']} {row['net']}: {row['failed']}" for row in failed]


def _word(met: bool) -> str:
    return "met" if met else "MISSED"
