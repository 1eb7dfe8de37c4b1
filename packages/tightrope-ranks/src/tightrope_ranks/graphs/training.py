"""Train on a graph that is divided over ranks: every epoch sees all of it."""

import pickle
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tightrope.core import Bytes, TightropeError
from tightrope_ranks.compress.calibrate import wait
from tightrope_ranks.compress.queue import Link, MessageQueue
from tightrope_ranks.graphs import planning
from tightrope_ranks.graphs.data import read_graph
from tightrope_ranks.graphs.divide import parts_of
from tightrope_ranks.graphs.exchange import MessageTime, RowExchange
from tightrope_ranks.graphs.layers import build
from tightrope_ranks.graphs.planning import GraphOptions, plan
from tightrope_ranks.graphs.traffic import Keyed, RowTraffic, uniform
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.values.graphs import GraphPart, GraphPlan

_WARM_EPOCHS: Final = 5


@dataclass(frozen=True, slots=True)
class GraphJob:
    """What one rank gets: its part, its rows, and what all ranks share."""

    part: GraphPart
    features: np.ndarray
    labels: np.ndarray
    masks: dict[str, np.ndarray]
    counts: dict[str, int]
    columns: tuple[int, ...]
    plan: GraphPlan
    options: GraphOptions


@dataclass(frozen=True, slots=True)
class GraphRun:
    """What a training gave.

    Attributes:
        losses: of each epoch.
        accuracy: of the nodes of each mask that has some; rows are sent as floats for it.
        seconds: of each epoch.
        forecast: seconds of an epoch with the first widths that were chosen; None = none were.
        sent: bytes that each rank sent for rows and gradients in the last epoch.
        peaks: most bytes that messages and halos of each rank took, counted.
        plan: of the last epoch.
        state: parameters after the last.
    """

    losses: tuple[float, ...]
    accuracy: Mapping[str, float]
    seconds: tuple[float, ...]
    forecast: float | None
    sent: tuple[Bytes, ...]
    peaks: tuple[Bytes, ...]
    plan: GraphPlan
    state: Mapping[str, torch.Tensor]


def train(
    graph: Any,
    ranks: int = 2,
    options: GraphOptions | None = None,
    *,
    parts: Any = None,
    seconds: float = 3600.0,
) -> GraphRun:
    """Train on a whole graph over ranks of this host.

    Args:
        graph: has ``edge_index`` (2, E), ``x`` (N, D), ``y`` (N,), ``train_mask`` (N,), and perhaps
            ``val_mask`` and ``test_mask``, as `torch_geometric.data.Data` has.
        ranks: processes.
        options: of the model and its messages.
        parts: rank of each node, as `plan` takes it.
        seconds: after which all ranks are ended.

    Returns:
        Losses, accuracies, seconds and bytes, and the plan of the last epoch.

    Raises:
        TightropeError: something is wrong with the graph or the options.
        InfeasibleError: a limit cannot be held; no rank was started.
        RankError: a rank ended, or a loss was not finite.

    Example:
        >>> run = train(data, 2, GraphOptions(epochs=5))  # doctest: +SKIP
        >>> run.losses[-1] < run.losses[0]  # doctest: +SKIP
        True
    """
    jobs = jobs_of(graph, ranks, options or GraphOptions(), parts)
    with tempfile.TemporaryDirectory() as folder:
        for rank, job in enumerate(jobs):
            (Path(folder) / str(rank)).write_bytes(pickle.dumps(job))
        answers = run_ranks(_work, ranks, folder, seconds=seconds)
    told, sent, peaks = zip(*answers, strict=True)
    return GraphRun(**told[0], sent=sent, peaks=peaks)


def jobs_of(graph: Any, ranks: int, options: GraphOptions, parts: Any = None) -> list[GraphJob]:
    """Plan, and give each rank its part."""
    data = read_graph(graph)
    made = plan(data, ranks, options, parts=parts)
    masks = {name: getattr(data, name) for name in ("train", "validate", "test")}
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    return [
        GraphJob(
            part, data.features[part.nodes], data.labels[part.nodes],
            {name: mask[part.nodes] for name, mask in masks.items()},
            counts, planning.columns_of(data, options), made, options,
        )
        for part in parts_of(data, np.array(made.owner), made.routes, options.model)
    ]  # fmt: skip


def _work(rank: int, _: int, folder: str) -> tuple[dict[str, Any], Bytes, Bytes]:
    trainer = GraphTrainer(pickle.loads((Path(folder) / str(rank)).read_bytes()))
    for _ in range(trainer.options.epochs):
        trainer.epoch()
    return trainer.result()


