"""M3: single ops as C, in float, in integers and in a training step: right, or refused by name.

Each op runs in a net of its own on this computer, under sanitizers: the float form is compared with
PyTorch, the integers with the reference in NumPy, bit by bit, and what two steps leave in the weights of a
layer before the op and of its own with those of PyTorch. Then small nets of some of these ops, drawn with
seeds.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import TightropeError
from tightrope.judge import judge
from tightrope_micro import capture_step, compile_step, run_on_host, value_bytes
from tightrope_micro.infer import FloatNet, capture_net, compile_net, evaluate_net, ranges_of
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_F: Final = functional
_SANITIZED: Final = ("-fsanitize=undefined,address", "-fno-sanitize-recover")
_UNDEFINED: Final = ("-fsanitize=undefined", "-fno-sanitize-recover")
_RAM: Final = 128 * 1024
_CLOSE: Final = 3e-5
FIRST: Final = 1000
Shape = tuple[int, ...]
MAP: Final[Shape] = (1, 4, 8, 8)
ROW: Final[Shape] = (1, 3, 32)
STEPS: Final[Shape] = (1, 12, 3)


class Single(nn.Module):
    """A function of a tensor and some layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        return self.function(x, *self.layers)


class Case(NamedTuple):
    """A net of one op, and the shape of its input."""

    make: Callable[[], nn.Module]
    shape: Shape = MAP


def _case(function: Callable[..., Any], *layers: Callable[[], nn.Module], shape: Shape = MAP) -> Case:
    return Case(lambda: Single(function, *(make() for make in layers)), shape)


def _curves() -> Mapping[str, Callable[..., Any]]:
    return {
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": _F.silu, "hardswish": _F.hardswish,
        "hardsigmoid": _F.hardsigmoid, "elu": _F.elu, "softplus": _F.softplus, "mish": _F.mish,
        "exp": torch.exp, "abs": torch.abs, "neg": torch.neg,
    }  # fmt: skip


def _gate(x: Tensor) -> Tensor:
    return x.mean((2, 3), keepdim=True)


