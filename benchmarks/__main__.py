"""Run one question: ``python -m benchmarks spine [options]``."""

import os
import sys
from collections.abc import Callable
from importlib import import_module

from rich.console import Console

from benchmarks import (
    estimating,
    first,
    guards,
    loops,
    overlap,
    pace,
    page,
    shapes,
    steady,
)
from benchmarks.commands import run as commands
from benchmarks.cuda.main import run as cuda
from benchmarks.executable import main as executable
from benchmarks.families.main import run as families
from benchmarks.floor.main import run as floor
from benchmarks.hostile.main import run as hostile
from benchmarks.paging import main as paging
from benchmarks.spine import main as spine
from benchmarks.witness import main as witness
from benchmarks.wrong.main import run as wrong


def _of_plugin(question: str, module: str = "main") -> Callable[[list[str], Console], int]:
    """Ask what needs a plug-in, which may not be installed: say what to install then."""

    def ask(arguments: list[str], console: Console) -> int:
        try:
            return int(import_module(f"benchmarks.{question}.{module}").run(arguments, console))
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if not name.startswith("tightrope_"):
                raise
            extra = name.removeprefix("tightrope_")
            said = f"{question} needs tightrope-{extra}: pip install 'tightrope[{extra}]'."
            print(f"python -m benchmarks: {said}", file=sys.stderr)
            return 2

    return ask


_QUESTIONS = {
    "page": page.run,
    "spine": spine.run,
    "planners": _of_plugin("planners"),
    "placement": _of_plugin("placement"),
    "placement_safety": _of_plugin("placement", "safety"),
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
    "families": families,
    "paging": paging.run,
    "micro": _of_plugin("micro"),
    "micro_workflow": _of_plugin("micro", "workflow"),
    "assign": _of_plugin("assign"),
    "compress": _of_plugin("compress"),
    "differ": _of_plugin("differ"),
    "fabric": _of_plugin("fabric"),
    "evict": _of_plugin("evict"),
    "experts": _of_plugin("experts"),
    "export": _of_plugin("export"),
    "fleet": _of_plugin("fleet"),
    "forms": _of_plugin("forms"),
    "sequence": _of_plugin("sequence"),
    "graphs": _of_plugin("graphs"),
    "ranks": _of_plugin("ranks"),
    "recorder": _of_plugin("recorder"),
    "verify": _of_plugin("fleet", "integrity"),
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
