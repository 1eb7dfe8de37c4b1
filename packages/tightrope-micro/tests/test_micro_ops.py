"""Single ops of sensor nets as C: float as in PyTorch, integers as in NumPy to the bit, or refused."""

from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.micro.single_ops import (
    MAP,
    ROW,
    SINGLE,
    STEPS,
    Single,
    drawn,
    integers_off,
    ready,
    worst_float,
)
from tightrope.core import CaptureError, InfeasibleError, JudgeError, Machine, UnsupportedOpError
from tightrope_micro.emulate import missing_tools
from tightrope_micro.flash import check_flash
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import FloatNet, capture_net, compile_net, evaluate_net, ranges_of
from tightrope_micro.infer.bands import banded_forms
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.quantize import quantize
from tightrope_micro.translator import merged

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
REFUSED = ("transposed",)


class Many(nn.Module):
    """Many ops of one input, what they make behind each other."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        own = [case for name, case in SINGLE.items() if case.shape == shape and name not in REFUSED]
        self.nets = nn.ModuleList(case.make() for case in own)

    def forward(self, x: Tensor) -> Tensor:
        made = [net(x) for net in self.nets]
        return torch.cat([one.flatten() for one in made if one.dtype == torch.float32])


def in_integers(net: FloatNet, samples: list[Tensor]) -> tuple[int, float] | None:
    """What `integers_off` finds; None where the net is refused, by name."""
    try:
        return integers_off(net, samples)
    except UnsupportedOpError as error:
        if "compile the net in float32" not in str(error):
            raise
        return None


@needs_cc
@pytest.mark.parametrize("shape", [MAP, ROW, STEPS], ids=["maps", "rows", "steps"])
def test_all_ops_in_one_net_are_those_of_pytorch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = ready(Many(shape)), torch.randn(shape)
    net = capture_net(model, [x])
    with torch.no_grad():
        torch.testing.assert_close(evaluate_net(net, [x]).ravel(), model(x), atol=1e-5, rtol=1e-5)
    assert worst_float(model, net, x) < 3e-5


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("name", SINGLE)
def test_an_op_is_right_or_refused_by_name(name: str) -> None:
    torch.manual_seed(0)
    model = ready(SINGLE[name].make())
    samples = [torch.randn(SINGLE[name].shape) for _ in range(8)]
    if name in REFUSED:
        with pytest.raises(UnsupportedOpError, match="transposed"):
            capture_net(model, [samples[0]])
        return
    net = capture_net(model, [samples[0]])
    assert worst_float(model, net, samples[0]) < 3e-5
    found = in_integers(net, samples)
    assert found is None or (found[0] == 0 and found[1] < 0.05)


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("seed", range(20))
def test_drawn_nets_are_right(seed: int) -> None:
    model = ready(drawn(seed), seed)
    samples = [torch.randn(MAP) for _ in range(8)]
    net = capture_net(model, [samples[0]])
    assert worst_float(model, net, samples[0]) < 3e-5
    found = in_integers(net, samples)
    assert found is None or found[0] == 0


class Sensed(nn.Module):
    """Padding on two sides, ReLU6, curves, copies, a join of three and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depth = nn.Conv2d(4, 8, 3, 2), nn.Conv2d(8, 8, 3, groups=8)
        self.mix, self.last = nn.Conv2d(24, 4, 1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(4 * self.first(F.pad(x, (0, 1, 0, 1))))
        x = F.hardtanh(self.depth(F.pad(x, (2, 0, 1, 1))), 0.0, 0.5)
        x = self.mix(torch.cat((x, x.tanh(), F.hardswish(x)), 1))
        return self.last(F.leaky_relu(x).flatten(1)).softmax(1)  # type: ignore[no-any-return]


@needs_cc
def test_integers_of_a_sensor_net_are_those_of_the_reference() -> None:
    torch.manual_seed(0)
    samples = [torch.randn(MAP) for _ in range(30)]
    net = capture_net(Sensed().eval(), [samples[0]])
    assert "micro.pad" not in {op.target for op in net.graph.ops}
    off, share = integers_off(net, samples)
    assert off == 0
    assert share < 0.05
    whole = quantize(net, ranges_of(net, [[x] for x in samples]))
    assert whole.output.scale * 255 * 128 == pytest.approx(1)
    at = next(op for op in whole.graph.ops if op.target == "micro.q_softmax")
    damaged = replace(at, arguments=(at.arguments[0], 2, *at.arguments[2:]))
    ops = tuple(damaged if op is at else op for op in whole.graph.ops)
    with pytest.raises(JudgeError, match="softmax"):
        prove_net(replace(whole.graph, ops=ops), whole.constants, whole.programs)


@needs_cc
def test_curves_and_uneven_padding_go_in_bands() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(4, 8, 3, 2),
        nn.ReLU6(),
        nn.ZeroPad2d((0, 1, 2, 0)),
        nn.Conv2d(8, 4, 3, 2),
        nn.Hardswish(),
    ]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 4, 21, 21)
    net = capture_net(model, [x])
    forms = [form for form in banded_forms(net.graph) if form.last == len(net.graph.ops) - 1]
    assert len(forms) > 1
    for form in forms[:2]:
        assert worst_float(model, changed(net, graph=form.graph), x) < 3e-5


