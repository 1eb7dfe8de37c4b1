"""Run ``python -m benchmarks.placement``."""

import sys

from rich.console import Console

from benchmarks.placement.main import run

sys.exit(run(sys.argv[1:], Console()))
