"""Nets of torch alone: recurrent ones, normed weights, layouts, precisions, and unusual loops."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from benchmarks.witness.families.trial import Family, Trial, ordinary

_TARGET = torch.zeros(256, dtype=torch.int64)


class _Recurrent(nn.Module):
    """A recurrent net over a sequence."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(x)[0]).square().mean()
        return found


class _Transformer(nn.Module):
    """torch's own transformer, encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        found: Tensor = self.net(source, target).square().mean()
        return found


class Table(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20_000, 32, sparse=True), nn.Linear(32, 8)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids)).square().mean()
        return found


class _Images(nn.Module):
    """Convolutions with batch normalization, pooling and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.ConvTranspose2d(64, 3, 2, stride=2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.body(x), x)


class Complex(nn.Module):
    """Products of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 128, dtype=torch.complex64) / 16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh((x @ self.weight).real) + 1j * x.imag
        return x.abs().square().mean()


def _wide(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), *middle, nn.Linear(256, 10))


def _recurrent(net: nn.Module) -> Trial:
    return ordinary(_Recurrent(net), torch.randn(16, 24, 32))


def _transformer() -> Trial:
    return ordinary(_Transformer(), torch.randn(8, 48, 64), torch.randn(8, 32, 64))


def _normed(norm: partial[nn.Module]) -> Trial:
    net = nn.Sequential(norm(nn.Linear(64, 256)), nn.Tanh(), norm(nn.Linear(256, 256)), nn.Linear(256, 10))
    return ordinary(net, torch.randn(256, 64), loss=lambda out: F.cross_entropy(out, _TARGET))


def _double() -> Trial:
    net = _wide(nn.LayerNorm(256)).double()
    inputs = torch.randn(256, 64, dtype=torch.float64)
    return ordinary(net, inputs, loss=lambda out: F.cross_entropy(out, _TARGET))


def _channels_last() -> Trial:
    net = _Images().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return ordinary(net, torch.randn(8, 3, 48, 48).contiguous(memory_format=torch.channels_last))


def _autocast() -> Trial:
    context = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    net = _wide(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))
    return ordinary(net, torch.randn(512, 64), loss=lambda out: out.float().square().mean(), context=context)


def _gan() -> Trial:
    maker = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 128))
    critic = nn.Sequential(nn.Linear(128, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    mine, other = (torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (maker, critic))
    noise, real = torch.randn(256, 32), torch.randn(256, 128)

    def step() -> Sequence[Tensor]:
        other.zero_grad(set_to_none=True)
        made = maker(noise)
        judged = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        judged.backward()  # type: ignore[no-untyped-call]
        other.step()
        mine.zero_grad(set_to_none=True)
        fooled = F.softplus(-critic(made)).mean()
        fooled.backward()  # type: ignore[no-untyped-call]
        mine.step()
        return [judged.detach(), fooled.detach()]

    return Trial((maker, critic), step)


def _siamese() -> Trial:
    net = _wide(nn.Linear(256, 256), nn.GELU())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    left, right = torch.randn(256, 64), torch.randn(256, 64)

    def step() -> Sequence[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(net(left), net(right))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return [loss.detach()]

    return Trial((net,), step)


def _carried() -> Trial:
    net = nn.GRU(32, 64, batch_first=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, kept = torch.randn(16, 24, 32), [torch.zeros(1, 16, 64)]

    def step() -> Sequence[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        out, state = net(inputs, kept[0])
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        kept[0] = state.detach()
        return [loss.detach(), kept[0]]

    return Trial((net,), step)


def _accumulated() -> Trial:
    net = _wide(nn.Dropout(0.1), nn.Linear(256, 256), nn.GELU())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batches = [torch.randn(128, 64) for _ in range(3)]

    def step() -> Sequence[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch in batches:
            loss = net(batch).square().mean() / len(batches)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    return Trial((net,), step)


def _lbfgs() -> Trial:
    net = _wide()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4, history_size=4)
    inputs = torch.randn(256, 64)

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = net(inputs).square().mean()
        loss.backward()
        found: Tensor = loss
        return found

    def step() -> Sequence[Tensor]:
        return [optimizer.step(closure).detach()]  # type: ignore[no-untyped-call]

    return Trial((net,), step)


def _sparse() -> Trial:
    return ordinary(Table(), torch.randint(20_000, (64, 32)), make=lambda p, lr: torch.optim.SGD(p, lr=lr))


FAMILIES = (
    Family(
        "lstm", lambda: ordinary(_Recurrent(nn.LSTM(32, 64, 2, batch_first=True)), torch.randn(16, 24, 32))
    ),
    Family("gru", lambda: ordinary(_Recurrent(nn.GRU(32, 64, batch_first=True)), torch.randn(16, 24, 32))),
    Family(
        "nn_transformer", lambda: ordinary(_Transformer(), torch.randn(8, 48, 64), torch.randn(8, 32, 64))
    ),
    Family("spectral_norm", lambda: _normed(partial(parametrizations.spectral_norm))),
    Family("weight_norm", lambda: _normed(partial(parametrizations.weight_norm))),
    Family("sparse_embedding", _sparse),
    Family("images", lambda: ordinary(_Images(), torch.randn(8, 3, 48, 48))),
    Family("channels_last", _channels_last),
    Family("complex", lambda: ordinary(Complex(), torch.randn(256, 128, dtype=torch.complex64))),
    Family("float64", _double),
    Family("autocast", _autocast),
    Family("gan", _gan),
    Family("siamese", _siamese),
    Family("carried_state", _carried),
    Family("accumulated", _accumulated),
    Family("lbfgs", _lbfgs),
)