def test_a_clamp_behind_a_layer_costs_nothing() -> None:
    samples = [[torch.randn(MAP)] for _ in range(8)]
    net = capture_net(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU6(), nn.Conv2d(4, 2, 3)).eval(), samples[0])
    whole = quantize(net, ranges_of(net, samples))
    assert [op.target for op in whole.graph.ops] == ["micro.q_conv2d"] * 2


def test_dimensions_that_are_read_as_one_are_joined() -> None:
    for seed in range(200):
        generator = np.random.default_rng(seed)
        sizes = tuple(generator.integers(1, 4, 5))
        order = tuple(generator.permutation(5))
        array = np.arange(np.prod(sizes)).reshape(sizes).transpose(order)
        strides = tuple(one // array.itemsize for one in array.strides)
        shape, steps = merged(array.shape, strides)
        flat = np.arange(array.size)
        again = np.lib.stride_tricks.as_strided(flat, shape, [8 * one for one in steps])
        assert np.array_equal(again.ravel(), array.ravel())


class Turned(nn.Module):
    """A batch norm whose channels are not those of the layer before it, and a layer norm's kin of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.rows, self.other = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).view(1, 8, 4, 8)[:, :4].reshape(1, 4, 4, 8))
        return torch.cat((y.flatten(), self.other(self.rows(x[:, 0])).flatten()))


def attends(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x.tanh(), x)


def odd_weight() -> nn.Module:
    layer = nn.Linear(8, 4)
    layer.weight = nn.Parameter(torch.randn(8, 4).t())
    return layer


ODD: dict[str, tuple[Callable[..., Tensor], tuple[Callable[[], nn.Module], ...]]] = {
    "a layer added to its own input": (
        lambda x, c: (lambda y: c(y) + y)(x.relu()),
        (lambda: nn.Conv2d(4, 4, 1),),
    ),
    "rows added to their layer": (lambda x, c: (lambda y: c(y) + y)(x.relu()), (lambda: nn.Linear(8, 8),)),
    "a curve of a transpose": (lambda x: x.transpose(1, 2).tanh(), ()),
    "a layer of a transpose": (lambda x, c: c(x.transpose(1, 2).relu()), (lambda: nn.Linear(8, 5),)),
    "a norm of a transpose": (lambda x, n: n(x.transpose(1, 3) + 1), (lambda: nn.LayerNorm(4),)),
    "channels last": (
        lambda x, c, b: F.max_pool2d(b(F.relu(c(x))), 2),
        (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), lambda: nn.BatchNorm2d(6)),  # type: ignore[call-overload]
    ),
    "a weight that lies otherwise": (lambda x, c: c(x), (odd_weight,)),
    "chunks of the input": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), ()),
    "a slice of the input": (lambda x, c: c(x[:, -1]), (lambda: nn.Linear(8, 3),)),
    "attention of heads first": (attends, ()),
    "a join with nothing": (lambda x: torch.cat((x[:, :0], x.relu()), 1), ()),
    "uneven padding and dilation": (
        lambda x, c: c(F.pad(x, (0, 1, 3, 0))),
        (lambda: nn.Conv2d(4, 2, 3, dilation=2, padding=1),),
    ),
    "a clamp from above to below": (lambda x: x.clamp(1, -1), ()),
}


@needs_cc
@pytest.mark.few(4)
@pytest.mark.parametrize("name", ODD)
def test_odd_forms_of_ops_are_right(name: str) -> None:
    torch.manual_seed(0)
    function, layers = ODD[name]
    model, x = ready(Single(function, *(make() for make in layers))), torch.randn(MAP)
    net = capture_net(model, [x])
    with torch.no_grad():
        torch.testing.assert_close(evaluate_net(net, [x]), model(x), atol=1e-5, rtol=1e-5)
    assert worst_float(model, net, x) < 3e-5


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softplus(x, 2.0), F.selu, lambda x: F.avg_pool2d(x[0], 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x[0], 2),
        lambda x: torch.addmm(x[0, 0, :, :4].tanh(), x[0, 0], torch.ones(8, 4)),
    ],
    ids=["softplus", "selu", "average", "adaptive", "addmm"],
)  # fmt: skip
def test_what_a_kernel_lacks_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedOpError):
        capture_net(Single(function), [torch.randn(MAP)])


def test_computed_rows_are_no_integers() -> None:
    samples = [[torch.randn(3, 8)] for _ in range(4)]
    net = capture_net(Single(lambda x: x.tanh() + x.tanh()[:1]), samples[0])
    with pytest.raises(UnsupportedOpError, match="rows that are computed"):
        quantize(net, ranges_of(net, samples))


class Doubled(nn.GRU):
    """A layer of a user's own."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h = super().forward(x, state)
        return 2 * y, h


def test_what_only_looks_like_a_known_layer_keeps_its_meaning() -> None:
    torch.manual_seed(0)
    model, x = ready(Turned()), torch.randn(MAP)
    net = capture_net(model, [x])
    with torch.no_grad():
        torch.testing.assert_close(evaluate_net(net, [x]), model(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(CaptureError):
        capture_net(Doubled(3, 4), [torch.randn(STEPS)])
    hooked = nn.Sequential(nn.RNN(3, 4))
    hooked[0].register_forward_hook(lambda module, given, made: (-made[0], made[1]))
    try:
        net = capture_net(Picked(hooked), [torch.randn(STEPS)])
    except CaptureError:
        return
    x = torch.randn(STEPS)
    torch.testing.assert_close(evaluate_net(net, [x]), Picked(hooked)(x).detach(), atol=1e-5, rtol=1e-5)


class Picked(nn.Module):
    """The first result of a net."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[0]  # type: ignore[no-any-return]


def test_whole_numbers_do_not_reach_kernels_of_floats() -> None:
    with pytest.raises(UnsupportedOpError, match="int32 and int64; the kernel in float32"):
        capture_net(Single(lambda x: x.flatten(1).argmax(1) + 1), [torch.randn(MAP)])


def test_a_model_has_its_recurrent_layers_back() -> None:
    model = nn.Sequential(nn.GRU(3, 4)).eval()
    before = dict(model.named_modules())
    capture_net(SINGLE["gru"].make(), [torch.randn(STEPS)])
    with pytest.raises(UnsupportedOpError, match="proj_size"):
        capture_net(nn.LSTM(3, 4, proj_size=2), [torch.randn(STEPS)])
    assert dict(model.named_modules()) == before


@needs_board
def test_flash_is_held_to_the_byte(board: Machine) -> None:
    net = capture_net(nn.Linear(300, 300), [torch.zeros(1, 300)])
    compiled = compile_net(net, replace(board, flash=400_000), ram=20_000)
    linked = check_flash(compiled)
    assert linked is not None
    constants = len(net.constants.data)
    assert constants < linked < constants + 20_000
    exact = compile_net(net, replace(board, flash=linked), ram=20_000)
    assert check_flash(exact) == linked
    less = compile_net(net, replace(board, flash=linked - 1), ram=20_000)
    with pytest.raises(InfeasibleError, match=f"{linked} B of flash") as caught:
        check_flash(less)
    assert caught.value.smallest_found == linked


def test_constants_above_the_flash_are_refused_without_a_compiler(
    board: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    net = capture_net(nn.Linear(300, 300), [torch.zeros(1, 300)])
    with pytest.raises(InfeasibleError, match="of flash") as caught:
        compile_net(net, replace(board, flash=300_000), ram=20_000)
    assert caught.value.lower_bound == len(net.constants.data)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_flash(compile_net(net, replace(board, flash=400_000), ram=20_000)) is None
