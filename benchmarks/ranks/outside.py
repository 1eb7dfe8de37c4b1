"""B4: bytes of a rank as its system counts them, against the limit, and against torch's own 1F1B.

Every rank is a process. Once it has imported, computed and exchanged a little, its private dirty pages are
its base; another process reads them from then on, every few milliseconds. What counts is how many more there
are at most, parameters and gradients included. A point is run in new processes.
"""

import contextlib
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import pipelining

import tightrope_ranks
from benchmarks.micro.rows import Row
from benchmarks.ranks.titan import Wide
from tightrope.core import InfeasibleError, TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.pipeline.run import give_back_at_once

RANKS, LAYERS, STEPS, MICRO = 4, 8, 3, 8
SHARES: Final = (1.0, 1.15, 1.3, 1.5, 1.8)
"""Limits, in multiples of the smallest peak that was found."""


class Heads(torch.nn.Module):
    """A layer of a transformer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.TransformerEncoderLayer(
            384, 6, 1536, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


class Maps(torch.nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.two = (torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.two(torch.relu(self.one(x)))
        return found


NETS: Final[dict[str, tuple[Callable[[int], torch.nn.Module], tuple[int, ...]]]] = {
    "wide": (partial(Wide, width=512), (8, 128, 512)),
    "transformer": (Heads, (4, 256, 384)),
    "convolutions": (Maps, (4, 64, 64, 64)),
}


def layers_of(net: str, first: int = 0, end: int = LAYERS) -> list[torch.nn.Module]:
    """Build some layers; each is alike on every rank."""
    return [NETS[net][0](number) for number in range(first, end)]


def batch_of(net: str, count: int = MICRO) -> torch.Tensor:
    """Inputs, and targets at once."""
    rows, *others = NETS[net][1]
    return torch.randn(count * rows, *others, generator=torch.Generator().manual_seed(1))


def dirty(pid: int) -> int:
    """Read the private dirty bytes of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty"):
            return int(line.split()[1]) * 1024
    raise TightropeError(f"process {pid} has no Private_Dirty")


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[dict[int, int]]:
    """Read the pages of ranks that have said their number; gives the most above the base, by rank."""
    most: dict[int, int] = {}
    bases: dict[int, tuple[int, int]] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for file in folder.glob("rank*"):
                text = file.read_text().split()
                if len(text) == 2:
                    bases.setdefault(int(file.name[4:]), (int(text[0]), int(text[1])))
            for rank, (pid, base) in bases.items():
                with contextlib.suppress(OSError, TightropeError):
                    most[rank] = max(most.get(rank, 0), dirty(pid) - base)
            time.sleep(0.002)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def ready(rank: int, size: int, net: str, folder: str) -> None:
    """Import, compute and run torch's 1F1B on little; then say what the process has."""
    allocator()
    layer, x = NETS[net][0](0), batch_of(net, 1)
    layer(x[:1]).sum().backward()
    del layer, x
    stage = pipelining.PipelineStage(torch.nn.Linear(4, 4), rank, size, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, size, loss_fn=torch.nn.functional.mse_loss)
    few, last = torch.zeros(size, 4), rank == size - 1
    schedule.step(*([few] if not rank else []), target=few if last else None, losses=[])
    del stage, schedule, few
    gc.collect()
    dist.barrier()
    file = Path(folder) / f"rank{rank}"
    file.write_text(f"{os.getpid()} {dirty(os.getpid())}\n")
    time.sleep(0.05)
    dist.barrier()