SINGLE: Final[dict[str, Case]] = {
    "softmax": _case(lambda x, c: c(x.flatten(1)).softmax(1), lambda: nn.Linear(256, 4)),
    "softmax of channels": _case(lambda x: x.softmax(1)),
    "log_softmax": _case(lambda x: x.log_softmax(-1)),
    "pad before a convolution": _case(lambda x, c: c(_F.pad(x, (0, 1, 0, 1))), lambda: nn.Conv2d(4, 4, 3, 2)),
    "pad and padding": _case(lambda x, c: c(_F.pad(x, (2, 1, 0, 1))), lambda: nn.Conv2d(4, 4, 3, 1, 1)),
    "pad before a depthwise": _case(
        lambda x, c: c(_F.pad(x, (0, 1, 0, 1))), lambda: nn.Conv2d(4, 4, 3, 2, groups=4)
    ),
    "pad": _case(lambda x: _F.pad(x, (1, 2, 0, 1), value=0.5)),
    "crop": _case(lambda x: _F.pad(x, (-1, 2, -2, -1))),
    "relu6": _case(lambda x, c: _F.relu6(c(4 * x)), lambda: nn.Conv2d(4, 4, 3)),
    "clamp": _case(lambda x: x.clamp(-0.3, 0.4)),
    "clamp below": _case(lambda x: x.clamp(min=0.1)),
    **{
        name: _case(function)
        for name, function in _curves().items()
    },
    "leaky_relu": _case(lambda x: _F.leaky_relu(x, 0.1)),
    "gelu by tanh": _case(lambda x: _F.gelu(x, approximate="tanh")),
    "sqrt": _case(lambda x: (x * x).sqrt()),
    "prelu": _case(lambda x, p: p(x), lambda: nn.PReLU(4)),
    "mul": _case(lambda x: x * x.tanh()),
    "sub": _case(lambda x: x - x.tanh()),
    "div": _case(lambda x: x / (x * x + 1)),
    "squeeze and excite": _case(lambda x: x * _gate(x).sigmoid()),
    "broadcast add": _case(lambda x: x + _gate(x)),
    "number minus": _case(lambda x: 1 - 2.5 * x / 3),
    "maximum": _case(lambda x: torch.maximum(x, x.tanh())),
    "argmax": _case(lambda x, c: c(x.flatten(1)).argmax(1), lambda: nn.Linear(256, 4)),
    "nearest": _case(lambda x: _F.interpolate(x, scale_factor=2)),
    "nearest, odd": _case(lambda x: _F.interpolate(x, size=(11, 13))),
    "bilinear": _case(lambda x: _F.interpolate(x, scale_factor=2, mode="bilinear")),
    "bilinear, corners": _case(
        lambda x: _F.interpolate(x, size=(11, 13), mode="bilinear", align_corners=True)
    ),
    "group norm": _case(lambda x, n: n(x), lambda: nn.GroupNorm(2, 4)),
    "instance norm": _case(lambda x, n: n(x), lambda: nn.InstanceNorm2d(4, affine=True)),
    "rms norm": _case(lambda x, n: n(x), lambda: nn.RMSNorm(8)),
    "adaptive average, 2 x 2": _case(lambda x: _F.adaptive_avg_pool2d(x, 2)),
    "adaptive average, 3 x 3": _case(lambda x: _F.adaptive_avg_pool2d(x, 3)),
    "adaptive largest": _case(lambda x: _F.adaptive_max_pool2d(x, 2)),
    "average with padding": _case(lambda x: _F.avg_pool2d(x, 3, 2, 1)),
    "average inside": _case(lambda x: _F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "average, ceil": _case(lambda x: _F.avg_pool2d(x, 3, 2, ceil_mode=True)),
    "largest, ceil": _case(lambda x: _F.max_pool2d(x, 3, 2, ceil_mode=True)),
    "dilated": _case(lambda x, c: c(x), lambda: nn.Conv2d(4, 6, 3, dilation=2)),
    "transposed": _case(lambda x, c: c(x), lambda: nn.ConvTranspose2d(4, 3, 2, 2)),
    "batch norm first": _case(lambda x, b, c: c(b(x)), lambda: nn.BatchNorm2d(4), lambda: nn.Conv2d(4, 4, 3)),
    "batch norm behind relu": _case(
        lambda x, c, b: b(_F.relu(c(x))), lambda: nn.Conv2d(4, 4, 3), lambda: nn.BatchNorm2d(4)
    ),
    "join of three": _case(lambda x: torch.cat((x, x.tanh(), x.sigmoid()), 1)),
    "join of rows": _case(lambda x: torch.cat((x, x.tanh()), 3)),
    "channel shuffle": _case(lambda x, s: s(x), lambda: nn.ChannelShuffle(2)),
    "shuffle by views": _case(lambda x: x.view(1, 2, 2, 8, 8).transpose(1, 2).reshape(1, 4, 8, 8)),
    "pixel shuffle": _case(lambda x: _F.pixel_shuffle(x, 2)),
    "sum": _case(lambda x: x.sum((2, 3))),
    "sum of channels": _case(lambda x: x.sum(1)),
    "sum of outer and inner": _case(lambda x: x.sum((1, 3))),
    "largest of a map": _case(lambda x: x.amax((2, 3))),
    "mean of all": _case(lambda x: x.mean((1, 2, 3))),
    "matmul": _case(lambda x: x @ x.transpose(2, 3)),
    "linear of rows": _case(lambda x, c: c(x), lambda: nn.Linear(8, 5)),
    "dropout": _case(lambda x, d: d(x) * 1.5, lambda: nn.Dropout(0.5)),
    "sum around a layer": _case(
        lambda x, c, d: _F.relu(d(_F.relu(c(x))) + x),
        lambda: nn.Conv2d(4, 8, 3, padding=1), lambda: nn.Conv2d(8, 4, 1),
    ),
    "sum of two layers": _case(
        lambda x, c, d: c(x) + _F.relu(d(x)),
        lambda: nn.Conv2d(4, 4, 3, padding=1), lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    ),
    "conv1d": _case(lambda x, c: c(x), lambda: nn.Conv1d(3, 4, 3, 2, 1), shape=ROW),
    "conv1d and a sum": _case(
        lambda x, c: _F.relu(c(x) + x), lambda: nn.Conv1d(3, 3, 3, padding=1), shape=ROW
    ),
    "max_pool1d": _case(lambda x, c: _F.max_pool1d(_F.relu(c(x)), 2), lambda: nn.Conv1d(3, 4, 3), shape=ROW),
    "avg_pool1d": _case(lambda x: _F.avg_pool1d(x, 2), shape=ROW),
    "adaptive_avg_pool1d": _case(lambda x: _F.adaptive_avg_pool1d(x, 1), shape=ROW),
    "batch_norm1d": _case(
        lambda x, c, b: b(c(x)), lambda: nn.Conv1d(3, 4, 3), lambda: nn.BatchNorm1d(4), shape=ROW
    ),
    "batch_norm1d first": _case(lambda x, b: b(x), lambda: nn.BatchNorm1d(3), shape=ROW),
    "gru": _case(
        lambda x, r, c: c(r(x)[0][:, -1]), lambda: nn.GRU(3, 8, batch_first=True), lambda: nn.Linear(8, 4),
        shape=STEPS,
    ),
    "gru, two layers": _case(lambda x, r: r(x)[1], lambda: nn.GRU(3, 8, 2, batch_first=True), shape=STEPS),
    "lstm": _case(
        lambda x, r, c: c(r(x)[0][:, -1]), lambda: nn.LSTM(3, 8, batch_first=True), lambda: nn.Linear(8, 4),
        shape=STEPS,
    ),
    "lstm, both directions": _case(
        lambda x, r: r(x)[0], lambda: nn.LSTM(3, 8, 2, bidirectional=True), shape=STEPS
    ),
    "lstm, its cell": _case(lambda x, r: r(x)[1][1], lambda: nn.LSTM(3, 8, batch_first=True), shape=STEPS),
    "rnn": _case(lambda x, r: r(x)[0], lambda: nn.RNN(3, 8), shape=STEPS),
}  # fmt: skip
"""Name -> net of one op."""
_KEEPS: Final[dict[str, tuple[str, ...]]] = {
    "float": (
        "relu6", "tanh", "hardswish", "leaky_relu", "prelu", "squeeze and excite", "broadcast add",
        "number minus", "group norm", "batch norm behind relu", "channel shuffle", "average inside",
        "pad before a depthwise", "sub", "dilated", "largest, ceil", "join of rows", "nearest", "clamp",
        "pad", "sum around a layer", "sum of two layers",
    ),
    "int8": (
        "relu6", "tanh", "hardswish", "leaky_relu", "number minus", "batch norm behind relu",
        "channel shuffle", "pad before a depthwise", "largest, ceil", "join of rows", "nearest", "clamp",
        "pad and padding", "pad before a convolution", "sigmoid", "sum around a layer", "sum of two layers",
    ),
    "training": (
        "tanh", "sigmoid", "silu", "hardswish", "leaky_relu", "largest, ceil", "batch norm first",
        "batch norm behind relu", "join of rows", "join of three", "shuffle by views",
        "pad before a convolution", "pad and padding", "pad before a depthwise", "sum around a layer",
        "sum of two layers",
    ),
}  # fmt: skip
"""Form -> ops that drawn nets of it have."""


class Chain(nn.Module):
    """Ops behind each other, each on 4 channels of 8 x 8, then a classifier."""

    def __init__(self, layers: Sequence[nn.Module], *, form: str = "float") -> None:
        super().__init__()
        self.layers, self.last, self.form = nn.ModuleList(layers), nn.Linear(256, 4), form
        self.fit = nn.ModuleList(
            nn.ModuleDict({str(n): nn.Conv2d(4, 4, 3, padding=5 - n // 2) for n in (4, 6)})
            for _ in layers
            if form != "float"
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute them; what an op makes is cut or filled up to the next one's input."""
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if self.form != "float":
                x = x[:, :4, :8, :8]
                if x.shape[2] < 8:
                    fits = self.fit[k]
                    assert isinstance(fits, nn.ModuleDict)
                    x = fits[str(x.shape[2])](x)
            elif x.shape[2:] != (8, 8):
                x = _F.adaptive_avg_pool2d(x, 8) if x.shape[2] % 8 == 0 else _F.interpolate(x, size=(8, 8))
            if x.shape[1] != 4:
                x = x[:, :4]
        x = self.last(x.flatten(1))
        return x if self.form == "training" else x.softmax(1)


def drawn(seed: int, form: str = "float") -> nn.Module:
    """Draw a small net of two to five ops that have a kernel in a form."""
    random = Random(seed)
    torch.manual_seed(seed)
    chosen = [SINGLE[random.choice(_KEEPS[form])].make() for _ in range(random.randint(2, 5))]
    return Chain(chosen, form=form)


def ready(net: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms statistics, and set it to evaluation."""
    torch.manual_seed(seed)
    for one in net.modules():
        if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d):
            assert one.running_mean is not None
            assert one.running_var is not None
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2.0)
    return net.eval()


def worst_float(model: nn.Module, net: FloatNet, x: Tensor) -> float:
    """Run the float form on this computer: the largest difference to PyTorch, of its largest number."""
    with torch.no_grad():
        want = model(x)
    got = torch.from_numpy(_run(net, x)[0]).reshape(want.shape)
    return float((got - want).abs().max() / max(1.0, float(want.abs().max())))


def integers_off(net: FloatNet, samples: Sequence[Tensor]) -> tuple[int, float]:
    """Quantize and run it: units by which the C differs from the reference, and from float by share."""
    calls = [[x] for x in samples]
    whole = quantize_within(net, ranges_of(net, calls), calls, STREAM_ERROR)
    x = samples[0]
    given = np.clip(np.rint(x.numpy() / whole.inputs[0].scale), -128, 127).astype(np.int64)
    exact = NetEvaluator(whole.graph, whole.constants, whole.programs)([given])
    scores, returned = _run(whole, x)
    off = np.abs(np.frombuffer(returned, whole.output.dtype).astype(np.int64) - exact.ravel()).max()
    want = evaluate_net(net, [x]).numpy().ravel()
    return int(off), float(np.abs(scores - want).max() / max(np.abs(want).max(), 1e-6))


def _run(net: Any, x: Tensor) -> tuple[Any, bytes]:
    compiled = compile_net(net, find_machine("nrf52840"), ram=_RAM)
    planned = compiled.planned
    verdict = judge(planned.tiled.graph, planned.executable, planned.plan, compiled.machine)
    assert verdict.ok, verdict.problems
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        found = run_on_host(out, [compiled.sample(x)], flags=_SANITIZED)
    return compiled.scores(found.outputs[0]).copy(), found.outputs[0]


class _Learning(nn.Module):
    """A layer, a net behind it, and the squared error of what that makes."""

    def __init__(self, net: nn.Module, shape: Shape) -> None:
        super().__init__()
        self.first = {4: nn.Conv2d(4, 4, 1), 3: nn.Linear(shape[-1], shape[-1])}[len(shape)]
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss."""
        return _F.mse_loss(self.net(self.first(x)), y)


def step_off(net: nn.Module, shape: Shape, made: Shape) -> float:
    """Take two steps on this computer: the largest difference to what PyTorch's steps leave.

    Args:
        net: trained as it is; dropouts let everything through, as their masks are the device's own.
        shape: of its input.
        made: of its result.
    """
    for one in net.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    model = _Learning(net.train(), shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # with more, rounding grows
    batches = [(torch.randn(shape), torch.randn(made)) for _ in range(2)]
    compiled = compile_step(capture_step(model, batches[0], optimizer), find_machine("nrf52840"), ram=_RAM)
    names = [int(one.name.removeprefix("input_")) for one in compiled.manifest.held if one.kind == "input"]
    samples = [b"".join(value_bytes(batch[k]) for k in names) for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        found = run_on_host(compiled.write(Path(folder) / "out"), samples, flags=_UNDEFINED)
    for batch in batches:
        optimizer.zero_grad()
        torch.autograd.backward(model(*batch))
        optimizer.step()
    left = model.state_dict()
    kept = {name: np.frombuffer(value, np.float32) for name, value in found.values.items() if name in left}
    return max(float(np.abs(one - left[name].numpy().ravel()).max()) for name, one in kept.items())


def m3(console: Console, seeds: int, first: int) -> list[Row]:
    """Every op, then nets drawn from ``seeds`` seeds from ``first`` on, of ops that each form has."""
    rows = []
    if first == FIRST:
        nets = {name: (lambda _, make=case.make: make(), case.shape) for name, case in SINGLE.items()}
        rows.append(_counted(console, "single ops: right, or refused by name", nets))
    many = {f"net {seed}": (partial(drawn, seed), MAP) for seed in range(first, first + seeds)}
    rows.append(_counted(console, "drawn nets of these ops: 0 wrong, 0 crashes", many))
    return rows


_Nets = Mapping[str, tuple[Callable[[str], nn.Module], Shape]]
"""Name -> what makes the net of a form, and the shape of its input."""


def _counted(console: Console, claim: str, nets: _Nets) -> Row:
    said, all_right = [], True
    for form in _KEEPS:
        words = []
        for name, (make, shape) in nets.items():
            torch.manual_seed(0)
            model = ready(make(form))
            samples = [torch.randn(shape) for _ in range(8)]
            try:
                words.append("right" if _is_right(form, model, samples) else "wrong")
            except TightropeError:
                words.append("refused")
            if words[-1] == "wrong":
                console.print(f"{name}, {form}: wrong")
        said.append(f"{form} " + ", ".join(f"{words.count(w)} {w}" for w in ("right", "refused", "wrong")))
        all_right = all_right and "wrong" not in words
    return Row("M3", claim, "; ".join(said), all_right)


def _is_right(form: str, model: nn.Module, samples: Sequence[Tensor]) -> bool:
    """Compare one form with what it has to be."""
    if form == "training":
        with torch.no_grad():
            made = tuple(model.eval()(samples[0]).shape)
        return step_off(model, tuple(samples[0].shape), made) <= _CLOSE
    net = capture_net(model, [samples[0]])
    if form == "int8":
        return integers_off(net, samples)[0] == 0
    return worst_float(model, net, samples[0]) <= _CLOSE
