"""Run it: ``python -m benchmarks paging [--only I3,I4] [--nets mlp,gpt2] [--rounds N] [--page-to FOLDER]``.

I3: every net under three budgets. One compiled model runs three plans of one graph in turn, step by step:
recomputation alone, pages alone, and the joint plan. Times are medians of forward, loss and backward by
the clock on the wall; *forecast* is that of the joint plan, *off* is its observed over forecast time.
The losses of all steps are compared, bit for bit, with those of the plain model. *x budget*: bytes of the
activations that the forward makes, over the budget.

I4: random faults in steps that page, one per trial: a full disk, a write or read that stops short, a
flipped bit. After each the state has its bits, and the next step those of a model that never failed. Then
processes that are killed while they page: the folder stays empty, its disk gets its blocks back.
"""

import argparse
import tempfile
from collections.abc import Sequence

import torch
from rich.console import Console

from benchmarks.paging.faults import KINDS, faults
from benchmarks.paging.speed import NETS, speed


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paging")
    parser.add_argument("--only", default="I3,I4", help="bars to run")
    parser.add_argument("--nets", default=",".join(NETS), help="of I3")
    parser.add_argument("--scale", choices=("bench", "test"), default="bench", help="size of the nets")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each plan")
    parser.add_argument("--trials", type=int, default=50, help="of every fault")
    parser.add_argument("--faults", default=",".join(KINDS), help="of I4")
    parser.add_argument("--page-to", default=tempfile.gettempdir(), help="folder on a disk")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if "I3" in asked.only:
        speed(console, asked.nets.split(","), asked.scale, asked.rounds, asked.page_to)
    if "I4" in asked.only:
        faults(console, asked.trials, asked.page_to, asked.faults.split(","))
    return 0
