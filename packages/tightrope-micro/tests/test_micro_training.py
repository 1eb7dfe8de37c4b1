"""Steps with zeros around maps, curves, dropout and rows of samples: on this computer as in PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tightrope.core import Machine, TightropeError, UnsupportedOpError
from tightrope.judge import judge
from tightrope_micro import capture_step, compile_step, run_on_host, value_bytes
from tightrope_micro.dropout import dropout_mask
from tightrope_micro.host import c_compiler

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")


class Drawn(nn.Module):
    """A dropout that leaves what the device leaves."""

    step = 0

    def __init__(self, share: float, number: int) -> None:
        super().__init__()
        self.share, self.number = share, number

    def forward(self, x: Tensor) -> Tensor:
        mask = dropout_mask(Drawn.step, self.number, x.numel(), self.share)
        return torch.where(torch.from_numpy(mask).reshape(x.shape), x / (1 - self.share), 0.0)


class Maps(nn.Module):
    """Zeros on some sides of maps, curves and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, (5, 4), 2, bias=False), nn.BatchNorm2d(4)
        self.depth, self.dense, self.last = (
            nn.Conv2d(4, 4, 3, groups=4),
            nn.Conv2d(4, 4, 3),
            nn.Linear(100, 3),
        )
        self.drops = nn.ModuleList([nn.Dropout(0.2), nn.Dropout(0.5)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.drops[0](F.relu6(self.norm(self.first(F.pad(x, (1, 1, 2, 2))))))
        x = F.hardswish(self.depth(F.pad(x, (0, 2, 1, 1))))
        x = F.silu(self.dense(F.pad(x, (1, 1, 0, 2)))).tanh().sigmoid()
        return F.cross_entropy(self.last(self.drops[1](F.leaky_relu(x, 0.2)).flatten(1)), y)


class Rows(nn.Module):
    """Convolutions of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(3, 4, 5, 2, 2), nn.BatchNorm1d(4)
        self.second, self.last = nn.Conv1d(4, 6, 3), nn.Linear(96, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return F.cross_entropy(self.last(F.relu(self.second(F.pad(x, (0, 2)))).flatten(1)), y)


class Steps(nn.Module):
    """A recurrent layer, and what is read of it."""

    def __init__(self, layer: nn.RNNBase, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.layer, self.read = layer, read
        self.last = nn.Linear(5 * (1 + layer.bidirectional), 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.last(self.read(self.layer(x))), y)


def _lstm() -> nn.Module:
    return Steps(nn.LSTM(3, 5, batch_first=True, bidirectional=True), lambda made: made[0][:, 1:4].mean(1))


def _cell() -> nn.Module:
    return Steps(nn.LSTM(3, 5, batch_first=True, bias=False), lambda made: made[1][1][-1])


def _gru() -> nn.Module:
    return Steps(nn.GRU(3, 5, 2, batch_first=True), lambda made: made[0][:, -1])


def _rnn() -> nn.Module:
    return Steps(nn.RNN(3, 5, nonlinearity="relu", batch_first=True), lambda made: made[1][0])


@needs_cc
@pytest.mark.parametrize("ram", [64 << 10, 5_600], ids=["ample", "tight"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Maps, (1, 1, 10, 10)), (Rows, (1, 3, 32)), *((make, (2, 6, 3)) for make in (_lstm, _cell, _gru, _rnn))],
    ids=["maps", "rows", "lstm", "cell", "gru", "rnn"],
)
def test_steps_are_those_of_pytorch(
    make: Callable[[], nn.Module], shape: tuple[int, ...], ram: int, board: Machine, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = [(torch.randn(shape), (torch.arange(shape[0]) + k) % 3) for k in range(4)]
    compiled = compile_step(capture_step(model, data[0], optimizer), board, ram=ram)
    planned = compiled.planned
    assert judge(planned.tiled.graph, planned.executable, planned.plan, board).ok
    names = [one.name for one in compiled.manifest.held if one.kind == "input"]
    samples = [b"".join(value_bytes(batch[int(n.removeprefix("input_"))]) for n in names) for batch in data]
    folder = compiled.write(tmp_path / "out")
    run = run_on_host(folder, samples, flags=("-fsanitize=undefined", "-fno-sanitize-recover"))
    if isinstance(model, Maps):
        model.drops = nn.ModuleList([Drawn(0.2, 1), Drawn(0.5, 2)])
    losses = []
    for step, batch in enumerate(data):
        Drawn.step = step + 1
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(run.losses, losses, atol=2e-6)
    for name, parameter in model.named_parameters():
        there = np.frombuffer(run.values[name], np.float32)
        np.testing.assert_allclose(there, parameter.detach().numpy().ravel(), atol=2e-6)


@needs_cc
def test_samples_that_are_not_the_inputs_are_refused(board: Machine, tmp_path: Path) -> None:
    model = Rows()
    batch = (torch.randn(1, 3, 32), torch.tensor([1]))
    step = capture_step(model, batch, torch.optim.SGD(model.parameters(), lr=0.1))
    folder = compile_step(step, board, ram=64 << 10).write(tmp_path / "out")
    plain = b"".join(one.numpy().tobytes() for one in batch)  # with the class in 8 bytes
    for wrong in (plain, b"", batch):
        with pytest.raises(TightropeError, match=r"sample 0 is .*; a call reads 388 B: .*int32"):
            run_on_host(folder, [wrong])  # type: ignore[list-item]


def test_a_dropout_draws_anew_in_every_step_and_place() -> None:
    masks = [dropout_mask(step, number, 4096, 0.3) for step in (1, 2) for number in (1, 2)]
    for one in masks:
        assert abs(one.mean() - 0.7) < 0.03
    for k, one in enumerate(masks):
        for other in masks[k + 1 :]:
            assert abs((one == other).mean() - 0.58) < 0.03  # as often as two that know nothing of each other


class Around(nn.Module):
    """Zeros around what not only a convolution reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.pad(F.relu(self.conv(x)), (1, 1, 1, 1))
        return F.mse_loss(self.conv(wide) + F.relu(wide[:, :, 1:-1, 1:-1]), torch.zeros(1, 1, 6, 6))


def test_other_uses_of_what_is_padded_are_refused() -> None:
    model = Around()
    with pytest.raises(UnsupportedOpError, match="pads what not only convolutions read"):
        capture_step(model, [torch.randn(1, 1, 8, 8)], torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_state_that_is_trained_is_refused() -> None:
    class Begins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.begin = nn.GRU(3, 5), nn.Parameter(torch.zeros(1, 1, 5))

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.layer(x, self.begin)[0], torch.zeros(6, 1, 5))

    model = Begins()
    with pytest.raises(TightropeError, match="begins from a state that is trained: detach the state"):
        capture_step(model, [torch.randn(6, 1, 3)], torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_weight_that_does_not_lie_as_its_indices_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.net(x), torch.zeros(1, 3, 2, 2))

    whole = Loss()
    with pytest.raises(UnsupportedOpError, match="permutation that the caller holds"):
        capture_step(whole, [torch.randn(1, 2, 4, 4)], torch.optim.SGD(whole.parameters(), lr=0.1))
