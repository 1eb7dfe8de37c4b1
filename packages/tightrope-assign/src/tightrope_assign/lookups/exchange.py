"""Time exchanges of pooled rows among four gloo ranks on this machine, and fit what each way costs.

Forward, ranks start late by known times, as after lookups of different sizes; backward, they start together.
On each rank ``ns = latency * others + per_byte * (sent + received) + waits * lateness of the last rank``.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from tightrope.core import RankError
from tightrope_assign.lookups.learn import nonnegative
from tightrope_assign.values.costs import ExchangeCost

RANKS: Final = 4
_TRIALS: Final = 40
_REPEATS: Final = 3
_SECONDS: Final = 120


def measure_exchanges(
    *, trials: int = _TRIALS, seed: int = 0
) -> tuple[ExchangeCost, ExchangeCost, float, float]:
    """Return the prices forward and backward, the share of waiting, and the fit's median relative error.

    Raises:
        RankError: a rank failed, or all took longer than two minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(Path(folder) / "meet"), str(trials), str(seed))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(rank), *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        try:
            said = [rank.communicate(timeout=_SECONDS) for rank in ranks]
        except subprocess.TimeoutExpired as error:
            raise RankError(
                f"exchanges took longer than {_SECONDS} s: try again on an idle machine."
            ) from error
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RankError(
            f"a rank of the exchange failed: {said[0][1][-300:]!r}. Try again, or add --no-exchange."
        )
    rows = np.array(json.loads(said[0][0]), float)  # way, others, bytes, lateness, ns
    fits, errors = [], []
    for way in (0, 1):
        mine = rows[rows[:, 0] == way]
        causes = mine[:, 1:4] if way == 0 else mine[:, 1:3]
        x = nonnegative(causes / mine[:, 4:], np.ones(len(mine)))
        errors.append(abs(causes @ x / mine[:, 4] - 1))
        fits.append(x)
    ways = [ExchangeCost(float(x[0]), float(x[1])) for x in fits]
    return ways[0], ways[1], float(fits[0][2]), float(np.median(np.concatenate(errors)))


def _rank(rank: int, meet: str, trials: int, seed: int) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=RANKS, timeout=limit)
    chance, found = random.Random(seed), []
    for _ in range(trials):
        samples = chance.choice((64, 128, 256))  # of each rank
        columns = [4 * chance.randint(1, 256) for _ in range(RANKS)]
        late = [chance.choice((0.0, chance.uniform(0, 0.02))) for _ in range(RANKS)]
        size = 4 * samples * ((RANKS - 1) * columns[rank] + sum(columns) - columns[rank])
        for way in (0, 1):
            taken = min(_exchange(rank, samples, columns, late, way) for _ in range(_REPEATS))
            wait = 1e9 * (max(late) - late[rank]) if way == 0 else 0.0
            found.append([way, RANKS - 1, size, wait, taken])
    gathered: list[list[list[float]]] = [[] for _ in range(RANKS)]
    dist.all_gather_object(gathered, found)
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps([row for rows in gathered for row in rows]))


def _exchange(rank: int, samples: int, columns: list[int], late: list[float], way: int) -> int:
    mine = [samples * columns[rank]] * RANKS
    theirs = [samples * one for one in columns]
    sends, takes = (mine, theirs) if way == 0 else (theirs, mine)
    source, target = torch.ones(sum(sends)), torch.empty(sum(takes))
    dist.barrier()
    if way == 0:
        time.sleep(late[rank])
    begun = time.perf_counter_ns()
    dist.all_to_all_single(target, source, takes, sends)
    return time.perf_counter_ns() - begun


if __name__ == "__main__":
    _rank(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
