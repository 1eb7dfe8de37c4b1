"""M6: recurrent nets and convolutions of one dimension, trained on the emulated board, then run there.

Accelerometer: windows of the four gestures of `tightrope_micro.sensor.synthetic`, 3 axes. Audio: tones that
rise, fall, stay or pulse, as mel energies of every frame. A net takes steps of 4 samples on the board; its
weights are compared with those of PyTorch after 4 steps and all, and the net with them is compiled for
inference. Arena and pages have to be those that were forecast, RAM within the limit, and the board's bits
those of this computer.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.micro.published import Trained
from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import UnsupportedOpError
from tightrope_micro import BoardRun, capture_step, compile_step, run_on_board, run_on_host, value_bytes
from tightrope_micro.emit import PageCounts
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK, missing_tools
from tightrope_micro.infer import FloatNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.quantize import quantize
from tightrope_micro.sensor import MelEnergies, features, gesture_dataset
from tightrope_micro.sensor.dataset import windows

_BATCH: Final = 4
_FEW: Final = 4
_EQUAL: Final = 1e-6
_RAM: Final = 80 * 1024
_HELD_OUT: Final = 100
_RATE: Final = 4000
_SAID: Final = 4
Sequences = tuple[Tensor, Tensor]
"""[samples, steps, numbers], and classes."""


class Recurrent(nn.Module):
    """A recurrent layer, and a dense layer of its last state."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(layer.hidden_size, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores."""
        found: Tensor = self.last(self.layer(x)[0][:, -1])
        return found


class Convolved(nn.Module):
    """Two convolutions over time, the mean, and a dense layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(width, hidden, 5, 2, 2), nn.BatchNorm1d(hidden)
        self.second, self.last = nn.Conv1d(hidden, hidden, 3, padding=1), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores."""
        x = functional.relu(self.norm(self.first(x.transpose(1, 2))))
        found: Tensor = self.last(functional.relu(self.second(x)).mean(2))
        return found


def accelerometer() -> Sequences:
    """Windows of 2 s, every fourth row of them."""
    found, labels = windows(gesture_dataset(10).recordings, 128, 64)
    x = (found[:, ::4] - found.mean((0, 1))) / found.std((0, 1))
    return torch.tensor(x, dtype=torch.float32), _numbers(labels)