class GraphTrainer:
    """One rank of a training, in a process group that exists; all its messages go through one queue."""

    def __init__(self, job: GraphJob) -> None:
        self.job, self.options, self.plan = job, job.options, job.plan
        self.queue = MessageQueue(link=job.options.link, timeout=job.options.silence)
        self.exchange = RowExchange(job.part, job.plan, self.queue, job.options.seed)
        self.exchange.overlap = job.options.overlap
        self.layers = build(job.options.model, job.columns, job.options.seed)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=job.options.rate)
        self.features, self.labels = torch.from_numpy(job.features), torch.from_numpy(job.labels)
        self.train = torch.from_numpy(job.masks["train"])
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.profile: list[tuple[float, list[MessageTime]]] = []
        self.forecast: float | None = None
        self._use(uniform(job.plan, job.options.bits or planning.WARM))
        self.exchange.prepare(self.features)

    def epoch(self) -> None:
        """Train one epoch of all ranks together; choose widths first where it is time."""
        number, options, exchange = len(self.losses), self.options, self.exchange
        if options.bits is None and number >= _WARM_EPOCHS and (number - _WARM_EPOCHS) % options.every == 0:
            self._choose()
        exchange.epoch, exchange.times, exchange.sent = number, [], 0
        start = time.perf_counter()
        self.optimizer.zero_grad()
        outputs = exchange.forward(self.layers, self.features).requires_grad_()
        scores, labels = outputs[self.train], self.labels[self.train]
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / self.job.counts["train"]
        exchange.backward(*torch.autograd.grad(loss, outputs))
        grads = [one.grad for one in self.layers.parameters() if one.grad is not None]
        flat = torch.cat([one.flatten() for one in grads] + [loss.detach()[None]])
        wait(self.queue, lambda: dist.all_reduce(flat), "gradients of the parameters", flat.nbytes)
        if not torch.isfinite(flat).all():
            raise TightropeError(
                f"the loss or a gradient of epoch {number} is not finite. Scale the features, or lower rate."
            )
        for grad, mean in zip(grads, torch.split(flat[:-1], [one.numel() for one in grads]), strict=True):
            grad.copy_(mean.view_as(grad))
        self.optimizer.step()
        self.losses.append(float(flat[-1]))
        self.seconds.append(time.perf_counter() - start)
        self.profile = [*self.profile[2 - _WARM_EPOCHS :], (self.seconds[-1], exchange.times)]

    def result(self) -> tuple[dict[str, Any], Bytes, Bytes]:
        """Measure accuracies and end; give what `GraphRun` tells, and the bytes of this rank."""
        sent = self.exchange.sent
        told = {
            "losses": tuple(self.losses), "accuracy": self.accuracy(), "seconds": tuple(self.seconds),
            "forecast": self.forecast, "plan": self.plan, "state": self.layers.state_dict(),
        }  # fmt: skip
        self.queue.close()
        return told, sent, self.exchange.peak

    @torch.no_grad()
    def accuracy(self) -> dict[str, float]:
        """Compare with the labels of each mask, over all ranks."""
        self.exchange.exact = True
        right = self.exchange.forward(self.layers, self.features).argmax(1) == self.labels
        self.exchange.exact = False
        hits = torch.stack([right[torch.from_numpy(mask)].sum() for mask in self.job.masks.values()])
        wait(self.queue, lambda: dist.all_reduce(hits), "accuracies", hits.nbytes)
        counts = self.job.counts.items()
        return {name: int(hit) / count for hit, (name, count) in zip(hits, counts, strict=True) if count}

    def _use(self, widths: Keyed) -> None:
        """Hand widths to the exchange; where they will be chosen again, ranges are traced from now on."""
        self.exchange.traffic = RowTraffic(self.job.plan, widths)
        if self.options.bits is None:
            rows, own = self.job.part.rows, self.job.part.weights
            self.exchange.traced = {
                key: {k: torch.zeros(len(rows[k])) for k in rows if (k in own) != key[1]} for key in widths
            }

    def _choose(self) -> None:
        """Choose widths on rank 0 from the ranges of all ranks, and use them on every rank."""
        weights, going = self.job.part.weights, self.exchange.traffic.going
        gathered: list[Any] = [None] * self.plan.ranks
        answer: list[Any] = [None]
        own = {
            key: {k: one.double().numpy() * (1 if key[1] else weights[k]) for k, one in traced.items()}
            for key, traced in self.exchange.traced.items()
            if going(key)
        }
        wait(self.queue, lambda: dist.all_gather_object(gathered, own), "ranges")
        if self.job.part.rank == 0:
            link, beta = self.options.link or _measured(self.profile), {}
            for key in own:
                found = {
                    k: one * self.plan.columns[key[0]] / 6 for its in gathered for k, one in its[key].items()
                }
                beta[key] = [found[k] for k in sorted(found)]
            answer = [(*planning.rechoose(self.plan, beta, link, self.options), link)]
        wait(self.queue, lambda: dist.broadcast_object_list(answer, 0), "widths")
        chosen, bound, link = answer[0]
        self._use({**self.exchange.traffic.widths, **chosen})
        self.plan = planning.complete(self.plan, self.exchange.traffic.widths, link, bound)
        self.forecast = self.forecast or forecast_epoch(self.profile, self.exchange.traffic, link)


def forecast_epoch(
    profile: Sequence[tuple[float, Sequence[MessageTime]]], traffic: RowTraffic, link: Link
) -> float:
    """Take the waits of measured epochs out of their seconds, and put those of other widths in."""
    forecasts = []
    for seconds, times in profile:
        for one in times:
            new = planning.span(link, int(traffic.by_sender(one.key, one.routes).max()))
            late = max(0.0, one.seconds - planning.span(link, one.sent))  # of the other ranks
            seconds += max(0.0, late + new - one.window) - max(0.0, one.seconds - one.window)
        forecasts.append(seconds)
    return float(median(forecasts))


def _measured(profile: list[tuple[float, list[MessageTime]]]) -> Link:
    """Take the rate of the link from messages that were sent."""
    paces = [one.seconds / one.sent for _, times in profile for one in times if one.sent]
    return Link(rate=1 / median(paces)) if paces else Link()
