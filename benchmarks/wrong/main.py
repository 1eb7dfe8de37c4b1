"""The command: draw cases, run each in a process that has run others before, print what is wrong."""

import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch
from rich.console import Console

from benchmarks.wrong.case import Outcome, run_case
from benchmarks.wrong.files import World, make_world

_CHUNK: Final = 20
"""Cases that one process runs, one after another."""
_MOST_BYTES: Final = 12 * 2**30
_Pipe = multiprocessing.connection.Connection


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks wrong`` and return its exit status."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="0", help="any text; cases are drawn from it")
    parser.add_argument("--num", type=int, default=300, help="cases")
    parser.add_argument("--quick", action="store_true", help="a tenth of them")
    parser.add_argument("--only", default="", help="numbers of cases, such as 7,12")
    parser.add_argument("--seconds", type=int, default=60, help="a case without an answer for so long hangs")
    parser.add_argument("--json", type=Path, default=Path("results/wrong.json"))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a case is wrong")
    asked = parser.parse_args(arguments)
    numbers = [int(one) for one in asked.only.split(",") if one] or list(
        range(asked.num // 10 if asked.quick else asked.num)
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = []
        for found in outcomes_of(Path(folder), asked.seed, numbers, asked.seconds):
            outcomes.append(found)
            if found.kind or asked.only:
                console.print(_line(found), markup=False, soft_wrap=True, highlight=False)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n")
    for name, count in sorted(Counter(_group(found) for found in outcomes).items()):
        console.print(f"{count:5d}  {name}", highlight=False)
    num_wrong = sum(bool(found.kind) for found in outcomes)
    console.print(
        f"{num_wrong} wrong of {len(outcomes)}, seed {asked.seed}, {time.perf_counter() - began:.0f} s",
        highlight=False,
    )
    return int(asked.strict and num_wrong > 0)


def _line(found: Outcome) -> str:
    said = " ".join(found.said.split())
    call = f"{found.door}({'; '.join(found.wrong)})"
    return f"#{found.number} {found.kind or 'right'}: {call} -> {found.how}: {said}"


def _group(found: Outcome) -> str:
    kind = "command" if found.door.startswith("$") else "loop" if found.door == "loop" else "arguments"
    return f"{kind:10} {'WRONG: ' + found.kind if found.kind else 'right: ' + found.how}"


def outcomes_of(folder: Path, seed: str, numbers: Sequence[int], seconds: int) -> Iterator[Outcome]:
    """Run cases, each after others in a forked process; one that hangs or dies gets a fresh process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    maker = context.Process(target=_make, args=(folder, theirs))
    maker.start()
    world: World = ours.recv()
    maker.join()
    waiting = list(numbers)
    while waiting:
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_serve, args=(world, seed, waiting[:_CHUNK], theirs, folder / "errors")
        )
        child.start()
        theirs.close()
        for number in waiting[:_CHUNK]:
            kind = "hang"
            if ours.poll(seconds):
                try:
                    found: Outcome = msgspec.json.decode(ours.recv_bytes(), type=Outcome)
                    waiting.remove(number)
                    yield found
                    continue
                except EOFError:
                    kind = "crash"
            child.kill()
            child.join()
            waiting.remove(number)
            yield Outcome(number, "?", (), kind, said=f"exit code {child.exitcode}")
            break
        ours.close()
        child.join(seconds)


def _make(folder: Path, pipe: _Pipe) -> None:
    _quiet(folder / "errors")
    pipe.send(make_world(folder))


def _quiet(errors: Path) -> None:
    """Let what is printed go to a file: torch logs beside what it raises."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 2)
    os.dup2(file, 1)


def _serve(world: World, seed: str, numbers: Sequence[int], pipe: _Pipe, errors: Path) -> None:
    _quiet(errors)
    sys.stdin.close()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    for number in numbers:
        try:
            found = run_case(world, seed, number)
        except BaseException:  # of this benchmark's own
            found = Outcome(number, "?", (), "crash", said=traceback.format_exc()[-3000:])
        pipe.send_bytes(msgspec.json.encode(found))
