"""Trainings on two real ranks, whose messages are held to 200 Mbit/s in user space."""

import pickle
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch.distributed as dist

from benchmarks.graphs.made import clustered
from benchmarks.micro.rows import Row
from tightrope_ranks import run_ranks
from tightrope_ranks.compress.queue import Link
from tightrope_ranks.graphs import GraphOptions
from tightrope_ranks.graphs.training import GraphTrainer, forecast_epoch, jobs_of

_LINK = Link(rate=25e6, latency=2e-4)
_SEEDS, _MORE_SEEDS = 5, 10
_T95 = 2.145
"""Of Student's distribution, for 15 seeds."""


def _trained(_: int, __: int, folder: str) -> list[Any]:
    """Train what one file has in turns, an epoch of each: other load of the machine hits all of them."""
    found = []
    for file in sorted(Path(folder).glob("job*")):
        held, those = pickle.loads(file.read_bytes())
        trainers = [GraphTrainer(jobs[dist.get_rank()]) for jobs in those]
        forecasts: list[list[float]] = [[] for _ in trainers]
        spent: list[list[float]] = [[] for _ in trainers]
        for trainer in trainers:
            trainer.queue.link = (held and trainer.options.link) or Link()
        for _ in range(trainers[0].options.epochs):
            for trainer, row, cpu in zip(trainers, forecasts, spent, strict=True):
                start = time.thread_time()
                trainer.epoch()
                cpu.append(time.thread_time() - start)
                last = trainers[-1].exchange.traffic
                row.append(forecast_epoch(trainer.profile[-1:], last, trainer.options.link or Link()))
        results = [trainer.result()[0] for trainer in trainers]
        found.append(
            [
                {**told, "forecasts": row, "cpu": median(cpu[6:])}
                for told, row, cpu in zip(results, forecasts, spent, strict=True)
            ]
        )
    return found


