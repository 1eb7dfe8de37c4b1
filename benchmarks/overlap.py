"""How much of the gradients DistributedDataParallel gets and sends before the backward ends; its time.

    python -m benchmarks overlap [--pairs N] [--nets layers,gpt2] [--bucket-mb N]

Two gloo processes train each net twice: plain, and planned at 100 % of its bytes, so that nothing is computed
twice. *Came* is the share of the gradient bytes whose hook ran before the last gradient was made, by at least
1 % of the step; *sent* that of the buckets whose all-reduce began by then. *At once* is the planned step with
its gradients at the end of the backward, as in one process. Times are of forward and backward, as medians of
the ratios of interleaved pairs with a bootstrap interval: on the wall, of the process's CPU with the threads
that send, and of the CPU of the thread that trains, which other processes change least. *Again* is plain
against plain: what differs from 1 there is noise.
"""

import gc
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import torch
from rich.console import Console
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import tightrope
from benchmarks._measure import paired_ratio
from benchmarks.zoo import build
from tightrope.capture import announce, capture_program, measured
from tightrope.plan import solve
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE

_STEPS: Final = 5
_LATE: Final = 0.01
_PAGES: Final = 1 << 20
"""Bytes by which buckets of the other loops may be above their gradients: they are whole pages."""


class Layers(nn.Module):
    """Equal linear layers: 4 MiB of gradients each."""

    def __init__(self, *, num: int = 12, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def _built(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    if name == "layers":
        return Layers(), (torch.randn(256, 1024),)
    case = build(name, scale="bench")
    return case.model, case.inputs


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows of every net."""
    parser = ArgumentParser(prog="python -m benchmarks overlap")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--nets", default="layers,gpt2,gpt2_small_vocab")
    parser.add_argument("--bucket-mb", type=float, default=4.0)
    options = parser.parse_args(arguments)
    for name in options.nets.split(","):
        with TemporaryDirectory() as folder:
            start_processes(_process, (folder, name, options), nprocs=2)  # type: ignore[no-untyped-call]
            console.print(Path(folder, "rows").read_text(), end="", soft_wrap=True)
    return 0


def _process(rank: int, folder: str, name: str, options: Namespace) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    rows = _rows(name, options)
    if rank == 0:
        Path(folder, "rows").write_text("".join(f"{name:17}{row}\n" for row in rows))
    distributed.destroy_process_group()


def _rows(name: str, options: Namespace) -> list[str]:
    plain, again, planned = (_Loop(name, options.bucket_mb, planned=number == 2) for number in range(3))
    for _ in range(_STEPS):  # the first plan is checked, what the loop holds is learned, buckets are built
        planned.seconds()
    report = tightrope.report(planned.model)
    rows = [f"{'plain':9}{plain.shares()}", f"{'planned':9}{planned.shares()}"]
    with patch.object(announce, "_trains_together", lambda: False):
        rows.append(f"{'at once':9}{planned.shares()}")
    for what, one in (("planned", planned), ("again", again)):
        for clock in (time.perf_counter, time.process_time, time.thread_time):
            one.clock = plain.clock = clock
            ratio = paired_ratio(one, plain, num_pairs=options.pairs)
            rows.append(f"{what:9}time over plain, {clock.__name__}: {ratio}, {options.pairs} pairs")
    peak = f"peak forecast {report.forecast_peak}, observed {report.observed_peak}"
    return [*rows, f"{'planned':9}{peak}, {report.num_recomputed} ops recomputed, {report.level}"]


class _Loop:
    """Steps of one net in both processes; without an optimizer."""

    def __init__(self, name: str, bucket_mb: float, *, planned: bool) -> None:
        self.model, self.inputs = _built(name)
        self.planned, self.bucket_mb = planned, bucket_mb
        self.clock: Callable[[], float] = time.perf_counter
        if planned:
            tightrope.compile(self.model, budget=_full(self.model, self.inputs), progress=False)
        self.parallel: Any = None
        self.wrap()

    def wrap(self) -> None:
        """Make what sends the gradients anew; two of them would both send."""
        self.parallel = None
        self.model.zero_grad()
        gc.collect()
        self.parallel = DistributedDataParallel(
            self.model, bucket_cap_mb=self.bucket_mb, gradient_as_bucket_view=True
        )

    def clear(self) -> None:
        """Drop the gradients."""
        self.parallel.zero_grad()

    def seconds(self) -> float:
        """Return the seconds of one step."""
        self.clear()
        distributed.barrier()
        start = self.clock()
        with nullcontext() if self.planned else accounts().unlimited():
            self.parallel(*self.inputs).backward()
        return self.clock() - start

    def shares(self) -> str:
        """Tell how much came, and was sent, before the backward was over."""
        came: list[tuple[float, int]] = []
        sent: list[tuple[float, int]] = []
        ends: list[float] = []
        found: list[tuple[float, float]] = []

        def send(group: Any, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
            sent.append((time.perf_counter(), bucket.buffer().nbytes))
            return allreduce_hook(group, bucket)

        def note(parameter: Tensor) -> None:
            came.append((time.perf_counter(), parameter.nbytes))

        def note_end(_: Any) -> None:
            ends.append(time.perf_counter())

        end_part = Running._end_part

        def ended(running: Running) -> None:
            note_end(running)
            end_part(running)

        trained: Any = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in trained]
        if not self.planned:  # the last gradient is there
            hooks += [parameter.register_hook(note_end) for parameter in trained]
        self.wrap()
        self.parallel.register_comm_hook(None, send)
        for _ in range(_STEPS):
            came.clear()
            sent.clear()
            with patch.object(Running, "_end_part", ended):
                start = time.perf_counter()
                self.seconds()
            end = ends[-1] - _LATE * (time.perf_counter() - start)
            found.append((_share(came, end), _share(sent, end)))
        for hook in hooks:
            hook.remove()
        self.wrap()
        shares = [median(step[which] for step in found) for which in range(2)]
        return f"came {shares[0]:6.1%}   sent {shares[1]:6.1%}"


def _share(events: Sequence[tuple[float, int]], end: float) -> float:
    return sum(size for at, size in events if at < end) / sum(size for _, size in events)


def _full(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Bytes of a step that computes nothing twice, beside buckets, their successors and gradients."""
    with accounts().unlimited():
        program, real = capture_program(model, inputs)
        graph = measured(program, real, accounts().allocator).graph
        forecast = solve(graph, budget=2**60, planner="given").forecast
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return accounts().charged() + RESERVE + forecast.total - graph.persistent + 3 * gradients + _PAGES
