"""``python -m benchmarks.commands``: what `python -m benchmarks commands` runs."""

import sys

from benchmarks.commands.main import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
