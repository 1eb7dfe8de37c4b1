"""Run a saved step in this process and print figures as JSON: ``python -m benchmarks.executable.fresh FILE``.

The clock starts when torch has been imported. Nothing else is imported before that.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch

_MACHINERY = {"torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd"}
"""What captures and compiles."""


def figures(path: Path, began: float, cpu_began: float) -> dict[str, Any]:
    """Run one step; add the seconds since ``began``, and say what else was imported."""
    from tightrope.cli.saved_figures import run_file

    imported, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    found = run_file(path)
    found["cpu_seconds"] += cpu
    found["seconds"] = imported + found["load_seconds"] + found["first_step_seconds"]
    found["import_seconds"] = imported
    found["captured"] = sorted(_MACHINERY & set(sys.modules))
    return found


if __name__ == "__main__":
    began, cpu_began = time.perf_counter(), time.process_time()
    torch.set_num_threads(1)
    result = figures(Path(sys.argv[1]), began, cpu_began)
    import msgspec

    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
