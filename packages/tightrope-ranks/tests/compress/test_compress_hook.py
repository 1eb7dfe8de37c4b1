"""Real ranks over gloo: planned messages train like DDP, whatever the buckets; a lost rank is an error."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from compress_workers import divided, join, net, start, train
from torch import distributed
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import RankError
from tightrope_ranks.compress import Link, compress_gradients
from tightrope_ranks.compress.hook import WATCHED, GradientExchange
from tightrope_ranks.judge.compress import check_queues


def _equal_to_ddp(rank: int, folder: str) -> None:
    join(rank, folder, 2)
    plain = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    expected = train(plain, 10, rank)
    model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    exchange = compress_gradients(model, codecs=("none",))
    found = train(model, 10, rank)
    assert exchange.plan is not None
    assert exchange.sent == exchange.plan.sent
    assert "observed" in exchange.report()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    trace = exchange.trace()
    assert trace.source == "real"
    assert {event.where for event in trace.events} == {"processor", "queue"}
    exchange.close()
    distributed.destroy_process_group()


def _regrouped(rank: int, folder: str) -> None:
    """Divisions change what travels when, and no bit; residuals stay with their parameters."""
    join(rank, folder, 2)
    found = []
    for changes in (False, True):
        model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
        exchange = compress_gradients(model, codecs=("sign",), link=Link(rate=1e7), trials=0)
        logs: list[list[tuple[int, int, str, int]]] = []

        def after(
            step: int,
            exchange: GradientExchange = exchange,
            logs: list[list[tuple[int, int, str, int]]] = logs,
            changes: bool = changes,
        ) -> None:
            logs.append(exchange.log)
            if step >= WATCHED and changes:
                num = 18
                ends = tuple(sorted({1 + step, 9, num})) if step % 2 else tuple(range(1, num + 1))
                exchange.use(divided(exchange, ends, "sign"))

        found.append(train(model, 12, rank, after))
        gathered: list[Any] = [None, None]
        distributed.all_gather_object(gathered, logs)
        for one, other in zip(*gathered, strict=True):
            check_queues(18, [one, other])
        assert len({len(log) for log in logs[WATCHED + 1 :]}) == (1 if not changes else 2)
        assert any(rest.any() for rest in exchange.residuals.values())
        exchange.close()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    distributed.destroy_process_group()


def _lost(rank: int, folder: str) -> None:
    join(rank, folder, 3)
    model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    exchange = compress_gradients(model, codecs=("none", "sign"), timeout=8)

    def after(step: int) -> None:
        if step == WATCHED + 1 and rank == 1:
            distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        elif step == WATCHED + 1:
            distributed.barrier()
            Path(folder, f"start{rank}").write_text(str(time.time()))

    try:
        train(model, WATCHED + 4, rank, after)
    except RankError as error:
        Path(folder, f"end{rank}").write_text(f"{time.time()} {error}")
    assert exchange.plan is not None
    os._exit(0)  # the group cannot be left in order any more


def test_messages_without_a_codec_train_to_the_bit_like_ddp(tmp_path: Path) -> None:
    start(_equal_to_ddp, tmp_path, 2)


@pytest.mark.slow
def test_other_divisions_give_equal_bits_and_queues_agree(tmp_path: Path) -> None:
    start(_regrouped, tmp_path, 2)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_with_a_clear_error_within_ten_seconds(tmp_path: Path) -> None:
    context = start_processes(_lost, (str(tmp_path),), nprocs=3, join=False)  # type: ignore[no-untyped-call]
    deadline = time.time() + 120
    while time.time() < deadline and any(process.is_alive() for process in context.processes):
        time.sleep(0.1)
    for process in context.processes:
        process.kill()
    for rank in (0, 2):
        ended, _, says = (tmp_path / f"end{rank}").read_text().partition(" ")
        assert float(ended) - float((tmp_path / f"start{rank}").read_text()) < 10
        assert "start all ranks again" in says
