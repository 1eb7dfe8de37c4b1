"""Run one question: ``python -m benchmarks spine [options]``."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from benchmarks import (
    estimating,
    first,
    guards,
    loops,
    overlap,
    pace,
    page,
    placement_safety,
    recorder,
    shapes,
    steady,
)
from benchmarks.commands import run as commands
from benchmarks.compress.main import run as compress
from benchmarks.cuda.main import run as cuda
from benchmarks.evict.main import run as evict
from benchmarks.executable import main as executable
from benchmarks.fabric.main import run as fabric
from benchmarks.floor.main import run as floor
from benchmarks.hostile.main import run as hostile
from benchmarks.paging import main as paging
from benchmarks.placement import main as placement
from benchmarks.planners import main as planners
from benchmarks.ranks.main import run as ranks
from benchmarks.sequence.main import run as sequence
from benchmarks.spine import main as spine
from benchmarks.witness import main as witness
from benchmarks.wrong.main import run as wrong


@contextmanager
def _needing(plugin: str) -> Iterator[None]:
    """Say what to install where a plug-in is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != plugin.replace("-", "_"):
            raise
        sys.exit(f"this question needs {plugin}: pip install -e packages/{plugin}")


def _fleet(arguments: list[str], console: Console) -> int:
    """Ask what needs the plug-in tightrope-fleet, which may not be installed."""
    with _needing("tightrope-fleet"):
        from benchmarks.fleet.main import run

    return run(arguments, console)


def _micro(arguments: list[str], console: Console) -> int:
    """Ask what needs the plug-in tightrope-micro, which may not be installed."""
    with _needing("tightrope-micro"):
        from benchmarks.micro.main import run

    return run(arguments, console)


def _micro_workflow(arguments: list[str], console: Console) -> int:
    """Ask what needs the plug-in tightrope-micro too."""
    with _needing("tightrope-micro"):
        from benchmarks.micro.workflow import run

    return run(arguments, console)


_QUESTIONS = {
    "page": page.run,
    "spine": spine.run,
    "planners": planners.run,
    "placement": placement.run,
    "placement_safety": placement_safety.run,
    "recorder": recorder.run,
    "executable": executable.run,
    "witness": witness.run,
    "floor": floor,
    "overlap": overlap.run,
    "pace": pace.run,
    "steady": steady.run,
    "shapes": shapes.run,
    "estimating": estimating.run,
    "first": first.run,
    "loops": loops.run,
    "wrong": wrong,
    "commands": commands,
    "guards": guards.run,
    "hostile": hostile,
    "paging": paging.run,
    "micro": _micro,
    "micro_workflow": _micro_workflow,
    "compress": compress,
    "fabric": fabric,
    "evict": evict,
    "fleet": _fleet,
    "sequence": sequence,
    "ranks": ranks,
    "cuda": cuda,
}


def main(arguments: list[str]) -> int:
    """Dispatch to a question by its name."""
    if not arguments or arguments[0] not in _QUESTIONS:
        print(f"usage: python -m benchmarks {{{','.join(_QUESTIONS)}}} [options]", file=sys.stderr)
        return 2
    os.environ.setdefault("TIGHTROPE_PLANS", "off")  # plans of earlier runs would be measured as quick ones
    return _QUESTIONS[arguments[0]](arguments[1:], Console())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