def audio() -> Sequences:
    """Half a second of a tone in noise, as mel energies of 30 frames."""
    draw, t = np.random.default_rng(1), np.arange(_RATE // 2) / _RATE
    made, labels = [], []
    for k in range(300):
        label, pitch = k % 4, draw.uniform(400, 900)
        slope = (1200.0, -600.0, 0.0, 0.0)[label]
        loud = 1.0 if label < 3 else (np.sin(2 * np.pi * 8 * t) > 0).astype(float)
        tone = loud * np.sin(2 * np.pi * (pitch * t + slope * t * t / 2) + draw.uniform(0, 6))
        made.append(tone + draw.normal(0, 0.3, len(t)))
        labels.append(label)
    energies = features(MelEnergies(fft=128, filters=12), np.stack(made)[:, :, None], _RATE)
    x = energies.reshape(len(made), -1, 12)
    return torch.tensor((x - x.mean()) / x.std(), dtype=torch.float32), torch.tensor(labels)


def _numbers(labels: list[str]) -> Tensor:
    return torch.tensor([sorted(set(labels)).index(one) for one in labels])


NETS: Final[dict[str, tuple[Callable[[], Sequences], Callable[[], nn.Module]]]] = {
    "LSTM, accelerometer": (accelerometer, lambda: Recurrent(nn.LSTM(3, 16, batch_first=True))),
    "GRU, accelerometer": (accelerometer, lambda: Recurrent(nn.GRU(3, 16, batch_first=True))),
    "Conv1d, accelerometer": (accelerometer, lambda: Convolved(3, 16)),
    "LSTM, audio": (audio, lambda: Recurrent(nn.LSTM(12, 16, batch_first=True))),
    "GRU, audio": (audio, lambda: Recurrent(nn.GRU(12, 16, batch_first=True))),
    "Conv1d, audio": (audio, lambda: Convolved(12, 16)),
}


def m6(console: Console, steps: int) -> list[Row]:
    """Train and run every net."""
    if missing := missing_tools():
        console.print(f"M6 not run: {missing}")
        return [Row("M6", "sequence nets train and infer on the emulated board", "not run", held=False)]
    return [_row(name, steps) for name in NETS]


def _row(name: str, steps: int) -> Row:
    data, make = NETS[name]
    x, y = data()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    torch.manual_seed(0)
    net = make()
    model = Trained(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = [[x[at], y[at]] for at in _places(len(x) - _HELD_OUT, steps)]
    compiled = compile_step(capture_step(model, batches[0], optimizer), find_machine("nrf52840"), ram=_RAM)
    inputs = [int(one.name.removeprefix("input_")) for one in compiled.manifest.held if one.kind == "input"]
    samples = [b"".join(value_bytes(batch[k]) for k in inputs) for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        first, there = (run_on_board(out, samples[:count], count=True) for count in (_FEW, steps))
    for number, batch in enumerate(batches, 1):
        optimizer.zero_grad()
        torch.autograd.backward(model(*batch))
        optimizer.step()
        if number == _FEW:
            apart = _apart(first, model)
    found = _apart(there, model)
    model.load_state_dict({**model.state_dict(), **_state(there, model)})
    manifest = compiled.manifest
    held = apart <= _EQUAL and there.arena == manifest.arena and there.pages == _pages(manifest.pages, steps)
    held = held and there.ram <= _RAM
    said = f"RAM {there.ram:,} B of {_RAM:,}, arena {there.arena:,} B as forecast, "
    said += f"{_instructions(there.ticks, steps)} per step; weights within {apart:.1e} after {_FEW} steps"
    said += f", {found:.1e} after {steps}"
    for words, same in _inferred(net, x[-_HELD_OUT:], y[-_HELD_OUT:]):
        said, held = f"{said}; {words}", held and same
    return Row("M6", f"{name}: trains and infers on the board, forecasts exact", said, held)


def _places(count: int, steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(count, (_BATCH,), generator=generator)


def _state(run: BoardRun, model: nn.Module) -> dict[str, Tensor]:
    """Weights and statistics that the board left."""
    shapes = {name: one.shape for name, one in model.state_dict().items() if name in run.values}
    values = {name: torch.frombuffer(bytearray(run.values[name]), dtype=torch.float32) for name in shapes}
    return {name: one.reshape(shapes[name]) for name, one in values.items()}


def _apart(run: BoardRun, model: nn.Module) -> float:
    left = model.state_dict()
    return max(float((one - left[name]).abs().max()) for name, one in _state(run, model).items())


def _pages(one: PageCounts, steps: int) -> PageCounts:
    """Of many steps."""
    return PageCounts(*(steps * n for n in (one.pages_in, one.bytes_in, one.pages_out, one.bytes_out)))


def _instructions(ticks: int, calls: int) -> str:
    return f"{ticks * INSTRUCTIONS_PER_TICK / calls / 1e6:.2f} million instructions"


def _inferred(net: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, bool]]:
    """Compile in float and, where it has kernels, in integers; words, and whether all is as forecast."""
    samples = [(one[None],) for one in x]
    plain = capture_net(net, samples[0])
    forms: dict[str, Callable[[], FloatNet | IntegerNet]] = {
        "float": lambda: plain,
        "int8": lambda: quantize(plain, ranges_of(plain, samples[:32])),
    }
    with torch.no_grad():
        right = int((net.eval()(x).argmax(1) == y).sum())
    yield f"top-1 {right} of {len(x)} in PyTorch", True
    for form, made in forms.items():
        try:
            compiled = compile_net(made(), find_machine("nrf52840"), ram=_RAM)
        except UnsupportedOpError as error:
            yield f"{form} refused: {str(error).split(':')[0]}", True
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = compiled.write(Path(folder) / "out")
            here = run_on_host(out, [compiled.sample(*one) for one in samples]).outputs
            there = run_on_board(out, [compiled.sample(*one) for one in samples[:_SAID]], count=True)
        found = sum(int(compiled.scores(o).argmax()) == int(c) for o, c in zip(here, y, strict=True))
        same = there.outputs == here[:_SAID] and there.arena == compiled.manifest.arena and there.ram <= _RAM
        words = f"{form} top-1 {found}, RAM {there.ram:,} B, {_instructions(there.ticks, _SAID)}"
        yield words, same and found >= right - 1