def _runs(those: list[tuple[Any, list[GraphOptions]]], *, held: bool = True) -> list[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        for number, (graph, options) in enumerate(those):
            jobs = [jobs_of(graph, 2, one) for one in options]
            (Path(folder) / f"job{number:03}").write_bytes(pickle.dumps((held, jobs)))
        return list(run_ranks(_trained, 2, folder, seconds=1500.0)[0])


@cache
def _adaptive(*, held: bool = True) -> list[list[dict[str, Any]]]:
    """Train with floats, 4 bits and chosen bits, of each seed; more seeds where the link is not held."""
    those = []
    for seed in range(_SEEDS) if held else range(_SEEDS, _SEEDS + _MORE_SEEDS):
        graph = clustered(seed, num=24000, classes=8, mixed=0.5, columns=64, noise=8.0, degree=8)
        base = GraphOptions(hidden=64, epochs=24, every=15, weight=0.1, seed=seed, link=_LINK)
        those.append((graph, [replace(base, bits=bits) for bits in (32, 4, None)]))
    return _runs(those, held=held)


def _epoch(told: dict[str, Any]) -> float:
    return float(median(told["seconds"][6:]))


def _alone(told: dict[str, Any]) -> float:
    """Add CPU time and the held link's time: what an epoch takes on cores of its own, without overlap."""
    return float(told["cpu"] + told["plan"].seconds)


def _times(slow: dict[str, Any], fast: dict[str, Any]) -> float:
    """Divide epochs that ran one behind another."""
    return float(median(a / b for a, b in zip(slow["seconds"][6:], fast["seconds"][6:], strict=True)))


def against_floats() -> list[Row]:
    """Compare epochs and accuracies with floats, and with 4 bits."""
    runs = _adaptive()
    every = [[100 * kind["accuracy"]["test"] for kind in one] for one in (*runs, *_adaptive(held=False))]
    accuracy = [fmean(one[kind] for one in every[:_SEEDS]) for kind in range(3)]
    better = [one[2] - one[1] for one in every]
    mean, around = fmean(better), _T95 * stdev(better) / len(better) ** 0.5
    sent = [fmean(sum(one[kind]["plan"].sent) for one in runs) for kind in range(3)]
    faster, over = (median(_times(one[kind], one[2]) for one in runs) for kind in (0, 1))
    own = [median(_alone(one[kind]) / _alone(one[2]) for one in runs) for kind in (0, 1)]
    epochs = [1e3 * median(_epoch(one[kind]) for one in runs) for kind in range(3)]
    return [
        Row(
            "Q3",
            "at least 3.0x the epochs of floats with at most 0.3 points less accuracy (mean of 5 seeds), "
            "and 1.1x those of 4 bits at equal or better accuracy",
            f"{faster:.2f}x floats and {over:.2f}x 4 bits; epochs of {epochs[0]:.0f}, {epochs[1]:.0f} and "
            f"{epochs[2]:.0f} ms ({own[0]:.2f}x and {own[1]:.2f}x by CPU time and link); "
            f"{sent[0] / sent[2]:.1f} and {sent[1] / sent[2]:.2f} times fewer bytes; "
            f"accuracy {accuracy[0]:.2f}, {accuracy[1]:.2f} and {accuracy[2]:.2f} %; of {len(every)} seeds "
            f"{mean:+.3f} points against 4 bits, 95 % interval {mean - around:+.3f} to {mean + around:+.3f}",
            faster >= 3 and accuracy[0] - accuracy[2] <= 0.3 and over >= 1.1 and mean >= 0,
            "floats and 4 bits of the same training, in turns",
        )
    ]


def _error(one: dict[str, Any], last: dict[str, Any]) -> float:
    """Compare forecasts from epochs of one training with the epochs of the last, round by round."""
    pairs = zip(one["forecasts"][6:], last["seconds"][6:], strict=True)
    return float(abs(median(a / b for a, b in pairs) - 1))


def forecasts() -> list[Row]:
    """Compare epochs of chosen widths with their forecast, and with other epochs of the same rounds."""
    runs = _adaptive()
    before = [abs(one[2]["forecast"] / _epoch(one[2]) - 1) for one in runs]
    paired = [[_error(one[kind], one[2]) for one in runs] for kind in (0, 1)]
    said = "; from {} of the same rounds {:.1f} %, at most {:.1f} %"
    figures = [(100 * median(wrong), 100 * max(wrong)) for wrong in (before, *paired)]
    return [
        Row(
            "Q5",
            "a forecast within 15 % of the epoch",
            f"from 8 bits of the first rounds wrong by {figures[0][0]:.1f} % (median of {_SEEDS} seeds), at "
            f"most {figures[0][1]:.1f} %"
            + said.format("floats", *figures[1])
            + said.format("4 bits", *figures[2]),
            max(before) <= 0.15,
            "decided by what the training says itself; others show what load of the machine changes",
        )
    ]


def with_overlap() -> list[Row]:
    """Compare epochs in which central nodes are computed meanwhile with epochs in which ranks wait."""
    graph = clustered(1, num=16000, clusters=8, mixed=0.05, columns=64)
    base = GraphOptions(hidden=64, epochs=24, bits=32, link=_LINK)
    ((fast, slow),) = _runs([(graph, [base, replace(base, overlap=False)])])
    ratio = _times(slow, fast)
    parts = [job.part for job in jobs_of(graph, 2, base)]
    marginal = sum(part.marginal.num for part in parts) / graph.num_nodes
    return [
        Row(
            "Q4",
            "at least 1.15x by overlap, with at most half of the nodes marginal",
            f"{ratio:.2f}x with {100 * marginal:.0f} % marginal nodes; epochs of "
            f"{1e3 * _epoch(fast):.0f} and {1e3 * _epoch(slow):.0f} ms",
            ratio >= 1.15 and marginal <= 0.5,
        )
    ]
