"""Time exchanges of pooled rows among four gloo ranks on this machine, and fit what each way costs.

On each rank ``ns = latency * others + per_byte * (sent + received)``; ranks start together.
"""

import random
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from tightrope.core import RankError
from tightrope_assign.lookups.learn import nonnegative
from tightrope_assign.values.costs import ExchangeCost

_RANKS: Final = 4


def measure_exchanges(*, trials: int = 40, seed: int = 0) -> tuple[ExchangeCost, ExchangeCost, float]:
    """Return the prices forward and backward, and the fit's median relative error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            start_processes(_rank, (folder, trials, seed), nprocs=_RANKS)  # type: ignore[no-untyped-call]
        except (ProcessRaisedException, ProcessExitedException) as error:
            said = str(error).strip()[-300:]
            raise RankError(f"A rank of the exchange failed: {said!r}. Try --no-exchange.") from error
        rows = np.load(Path(folder) / "rows.npy")
    ways, errors = [], []
    for size, taken in (rows[:, :2].T, rows[:, 2:].T):  # forward, backward
        causes = np.stack([np.full(len(size), _RANKS - 1.0), size], 1) / taken[:, None]
        x = nonnegative(causes, np.ones(len(size)))
        ways.append(ExchangeCost(float(x[0]), float(x[1])))
        errors.append(abs(causes @ x - 1))
    return ways[0], ways[1], float(np.median(np.concatenate(errors)))


def _rank(rank: int, folder: str, trials: int, seed: int) -> None:
    torch.set_num_threads(1)
    limit, meet = timedelta(seconds=60), f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=_RANKS, timeout=limit)
    chance, found = random.Random(seed), list[float]()
    for _ in range(trials):
        samples = chance.choice((64, 128, 256))  # of each rank
        columns = [4 * chance.randint(1, 256) for _ in range(_RANKS)]
        size = 4 * samples * ((_RANKS - 1) * columns[rank] + sum(columns) - columns[rank])
        mine, theirs = [samples * columns[rank]] * _RANKS, [samples * one for one in columns]
        for ways in ((mine, theirs), (theirs, mine)):
            found += [float(size), min(_exchange(*ways) for _ in range(3))]
    gathered: list[Any] = [None] * _RANKS
    dist.all_gather_object(gathered, np.reshape(found, (-1, 4)))
    dist.destroy_process_group()
    if rank == 0:
        np.save(f"{folder}/rows.npy", np.concatenate(gathered))


def _exchange(sends: list[int], takes: list[int]) -> int:
    source, target = torch.ones(sum(sends)), torch.empty(sum(takes))
    dist.barrier()
    begun = time.perf_counter_ns()
    dist.all_to_all_single(target, source, takes, sends)
    return time.perf_counter_ns() - begun
