"""Run cases under the counter, each in a process of its own: ``python -m benchmarks.witness.fresh``.

This process imports what every case needs, then reads one case per line from standard input, runs it in a
fork of itself in which nothing has run yet, and writes one line of figures. See `benchmarks.witness` for
what is counted.
"""

import ctypes
import gc
import os
import re
import signal
import sys
import traceback
import warnings
from pathlib import Path

import msgspec
import torch

import tightrope
from benchmarks._measure import digest
from benchmarks.witness.counter import Count, Counter
from benchmarks.witness.families import FAMILIES, Trial
from tightrope.core import Bytes, InfeasibleError, TightropeError

NUM_STEPS = 5
_SECONDS = 240
"""After this long a case is ended and has failed."""
_NAMED = re.compile(r"budget=(\d+)")


class Asked(msgspec.Struct, frozen=True):
    """One case.

    Attributes:
        family: name.
        budget: bytes; 0 = eager, without the library.
    """

    family: str
    budget: Bytes = 0


class Figures(msgspec.Struct, frozen=True):
    """What was counted and what was said.

    Attributes:
        true: peak bytes; see `benchmarks.witness`.
        said: peak that the report tells, what kernels take beside torch's allocator included.
        hidden: of it, what kernels take.
        kept: bytes that kernels kept to the end: code, and buffers of the matrix library.
        level: of the report.
        bits: digest of everything that every step computed, of gradients, buffers, parameters.
        refused: why the budget was refused before a step, or the empty string.
        named: bytes that the refusal names; 0 = none.
        failed: why there are no figures, or the empty string.
    """

    true: Bytes = 0
    said: Bytes = 0
    hidden: Bytes = 0
    kept: Bytes = 0
    level: str = ""
    bits: str = ""
    refused: str = ""
    named: Bytes = 0
    failed: str = ""


class _Buffers:
    """What the matrix library keeps for its products, where it can be asked to give it back."""

    def __init__(self, counter: Counter) -> None:
        path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        self._release = (
            getattr(ctypes.CDLL(str(path)), "mkl_serv_free_buffers", None) if path.exists() else None
        )
        self.largest = 0
        for rows, middle, columns in ((8192, 400, 16), (1024, 1024, 1024)):  # one of them takes most
            self.release()
            before = counter.read().kernels
            torch.ones(rows, middle, dtype=torch.float64) @ torch.ones(middle, columns, dtype=torch.float64)
            self.largest = max(self.largest, counter.read().kernels - before)
        self.release()

    def release(self) -> None:
        """Give back what is kept."""
        if self._release is not None:
            self._release()


def _train(trial: Trial, counter: Counter) -> str:
    found = []
    for _ in range(NUM_STEPS):
        computed = trial.step()
        counter.look()
        found.append(digest([tensor.contiguous() for tensor in computed]))
        found.append(digest([_plain(parameter.grad) for parameter in trial.parameters()]))
        found.append(digest([*trial.buffers(), *trial.parameters()]))
        del computed
    return digest([torch.frombuffer(bytearray("".join(found).encode()), dtype=torch.uint8)])


def _plain(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def measure(asked: Asked, counter: Counter) -> Figures:
    """Train under a budget, and count."""
    buffers = _Buffers(counter)
    gc.collect()
    base = counter.read()
    counter.reset()
    torch.manual_seed(0)
    trial = FAMILIES[asked.family].make()
    said = hidden = 0
    level, bits = "", ""
    try:
        for model in trial.models if asked.budget else ():
            tightrope.compile(model, budget=asked.budget, progress=False)
        bits = _train(trial, counter)
        reports = [tightrope.report(model) for model in trial.models] if asked.budget else []
        said = max((report.observed_total for report in reports), default=0)
        hidden = max((getattr(report, "hidden", 0) for report in reports), default=0)
        level = "/".join(sorted({report.level for report in reports}))
        refused, named = "", 0
    except (InfeasibleError, torch.OutOfMemoryError) as error:
        refused = f"{type(error).__name__}: {error}"
        found = _NAMED.search(refused)
        tried = getattr(error, "budget_to_try", None) or getattr(error, "smallest_found", None)
        named = int(found[1]) if found else tried or 0
    peak = counter.read().peak
    del trial
    torch._dynamo.reset()
    gc.collect()
    code, pool = _kept(counter, base, buffers)
    true = peak - base.held - code - min(pool, buffers.largest)
    return Figures(true, said + hidden, hidden, code + pool, level, bits, refused, named)


def _kept(counter: Counter, base: Count, buffers: _Buffers) -> tuple[Bytes, Bytes]:
    """Bytes of kernels' code, and of the matrix library's buffers, that are held now."""
    full = counter.read()
    buffers.release()
    end = counter.read()
    if end.lost:
        raise TightropeError("the counter ran out of room.")
    code = end.kernels + end.kernel_pages - base.kernels - base.kernel_pages
    return code, full.kernels - end.kernels


def _in_fork(asked: Asked, counter: Counter) -> bytes:
    """Measure in a process of its own and return the line of figures."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_SECONDS)
            try:
                figures = measure(asked, counter)
            except Exception as error:
                traceback.print_exc()
                figures = Figures(failed=f"{type(error).__name__}: {error}")
            os.write(writing, msgspec.json.encode(figures))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        line = pipe.read()
    os.waitpid(child, 0)
    return line or msgspec.json.encode(Figures(failed=f"ended after {_SECONDS} s, or died"))


def main() -> None:
    """Serve cases until standard input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counter = Counter()
    counter.begin()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(_in_fork(msgspec.json.decode(line, type=Asked), counter) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
