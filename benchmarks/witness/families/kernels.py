"""Nets around one kernel that takes memory of its own: sorting, hashing, factorisations, transforms."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.witness.families.trial import Family, Trial, ordinary


class _TopK(nn.Module):
    """A million numbers, the largest of which count."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(1)), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head((x * self.scale).sin().topk(64).values).square().sum()
        return found


class Unique(nn.Module):
    """Rows of a table, each looked up once however often it is named."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5_000, 32), nn.Linear(32, 8)

    def forward(self, ids: Tensor) -> Tensor:
        rows, where = torch.unique(ids, return_inverse=True)
        found: Tensor = self.head(self.table(rows))[where].square().mean()
        return found


class _Bag(nn.Module):
    """Bags of a large table."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(200_000, 8, mode=mode), nn.Linear(8, 8)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        found: Tensor = self.head(self.bag(ids, offsets)).square().mean()
        return found


class _Svd(nn.Module):
    """The nuclear norm of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 256)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.linalg.svdvals(self.layer(x)).sum()
        return found


class _Fourier(nn.Module):
    """A filter in the frequency domain, over a length that is a prime or not."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(length // 2 + 1, dtype=torch.complex64))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=self.length).tanh().square().mean()
        return found


class _Grouped(nn.Module):
    """Grouped and depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 64, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(64, 64, 3, padding=1, groups=8),
            nn.GELU(),
            nn.Conv2d(64, 64, 7, padding=3, groups=64),
            nn.GELU(),
            nn.Conv2d(64, 10, 1),
        )

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.body(x).mean((2, 3)), target)


class _Scatter(nn.Module):
    """Messages along the edges of a graph, the largest per node kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sent = self.first(nodes)[source]
        where = target[:, None].expand_as(sent)
        kept = torch.zeros(len(nodes), 64).scatter_reduce(0, where, sent, "amax", include_self=False)
        summed = torch.zeros(len(nodes), 64).index_add(0, target, sent.tanh())
        found: Tensor = self.second(kept + summed).square().mean()
        return found


class _Sorted(nn.Module):
    """Sorting, medians and cumulative sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 512)

    def forward(self, x: Tensor) -> Tensor:
        given = self.layer(x)
        ranked = given.sort(dim=0).values.cumsum(0)
        found: Tensor = (
            ranked.tanh().mean() + given.median(dim=1).values.square().mean() + given.logcumsumexp(1).mean()
        )
        return found


class _Solve(nn.Module):
    """Linear systems, determinants and inverses, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        square = self.layer(x) @ self.layer(x).mT + 64 * torch.eye(256, dtype=torch.float64)
        found: Tensor = (
            torch.linalg.solve(square, x).square().mean() + torch.linalg.slogdet(square).logabsdet.mean()
        )
        return found


def _bags(mode: str) -> Trial:
    ids = torch.randint(200_000, (40_000,))
    return ordinary(_Bag(mode), ids, torch.arange(0, 40_000, 10))


def _edges() -> Trial:
    ends = torch.randint(2_000, (2, 20_000))
    return ordinary(_Scatter(), torch.randn(2_000, 32), ends[0], ends[1])


def _grouped() -> Trial:
    return ordinary(_Grouped(), torch.randn(4, 8, 48, 48), torch.randint(10, (4,)))


FAMILIES = (
    Family("topk", lambda: ordinary(_TopK(), torch.randn(1_000_000))),
    Family("unique", lambda: ordinary(Unique(), torch.randint(5_000, (100_000,)))),
    Family("embedding_bag", lambda: _bags("sum")),
    Family("bag_mean", lambda: _bags("mean")),
    Family("svd", lambda: ordinary(_Svd(), torch.randn(256, 64))),
    Family("fft_prime", lambda: ordinary(_Fourier(10_007), torch.randn(16, 10_007))),
    Family("fft_complex", lambda: ordinary(_Fourier(8_192), torch.randn(16, 8_192))),
    Family("grouped_conv", _grouped),
    Family("message_passing", _edges),
    Family("sorting", lambda: ordinary(_Sorted(), torch.randn(256, 32))),
    Family("solve", lambda: ordinary(_Solve(), torch.randn(4, 256, 64, dtype=torch.float64))),
)
