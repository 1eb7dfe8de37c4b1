"""M1: the four reference nets of MLPerf Tiny as they were published, in float, in integers, and as a step.

Padding is TensorFlow's "same" (one more row below than above where that is odd), dropout and softmax are
there. Classifiers are trained for some steps on coarse pictures with noise. Each form runs on this computer
and on the emulated Cortex-M4F, and returns the same bits. The autoencoder's step has four samples, as its
norms need more than one.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.micro.rows import Row
from benchmarks.micro.tiny import Shape, sounds
from tightrope.cli.machines import find_machine
from tightrope.core import NativeError
from tightrope_micro import CompiledStep, capture_step, compile_step, run_on_board, run_on_host, sample_of
from tightrope_micro.emulate import missing_tools
from tightrope_micro.infer import CompiledNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_SAMPLES: Final = 200
_STEPS: Final = 60
_CLASSES: Final = {"DS-CNN": 12, "MobileNetV1 0.25": 2, "ResNet-8": 10}
_FLOAT_RAM, _WHOLE_RAM, _STEP_RAM = 400 * 1024, 200 * 1024, 500 * 1024


class Same(nn.Module):
    """A convolution with padding "same", a batch norm and a ReLU."""

    def __init__(
        self,
        given: int,
        made: int,
        size: tuple[int, int],
        stride: int = 1,
        *,
        depth: bool = False,
        relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(given, made, size, stride, groups=given if depth else 1, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(made), relu

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        ends: list[int] = []
        for size, window, stride in zip(
            x.shape[:1:-1], self.conv.kernel_size[::-1], self.conv.stride[::-1], strict=True
        ):
            more = max(0, (-(-int(size) // stride) - 1) * stride + window - int(size))
            ends += [more // 2, more - more // 2]
        found: Tensor = self.norm(self.conv(functional.pad(x, ends) if any(ends) else x))
        return functional.relu(found) if self.relu else found


def _separable(given: int, made: int, stride: int = 1) -> list[nn.Module]:
    return [Same(given, given, (3, 3), stride, depth=True), Same(given, made, (1, 1))]


def keywords() -> tuple[nn.Module, Shape]:
    """DS-CNN."""
    blocks = [layer for _ in range(4) for layer in _separable(64, 64)]
    head = [nn.Dropout(0.4), nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(64, 12)]
    return nn.Sequential(Same(1, 64, (10, 4), 2), nn.Dropout(0.2), *blocks, *head), (1, 1, 49, 10)


def persons() -> tuple[nn.Module, Shape]:
    """MobileNetV1 0.25."""
    sizes = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
    layers: list[nn.Module] = [Same(3, 8, (3, 3), 2)]
    given = 8
    for made, stride in sizes:
        layers += _separable(given, made, stride)
        given = made
    return nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(256, 2)), (1, 3, 96, 96)


class Pair(nn.Module):
    """Two convolutions with a connection around them."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = Same(given, made, (3, 3), stride), Same(made, made, (3, 3), relu=False)
        self.around = nn.Conv2d(given, made, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        return functional.relu(self.second(self.first(x)) + self.around(x))


def pictures() -> tuple[nn.Module, Shape]:
    """ResNet-8."""
    pairs = [Pair(16, 16, 1), Pair(16, 32, 2), Pair(32, 64, 2)]
    last = [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(Same(3, 16, (3, 3)), *pairs, *last), (1, 3, 32, 32)


NETS: Final[dict[str, Callable[[], tuple[nn.Module, Shape]]]] = {
    "DS-CNN": keywords,
    "MobileNetV1 0.25": persons,
    "ResNet-8": pictures,
    "autoencoder": sounds,
}


class Trained(nn.Module):
    """A net and its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss."""
        found = self.net(x)
        if y.is_floating_point():
            return functional.mse_loss(found, y)
        return functional.cross_entropy(found, y)


def m1(console: Console) -> list[Row]:
    """Compile and run every net in three forms."""
    if missing := missing_tools():
        raise NativeError(f"{missing}.")
    return [_row(console, name) for name in NETS]


def _row(console: Console, name: str) -> Row:
    torch.manual_seed(0)
    net, shape = NETS[name]()
    classifies = name != "autoencoder"
    task = _task(shape, _CLASSES[name]) if classifies else torch.zeros(1, *shape[1:])
    if classifies:
        _train(net, task)
    scored = nn.Sequential(net, nn.Softmax(1)) if classifies else net
    drawn, classes = _batch(task, _SAMPLES, _STEPS)
    samples = [(one[None],) for one in drawn]
    plain = capture_net(scored, samples[0])
    ranges = ranges_of(plain, samples[:32])
    whole = quantize_within(plain, ranges, samples[:32], STREAM_ERROR, core="cortex-m4f")
    said, held = [], True
    board = find_machine("stm32h743")
    forms = {
        "float": compile_net(plain, board, ram=_FLOAT_RAM),
        "int8": compile_net(whole, board, ram=_WHOLE_RAM),
    }
    for form, compiled in forms.items():
        ram, rom, same = _on_board(compiled, compiled.sample(*samples[0]))
        said.append(f"{form}: RAM {ram:,} B, flash {rom:,} B")
        held = held and same
    if classifies:
        right = _right(forms["int8"], samples, classes)
        with torch.no_grad():
            plainly = int((scored.eval()(drawn).argmax(1) == classes).sum())
        said.append(f"top-1 {right} in int8, {plainly} in float, of {_SAMPLES}")
        held = held and right >= plainly - 1
    net.train()
    model = Trained(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    features = torch.randn(4, *shape[1:])
    batch = (samples[0][0], torch.tensor([0])) if classifies else (features, features)
    try:
        step = compile_step(capture_step(model, batch, optimizer), board, ram=_STEP_RAM)
        ram, rom, same = _on_board(step, sample_of(step.manifest, step.image))
        said.append(f"step: RAM {ram:,} B, flash {rom:,} B")
        held = held and same
    except NativeError as error:
        console.print(f"{name}: {error}")
        held = False
    return Row("M1", f"{name}: three forms, the board has the bits of this computer", "; ".join(said), held)


def _drawn(count: int, shape: Shape) -> Tensor:
    """Draw samples; pictures have coarse shapes and some noise."""
    if len(shape) < 4:
        return torch.randn(count, *shape[1:])
    coarse = functional.interpolate(torch.randn(count, shape[1], 4, 4), size=shape[2:])
    return coarse + 0.2 * torch.randn(count, *shape[1:])


def _task(shape: Shape, classes: int) -> Tensor:
    """Draw a coarse picture per class."""
    return functional.interpolate(torch.randn(classes, shape[1], 4, 4), size=shape[2:])


def _batch(task: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw samples of a task: one of its pictures per class, with noise."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(len(task), (count,), generator=generator)
    return task[classes] + torch.randn(count, *task.shape[1:], generator=generator), classes


def _train(net: nn.Module, task: Tensor) -> None:
    """Train a classifier on it."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(_STEPS):
        x, y = _batch(task, 32, step)
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(net(x), y))
        optimizer.step()


def _on_board(compiled: CompiledNet | CompiledStep, sample: bytes) -> tuple[int, int, bool]:
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        there, here = run_on_board(out, [sample]), run_on_host(out, [sample])
    left = {one.name for one in compiled.manifest.held if one.kind != "input"}
    same = there.outputs == here.outputs
    pairs = zip(there.losses, here.losses, strict=True)
    same = same and all(abs(one - other) <= 1e-8 * abs(one) for one, other in pairs)  # printed with 9 digits
    same = same and all(here.values[name] == there.values[name] for name in left)
    return there.ram, there.rom, same


def _right(compiled: CompiledNet, samples: Sequence[tuple[Tensor, ...]], classes: Tensor) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        found = run_on_host(out, [compiled.sample(*one) for one in samples])
    return sum(
        int(compiled.scores(o).argmax()) == int(c) for o, c in zip(found.outputs, classes, strict=True)
    )
