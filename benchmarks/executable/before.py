"""X3: a step at an ample budget is not slower than it was in an earlier version.

    python -m benchmarks executable --only X3 --before FOLDER     # a checkout of the earlier version

Each version trains the same net from the same seed in a process of its own; the processes take turns, step
by step, the order alternating. Times are thread-CPU seconds of forward and backward; the ratio is the median
over the pairs, with its bootstrap 95 % interval. A third process of this version gives the noise: its ratio
to the second is 1 but for the machine.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._measure import bootstrap
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict

BEFORE = "TIGHTROPE_BEFORE"
"""Environment variable with the checkout of the earlier version."""
_HERE = Path(__file__).resolve().parents[2]
_NOISE = 0.02
_WORKER = """
import sys, time, torch, tightrope
from benchmarks.zoo import build
torch.set_num_threads(1)
case = build(sys.argv[1], scale=sys.argv[2])
tightrope.compile(case.model, budget="64GiB", progress=False)
for line in sys.stdin:
    for parameter in case.model.parameters():
        parameter.grad = None
    begun = time.thread_time()
    loss = case.model(*case.inputs)
    loss.backward()
    print(time.thread_time() - begun, tightrope.report(case.model).num_recomputed, flush=True)
"""


class _Version:
    """A process that trains a net with the package of one folder."""

    def __init__(self, folder: Path, name: str, settings: Settings) -> None:
        paths = os.pathsep.join([str(folder / "src"), str(folder)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, name, settings.scale],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )

    def seconds(self) -> float:
        """Run one step; return its thread-CPU seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        seconds, _, again = self.process.stdout.readline().partition(" ")
        assert not int(again), "the ample budget was not ample"
        return float(seconds)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def _rows(name: str, settings: Settings) -> Iterator[Row]:
    before = os.environ.get(BEFORE)
    if before is None:
        return
    versions = [_Version(Path(folder), name, settings) for folder in (before, _HERE, _HERE)]
    try:
        for version in versions:  # capture, plan, check
            for _ in range(3):
                version.seconds()
        times: list[list[float]] = [[], [], []]
        for pair in range(settings.num_pairs):
            for number in (0, 1, 2) if pair % 2 == 0 else (2, 1, 0):
                times[number].append(versions[number].seconds())
    finally:
        for version in versions:
            version.close()
    yield {
        "net": name,
        "before": bootstrap([now / then for now, then in zip(times[1], times[0], strict=True)]),
        "noise": bootstrap([one / other for one, other in zip(times[2], times[1], strict=True)]),
        "ms": 1000 * sorted(times[1])[len(times[1]) // 2],
    }


def _verdict(rows: Sequence[Row], _: Settings) -> list[Verdict]:
    worst = max(rows, key=lambda row: row["before"].median)
    figure = f"a step at an ample budget takes at most {worst['before']} of what it took ({worst['net']})"
    return [Verdict("X3", worst["before"].median <= 1 + _NOISE, figure)]


BAR = Bar(
    ("X3",),
    "A step at an ample budget, against an earlier version (--before FOLDER)",
    (
        Column("net", "net", 14),
        Column("ms", "CPU ms", 9, lambda value: f"{value:.1f}"),
        Column("before", "to before [95 %]", 24),
        Column("noise", "this to itself", 24),
    ),
    lambda settings: settings.choose("gpt2", "resnet18", "llama") if BEFORE in os.environ else (),
    _rows,
    _verdict,
)
