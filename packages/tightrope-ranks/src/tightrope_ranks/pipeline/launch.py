"""Start ranks on this host: processes that share a gloo group, and end together.

Where ``torchrun`` starts the ranks, nothing of this is needed.
"""

import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from tightrope.core import RankError

GRACE: Final = 3.0
"""Seconds beyond ``silence`` that a rank has to report, once another one failed."""


def run_ranks(
    what: Callable[..., Any], num_ranks: int, *arguments: Any, seconds: float = 120.0, silence: float = 20.0
) -> list[Any]:
    """Call a function on every rank; return what each returned, in order.

    Args:
        what: a function at the top of a module; gets the rank, the number of ranks and ``arguments``.
        num_ranks: processes.
        arguments: picklable.
        seconds: after which all are ended.
        silence: of a peer, after which an operation of the group fails.

    Once a rank has failed, the others have ``silence`` and a few seconds to report; who hangs is ended then.

    Raises:
        RankError: a rank raised, was killed, or did not end; names every such rank and why.
    """
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers, taken = context.SimpleQueue(), context.Event()
        processes: list[BaseProcess] = [
            context.Process(
                target=_rank,
                args=(what, rank, num_ranks, folder, silence, (answers, taken), arguments),
                daemon=True,
            )
            for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        found: dict[int, tuple[bool, Any]] = {}
        hung: set[int] = set()
        failed, deadline = False, time.monotonic() + seconds
        try:
            while len(found) < num_ranks and time.monotonic() < deadline:
                ended = [rank for rank, process in enumerate(processes) if not process.is_alive()]
                if not answers.empty():
                    rank, fine, value = answers.get()
                    found[rank] = (fine, value)
                elif len({*found, *ended}) == num_ranks:  # nobody is waited for who has answered already
                    break
                else:
                    time.sleep(0.01)
                if not failed and ({*ended} - {*found} or not all(fine for fine, _ in found.values())):
                    failed, deadline = True, min(deadline, time.monotonic() + silence + GRACE)
        finally:
            taken.set()
            last = time.monotonic() + 1.0
            for rank, process in enumerate(processes):
                rest = 1.0 if len(found) == num_ranks else last - time.monotonic()
                process.join(max(0.0, rest) if rank in found else 0.0)
                if process.is_alive():
                    hung |= {rank} - {*found}
                    process.kill()
                    process.join()
    ends = {rank: f"ended with exit code {process.exitcode}" for rank, process in enumerate(processes)}
    ends |= dict.fromkeys(hung, "said nothing and was killed")
    wrong = {
        rank: found[rank][1] if rank in found else ends[rank]
        for rank in range(num_ranks)
        if rank not in found or not found[rank][0]
    }
    if wrong:
        raise RankError("; ".join(f"rank {rank}: {why}" for rank, why in wrong.items()))
    return [found[rank][1] for rank in range(num_ranks)]


def _rank(
    what: Callable[..., Any],
    rank: int,
    num_ranks: int,
    folder: str,
    silence: float,
    ways: tuple[Any, Any],
    arguments: tuple[Any, ...],
) -> None:
    answers, taken = ways
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder) / 'store'}",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=silence),
        )
        value = what(rank, num_ranks, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        answers.put((rank, True, value))
        taken.wait(silence)  # tensors are handed over by whoever made them
    except Exception as error:  # whatever it is, the caller is told by which rank
        answers.put((rank, False, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"))