def planned(rank: int, size: int, net: str, folder: str, plan: Any, limit: int) -> tuple[float, float]:
    """Run steps of a plan under a limit; return seconds of the fastest, and the last stage's loss."""
    ready(rank, size, net, folder)
    work = plan.work
    cut = [LAYERS * k // len(work.stages) for k in range(len(work.stages) + 1)]
    mine = {s: torch.nn.Sequential(*layers_of(net, cut[s], cut[s + 1])) for s in work.local(rank)}
    run = tightrope_ranks.PipelineRun(plan, mine, torch.nn.functional.mse_loss, limit=limit)
    first, last = 0 in mine, len(work.stages) - 1 in mine
    x = batch_of(net) if first or last else torch.empty(0)

    def step() -> list[torch.Tensor]:
        return run.step(*([x] if first else []), target=x if last else None)

    return _timed(step, mine.values())


def plain(rank: int, size: int, net: str, folder: str, mapped: bool) -> tuple[float, float]:
    """Run steps of torch's own 1F1B, with equal numbers of layers on every rank.

    ``mapped`` gives it what `tightrope_ranks.PipelineRun` does with a limit: freed blocks leave at once.
    """
    if mapped:
        give_back_at_once()
    ready(rank, size, net, folder)
    each = LAYERS // size
    module = torch.nn.Sequential(*layers_of(net, rank * each, (rank + 1) * each))
    stage = pipelining.PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, MICRO, loss_fn=torch.nn.functional.mse_loss)
    first, last = rank == 0, rank == size - 1
    x = batch_of(net) if first or last else None

    def step() -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []
        schedule.step(*([x] if first else []), target=x if last else None, losses=losses)
        return losses

    return _timed(step, [module])


def _timed(step: Callable[[], list[torch.Tensor]], modules: Any) -> tuple[float, float]:
    best, loss = float("inf"), 0.0
    for _ in range(STEPS):
        for module in modules:
            module.zero_grad()
        dist.barrier()
        begun = time.perf_counter()
        losses = step()
        dist.barrier()
        best = min(best, time.perf_counter() - begun)
        loss = float(sum(one.item() for one in losses)) if losses else loss
    return best, loss


def rows(quick: bool) -> list[Row]:
    """B4: three nets, two limits each."""
    nets = list(NETS)[: 1 if quick else None]
    return [row for net in nets for row in _rows_of(net, SHARES[::2][:2])]


def rows_all(quick: bool) -> list[Row]:
    """B4: three nets, five limits each."""
    del quick
    return [row for net in NETS for row in _rows_of(net, SHARES)]


def _rows_of(net: str, shares: tuple[float, ...]) -> Iterator[Row]:
    smallest = _smallest(net)
    peers = [_run(plain, net, mapped) for mapped in (False, True)]
    said = " or ".join(f"{_list(most)} MiB in {seconds:.2f} s" for most, seconds, _ in peers)
    ours = []
    for share in shares:
        limit = int(share * smallest)
        most, seconds, loss = _run(planned, net, _plan(net, limit), limit)
        over, equal = max(most) / limit - 1, abs(loss - peers[0][2]) <= 1e-6 * abs(loss)
        ours.append((max(most), seconds))
        yield Row(
            "B4",
            f"{net}: every rank's private dirty bytes are at most 5 % above the limit",
            f"limit {_mib(limit)}, ranks {_list(most)} MiB ({100 * over:+.1f} %), {seconds:.2f} s; "
            f"loss of 1F1B: {equal}",
            over <= 0.05 and equal,
        )
    beaten = [
        any(
            (size < max(most) and took <= 1.05 * seconds) or (size <= 1.05 * max(most) and took < seconds)
            for size, took in ours
        )
        for most, seconds, _ in peers
    ]
    yield Row(
        "B4",
        f"{net}: some limit takes less bytes than torch's 1F1B in its time, or less time in its bytes",
        f"with the C library's defaults: {beaten[0]}; with blocks mapped one by one: {beaten[1]}",
        all(beaten),
        said,
    )


def _list(most: list[int]) -> str:
    return ", ".join(map(_mib, most))


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}"


def _plan(net: str, limit: int) -> Any:
    x = batch_of(net, 1)
    return tightrope_ranks.plan(
        layers_of(net), x, x, torch.nn.functional.mse_loss, ranks=RANKS, micro_batches=MICRO, budget=limit
    )


def _smallest(net: str) -> int:
    try:
        _plan(net, 1)
    except InfeasibleError as error:
        return int(error.smallest_found or 0)
    raise AssertionError("a plan took a byte")


def _run(what: Callable[..., Any], net: str, *arguments: Any) -> tuple[list[int], float, float]:
    """Start ranks; return their most bytes, the fastest step's seconds and the loss."""
    with tempfile.TemporaryDirectory() as name, watched(Path(name)) as most:
        answers = run_ranks(what, RANKS, net, name, *arguments, seconds=600.0, silence=120.0)
    return (
        [most[rank] for rank in range(RANKS)],
        max(one for one, _ in answers),
        sum(loss for _, loss in answers),
    )
