"""One case, one process: a fresh allocator, no cached graphs, no leftovers of other nets.

The child writes its rows as JSON lines into a pipe; what it prints goes to its standard error.

    python -m benchmarks.spine.cases FILE_DESCRIPTOR BAR CASE SETTINGS
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import msgspec

from benchmarks.spine.bar import Bar, Row, Settings


def run_case(bar: Bar, case: str, settings: Settings) -> Iterator[Row]:
    """Measure one case in a process of its own and yield its rows as they come.

    A process that fails yields a last row with ``failed``: the end of what it wrote.
    """
    read, write = os.pipe()
    command = [sys.executable, "-m", "benchmarks.spine.cases", str(write), bar.ids[0], case]
    command.append(msgspec.json.encode(settings).decode())
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors, os.fdopen(read, "rb") as rows:
        with subprocess.Popen(
            command, pass_fds=(write,), stdout=errors, stderr=errors, env=os.environ | threads
        ) as child:
            os.close(write)
            for line in rows:
                yield msgspec.json.decode(line)
        if child.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()[-2000:]
            yield {"net": case, "failed": f"exit {child.returncode}: {text}", "note": _last_line(text)}


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else "no message"


def _child(descriptor: str, bar_id: str, case: str, settings: str) -> None:
    import torch

    from benchmarks.spine import BARS

    torch.set_num_threads(1)
    bar = next(bar for bar in BARS if bar_id in bar.ids)
    with os.fdopen(int(descriptor), "wb") as pipe:
        for row in bar.rows(case, msgspec.json.decode(settings, type=Settings)):
            pipe.write(msgspec.json.encode(row) + b"\n")
            pipe.flush()


if __name__ == "__main__":
    _child(*sys.argv[1:])
