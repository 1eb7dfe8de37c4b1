"""Run one question: ``python -m benchmarks spine [options]``."""

import sys

from rich.console import Console

from benchmarks import page, placement_safety, recorder
from benchmarks.executable import main as executable
from benchmarks.floor.main import run as floor
from benchmarks.placement import main as placement
from benchmarks.planners import main as planners
from benchmarks.spine import main as spine

_QUESTIONS = {
    "page": page.run,
    "spine": spine.run,
    "planners": planners.run,
    "placement": placement.run,
    "placement_safety": placement_safety.run,
    "recorder": recorder.run,
    "executable": executable.run,
    "floor": floor,
}


def main(arguments: list[str]) -> int:
    """Dispatch to a question by its name."""
    if not arguments or arguments[0] not in _QUESTIONS:
        print(f"usage: python -m benchmarks {{{','.join(_QUESTIONS)}}} [options]", file=sys.stderr)
        return 2
    return _QUESTIONS[arguments[0]](arguments[1:], Console())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
