"""Embedding tables on several ranks as a plan says: rows are looked up where they are, then exchanged.

Each rank has samples of its own. Row numbers travel to the shards, pooled rows travel back, and so do their
gradients, by all-to-alls. Shards of one width are one weight, which is looked up once, with sparse gradients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from tightrope.core import TightropeError
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.tables import TablePlan, TableSet, by_device


class _AllToAll(torch.autograd.Function):
    """An all-to-all whose gradient is the all-to-all back."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, sends: list[int], takes: list[int]) -> Tensor:
        ctx.back, target = (takes, sends), source.new_empty(sum(takes))
        dist.all_to_all_single(target, source, takes, sends)
        return target

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(gradients[0].contiguous(), *ctx.back), None, None


_exchanged: Any = _AllToAll.apply


class ShardedTables(nn.Module):
    """The shards of this rank; rank r is device r of the cluster.

    Args:
        tables: of the model.
        cluster: its devices, as many as ranks.
        plan: a judged plan.
        weights: of whole tables by name, (rows, dim), from which this rank's columns are copied; it reads
            those that it has shards of.

    Raises:
        TightropeError: there are not as many ranks as devices.
    """

    def __init__(
        self, tables: TableSet, cluster: Cluster, plan: TablePlan, weights: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.rank, self.num = dist.get_rank(), dist.get_world_size()
        if self.num != (num := len(cluster.devices)):
            raise TightropeError(f"{self.num} ranks for {num} devices: start one per device.")
        number = {table.name: at for at, table in enumerate(tables.tables)}
        order = [
            sorted(mine, key=lambda s: (s.stop - s.start, number[s.table], s.start))
            for mine in by_device(cluster, plan.placed).values()
        ]
        self.ids = [[number[s.table] for s in mine] for mine in order]  # of each rank, by width
        self.widths = [[s.stop - s.start for s in mine] for mine in order]
        flat = [(number[s.table], s.start) for mine in order for s in mine]
        self.turns = sorted(range(len(flat)), key=flat.__getitem__)  # shards by table and column
        self.firsts: list[int] = []  # first row of each shard in the weight of its width
        parts: dict[str, list[Tensor]] = {}
        for shard in order[self.rank]:
            same = parts.setdefault(str(shard.stop - shard.start), [])
            self.firsts.append(sum(map(len, same)))
            same.append(weights[shard.table][:, shard.start : shard.stop])
        self.weights = nn.ParameterDict({width: nn.Parameter(torch.cat(one)) for width, one in parts.items()})
        self.dtype = next(iter(self.weights.values())).dtype if parts else torch.get_default_dtype()

    def forward(self, rows: Sequence[Tensor], lengths: Sequence[Tensor]) -> Tensor:
        """Look up the rows of this rank's samples.

        Args:
            rows: per table, the rows of all samples, one sample behind the other.
            lengths: per table, how many belong to each sample, (samples,); as many samples on every rank.

        Returns:
            Sums of rows, (samples, columns of all tables in order).
        """
        samples, num = len(lengths[0]), len(self.ids[self.rank])
        sent = torch.cat([lengths[at] for ids in self.ids for at in ids])
        sizes = [len(ids) * samples for ids in self.ids]
        came = _exchanged(sent, sizes, [num * samples] * self.num).view(self.num, num, samples)
        counts = [sum(len(rows[at]) for at in ids) for ids in self.ids]
        numbers = torch.cat([rows[at] for ids in self.ids for at in ids])
        here = _exchanged(numbers, counts, [int(one.sum()) for one in came])
        pooled = [one.view(self.num, samples, -1) for one in self._lookup(here, came)]
        out = torch.cat(pooled, 2).flatten() if pooled else torch.zeros(0, dtype=self.dtype)
        out = out if out.requires_grad else out.requires_grad_()  # all ranks take part in the backward
        back = [samples * sum(wide) for wide in self.widths]
        parts = torch.split(_exchanged(out, [back[self.rank]] * self.num, back), back)
        blocks: list[Tensor] = []
        for part, wide in zip(parts, self.widths, strict=True):
            blocks += torch.split(part.view(samples, -1), wide, 1)
        return torch.cat([blocks[at] for at in self.turns], 1)

    def _lookup(self, numbers: Tensor, lengths: Tensor) -> list[Tensor]:
        """Pool rows of all ranks' samples: (ranks * samples, width) per shard, in order."""
        ranks, shards, samples = lengths.shape
        pieces = torch.split(numbers, lengths.sum(2).flatten().tolist())
        found, wide = [], self.widths[self.rank]
        for width in dict.fromkeys(wide):
            at = [one for one in range(shards) if wide[one] == width]
            order = [(rank * shards + one, self.firsts[one]) for one in at for rank in range(ranks)]
            rows = torch.cat([pieces[place] + first for place, first in order])
            length = lengths[:, at].transpose(0, 1).flatten()
            weight = self.weights[str(width)]
            pooled = F.embedding_bag(rows, weight, length.cumsum(0) - length, mode="sum", sparse=True)
            found += list(pooled.view(len(at), ranks * samples, width))
        return found
