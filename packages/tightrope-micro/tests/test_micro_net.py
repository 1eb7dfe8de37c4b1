"""Inference as C: float beside PyTorch, integers beside NumPy to the bit, proofs of damaged nets."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as changed
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.digit_nets import Attention, Block, Sum
from tightrope.core import InfeasibleError, JudgeError, Machine, TightropeError, UnsupportedOpError, View
from tightrope.core.values import EMPTY
from tightrope.judge import judge
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.constants import Constants
from tightrope_micro.disassembly import float_use
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import (
    CompiledNet,
    FloatNet,
    capture_net,
    compile_net,
    evaluate_net,
    ranges_of,
)
from tightrope_micro.infer.bands import banded_forms
from tightrope_micro.integer.epilogue import requantized, requantizing, rescale
from tightrope_micro.integer.evaluate import evaluate
from tightrope_micro.integer.kernels import i_exp_softmax, plain_layer_norm
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.quantize import quantize

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
SANITIZER = ("-fsanitize=undefined", "-fno-sanitize-recover")


class Small(nn.Module):
    """Every kernel of inference: convolutions with batch norm, sums, pools, attention, norms, copies."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.same, self.wider = Sum(16, 16), Sum(16, 64)
        self.depth = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
        self.token = nn.Parameter(torch.randn(1, 1, 64) / 4)
        self.places = nn.Parameter(torch.randn(1, 5, 64) / 4)
        self.block, self.last, self.fc = Block(), nn.LayerNorm(64), nn.Linear(64, 3)
        self.shared = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wider(self.same(F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)))
        x = F.avg_pool2d(x, 1, 1) + self.depth(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), 1, 64), tokens), 1) + self.places
        tokens = self.shared(F.relu(self.last(self.block(tokens))))
        return self.fc(tokens.mean(1)) + self.fc(tokens[:, 0])  # type: ignore[no-any-return]


def some_inputs(num: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(1, 2, 8, 8, generator=generator)] for _ in range(num)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    net = Small()
    for _ in range(3):
        net(torch.randn(8, 2, 8, 8))
    return net.eval()


@pytest.fixture(scope="module")
def net(model: nn.Module) -> FloatNet:
    return capture_net(model, some_inputs(1)[0])


@pytest.fixture(scope="module")
def whole(net: FloatNet) -> IntegerNet:
    return quantize(net, ranges_of(net, some_inputs(40)))


def numbers(quantized: IntegerNet, inputs: list[torch.Tensor]) -> list[Any]:
    scale = quantized.inputs[0].scale
    return [np.clip(np.rint(one.numpy() / scale), -128, 127).astype(np.int64) for one in inputs]


def check_bytes(compiled: CompiledNet, arena: int, pages: Any, num: int, board: Machine) -> None:
    planned = compiled.planned
    verdict = judge(planned.tiled.graph, planned.executable, planned.plan, board)
    assert verdict.ok, verdict.problems
    assert arena == compiled.manifest.arena == planned.plan.forecast.arena == verdict.arena
    for name in ("pages_in", "bytes_in", "pages_out", "bytes_out"):
        assert getattr(pages, name) == num * getattr(compiled.manifest.pages, name)


def test_a_captured_forward_is_that_of_the_model(model: nn.Module, net: FloatNet) -> None:
    targets = {op.target.removeprefix("micro.") for op in net.graph.ops}
    assert {"conv2d_add", "linear_add", "gather", "cat", "max_pool2d_only", "attention"} <= targets
    assert "batch_norm" not in targets
    for inputs in some_inputs(3):
        with torch.no_grad():
            torch.testing.assert_close(evaluate_net(net, inputs), model(*inputs), atol=1e-5, rtol=1e-5)
    assert len(net.constants.data) < 4 * sum(p.numel() for p in model.parameters()) * 1.02


@pytest.mark.slow
@needs_cc
def test_float_inference_in_c_is_that_of_pytorch(
    model: nn.Module, net: FloatNet, board: Machine, tmp_path: Path
) -> None:
    inputs = some_inputs(5)
    for ram in (30_000, 7_400):
        compiled = compile_net(net, board, ram=ram)
        run = run_on_host(compiled.write(tmp_path / str(ram)), [compiled.sample(*one) for one in inputs])
        for one, found in zip(inputs, run.outputs, strict=True):
            with torch.no_grad():
                np.testing.assert_allclose(compiled.scores(found), model(*one).numpy().ravel(), atol=2e-5)
        check_bytes(compiled, run.arena, run.pages, len(inputs), board)


@needs_cc
def test_a_narrow_net_returns_8_bits_and_shifts_once(board: Machine, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5))
    captured = capture_net(nn.Sequential(*layers), some_inputs(1)[0])
    narrow = quantize(captured, ranges_of(captured, some_inputs(20)), narrow=True)
    for op in narrow.graph.ops:
        if op.target in ("micro.q_conv2d", "micro.q_linear"):
            assert op.arguments[-4] == 0  # the shift before the multiplication
    assert narrow.output.dtype == "int8"
    compiled, inputs = compile_net(narrow, board, ram=8192), some_inputs(5)
    run = run_on_host(compiled.write(tmp_path / "out"), [compiled.sample(*one) for one in inputs])
    exact = NetEvaluator(narrow.graph, narrow.constants, narrow.programs)
    for one, found in zip(inputs, run.outputs, strict=True):
        assert np.frombuffer(found, np.int8).tolist() == exact(numbers(narrow, one)).ravel().tolist()


def test_a_narrow_net_in_which_one_shift_does_not_do_is_refused() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(512, 8)).eval()
    with torch.no_grad():
        model[0].weight[3] /= 100
        model[0].bias[3] /= 100
    samples = [(torch.randn(1, 512),) for _ in range(20)]
    net = capture_net(model, samples[0])
    with pytest.raises(
        TightropeError, match=r"channel 3 would be off .* is \d+ times smaller.*Leave narrow out"
    ):
        quantize(net, ranges_of(net, samples), narrow=True)
    assert quantize(net, ranges_of(net, samples)).output.dtype == "int16"


def test_numbers_that_are_not_finite_are_refused() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    samples = [(torch.randn(1, 4),) for _ in range(3)]
    net = capture_net(model, samples[0])
    for wrong in (float("nan"), float("inf")):
        broken = [*samples, (torch.full((1, 4), wrong),), *samples]
        with pytest.raises(TightropeError, match="input_0 takes values on the samples that are not finite"):
            quantize(net, ranges_of(net, broken))
        with torch.no_grad():
            model[2].weight[1, 3] = wrong
        bad = capture_net(model, samples[0])
        with pytest.raises(TightropeError, match=r"linear.* in 2 .*has a weight that is NaN or infinite"):
            quantize(bad, ranges_of(bad, samples))
    with pytest.raises(TightropeError, match="ranges come from samples"):
        ranges_of(net, [])


@pytest.mark.slow
@needs_cc
def test_integers_in_c_are_those_of_numpy_to_the_bit_and_undefined_nowhere(
    whole: IntegerNet, board: Machine, tmp_path: Path
) -> None:
    inputs = some_inputs(12)
    inputs += [[torch.full((1, 2, 8, 8), value)] for value in (1e9, -1e9)]
    inputs += [
        [1e9 * torch.sign(torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(k)))]
        for k in (1, 2)
    ]
    exact = NetEvaluator(whole.graph, whole.constants, whole.programs)
    cut = NetEvaluator(whole.graph, whole.constants, whole.programs, wrapped=True)
    for ram in (12_000, 3_650):
        compiled = compile_net(whole, board, ram=ram)
        folder = compiled.write(tmp_path / str(ram))
        run = run_on_host(folder, [compiled.sample(*one) for one in inputs], flags=SANITIZER)
        for one, found in zip(inputs, run.outputs, strict=True):
            wanted = exact(numbers(whole, one)).ravel()
            assert np.array_equal(np.frombuffer(found, np.int16), wanted)
            assert np.array_equal(cut(numbers(whole, one)).ravel(), wanted)
        check_bytes(compiled, run.arena, run.pages, len(inputs), board)


def test_integers_are_close_to_floats(model: nn.Module, whole: IntegerNet) -> None:
    exact = NetEvaluator(whole.graph, whole.constants, whole.programs)
    with torch.no_grad():
        scores = [model(*one).numpy() for one in some_inputs(20)]
    found = [exact(numbers(whole, one)) * whole.output.scale for one in some_inputs(20)]
    spread = np.std(np.concatenate(scores))
    assert np.abs(np.concatenate(found) - np.concatenate(scores)).mean() < 0.1 * spread


@needs_cc
@needs_board
@pytest.mark.slow
def test_boards_with_and_without_floating_point_give_the_same_bits_and_compute_no_float(
    whole: IntegerNet, net: FloatNet, board: Machine, tmp_path: Path
) -> None:
    compiled = compile_net(whole, board, ram=8_000)
    folder = compiled.write(tmp_path / "whole")
    samples = [compiled.sample(*one) for one in some_inputs(2)]
    wanted = run_on_host(folder, samples).outputs
    for core in ("cortex-m4f", "cortex-m3"):
        run = run_on_board(folder, samples, core=core)
        assert run.outputs == wanted
        assert run.ram <= compiled.manifest.total <= 8_000
        assert run.stack <= compiled.manifest.stack
        check_bytes(compiled, run.arena, run.pages, 2, board)
        use = float_use(folder, core=core)
        assert (use.instructions, use.calls) == (0, 0)
        assert use.all > 1000
    floats = compile_net(net, board, ram=30_000).write(tmp_path / "float")
    assert float_use(floats, core="cortex-m3").calls > 50
    assert float_use(floats, core="cortex-m4f").instructions > 50


def damaged(whole: IntegerNet, draw: random.Random) -> Iterator[tuple[str, Any, Constants]]:
    """Graphs and constants with one number made too large, or one type made wrong."""
    graph = whole.graph
    layers = [op for op in graph.ops if op.target.startswith(("micro.q_conv2d", "micro.q_linear"))]
    for op in draw.sample(layers, 4):
        first = 1 if op.target.endswith("_add") else 0
        for at, value in ((first + 3, 2**31 - 1), (first + 2, 2**31 - 1)):
            view = op.arguments[at]
            assert isinstance(view, View)
            data = bytearray(whole.constants.data)
            data[4 * view.offset : 4 * view.offset + 4] = value.to_bytes(4, "little")
            yield f"{op.name} constant {at}", graph, Constants(data)
        for at, value in ((-4, 40), (-3, 33), (-1, 2**20)):
            yield f"{op.name} number {at}", _with(graph, op, at, value), whole.constants
    for op in graph.ops:
        if op.target == "micro.q_attention":
            for at in (3, 6):
                yield f"{op.name} number {at}", _with(graph, op, at, 2**30), whole.constants
            yield f"{op.name} softmax", _with(graph, op, 9, "layer_norm_0"), whole.constants
        if op.target == "micro.q_table":
            view = op.arguments[1]
            assert isinstance(view, View)
            yield "a short table", _with(graph, op, 1, changed(view, shape=(255,))), whole.constants
        if op.target == "micro.q_layer_norm":
            yield "no norm", _with(graph, op, 1, "layer_norm_99"), whole.constants


def _with(graph: Any, op: Any, at: int, value: Any) -> Any:
    arguments = list(op.arguments)
    arguments[at] = value
    ops = list(graph.ops)
    ops[op.id] = changed(op, arguments=tuple(arguments))
    return changed(graph, ops=tuple(ops))


def refused(graph: Any, constants: Constants, whole: IntegerNet) -> bool:
    try:
        prove_net(graph, constants, whole.programs)
    except JudgeError:
        return True
    return False


@pytest.mark.slow
def test_the_proof_refuses_every_damaged_net(whole: IntegerNet) -> None:
    assert max(one.bits for one in prove_net(whole.graph, whole.constants, whole.programs)) <= 32
    cases = list(damaged(whole, random.Random(0)))
    assert len(cases) > 20
    for what, graph, constants in cases:
        assert refused(graph, constants, whole), what
    with pytest.raises(JudgeError, match="is not there"):
        prove_net(whole.graph, whole.constants, ())
    with pytest.raises(JudgeError, match="is not an op whose integers"):
        prove_net(
            changed(whole.graph, ops=(changed(whole.graph.ops[0], target="micro.conv2d"),)),
            whole.constants,
            (),
        )


@pytest.mark.parametrize("control", [{"softmax_of": i_exp_softmax}, {"norm_of": plain_layer_norm}])
def test_kernels_that_need_more_than_32_bits_are_refused_in_a_whole_net(
    net: FloatNet, control: dict[str, Any]
) -> None:
    ranges = ranges_of(net, some_inputs(4))
    with pytest.raises(JudgeError, match=r"in .* (leaves u?int32_t|shifts by)"):
        quantize(net, ranges, **control)
    forced = quantize(net, ranges, **control, prove=False)
    exact, cut = (
        NetEvaluator(forced.graph, forced.constants, forced.programs, wrapped=wrapped)
        for wrapped in (False, True)
    )
    given = numbers(forced, some_inputs(1)[0])
    assert not np.array_equal(exact(given), cut(given))


def test_shifts_are_the_best_that_fit_and_their_error_is_what_is_said() -> None:
    rng = np.random.default_rng(0)
    for bound, ratio in zip(2.0 ** rng.uniform(7, 30, 40), 2.0 ** rng.uniform(-24, 3, 40), strict=True):
        whole_bound = int(bound)
        found = rescale(np.array([whole_bound]), np.array([ratio]), "a sum")
        sums = np.unique(rng.integers(-whole_bound, whole_bound + 1, 500))
        sums = np.append(sums, (-whole_bound, whole_bound))
        given = np.array(found.multipliers)
        got = requantized(sums, given, found.pre, found.shift)
        assert np.abs(got - sums * ratio).max() <= found.error + 0.5 + 1e-6
        assert np.array_equal(got, requantized(sums, given, found.pre, found.shift, wrapped=True))
        program = requantizing(
            -whole_bound,
            whole_bound,
            found.multipliers[0],
            shifts=(found.pre, found.shift),
            ends=(-128, 127),
            dtype="int8",
        )
        clipped = evaluate(program, sums[:, None]).ravel()
        assert np.array_equal(clipped, np.clip(got, -128, 127))
        for pre in range(17):  # no pair of shifts does better
            for shift in range(31):
                times = round(ratio * 2.0 ** (pre + shift))
                reduced = ((whole_bound + ((1 << pre) >> 1)) >> pre) + 1
                if reduced * times + 2 ** max(shift - 1, 0) < 2**31 and times < 2**31:
                    off = reduced * abs(times / 2**shift - ratio * 2**pre) + ((1 << pre) >> 1) * ratio
                    assert found.error <= off * (1 + 1e-9)
    with pytest.raises(TightropeError, match="no shifts keep a sum"):
        rescale(np.array([2**31 - 1]), np.array([2.0**20]), "a sum")


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("form", ["float", "integer"])
def test_bands_of_rows_have_the_same_bits_in_fewer_bytes(form: str, board: Machine, tmp_path: Path) -> None:
    torch.manual_seed(2)
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), Sum(8, 8), nn.MaxPool2d(3, 2, 1), Sum(8, 16)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 3)).eval()
    samples = [[torch.randn(1, 2, 16, 16)] for _ in range(4)]
    found: Any = capture_net(model, samples[0])
    if form == "integer":
        found = quantize(found, ranges_of(found, samples))
    plain = compile_net(found, board, ram=60_000, pages=False)
    outputs = run_on_host(plain.write(tmp_path / "plain"), [plain.sample(*one) for one in samples]).outputs
    beside = plain.manifest.total - plain.manifest.arena
    for share in (0.65,):
        ram = beside + int(share * plain.manifest.arena)
        with pytest.raises(InfeasibleError):
            compile_net(found, board, ram=ram, bands=False, pages=False)
        banded = compile_net(found, board, ram=ram, pages=False)
        assert banded.manifest.total <= ram
        assert banded.manifest.pages.pages_out == 0
        run = run_on_host(
            banded.write(tmp_path / str(ram)), [plain.sample(*one) for one in samples], flags=SANITIZER
        )
        assert run.outputs == outputs
        check_bytes(banded, run.arena, run.pages, len(samples), board)
    assert {one.bands for one in banded_forms(found.graph)} == {2, 4, 8, 16}


class Causal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused_with_a_reason_and_nothing_is_written(
    net: FloatNet, whole: IntegerNet, board: Machine, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOpError, match=r"aten.convolution.default.*is transposed"):
        capture_net(nn.ConvTranspose2d(2, 2, 2), [torch.zeros(1, 2, 4, 4)])
    with pytest.raises(UnsupportedOpError, match=r"aten.log_sigmoid_forward.default.*has no kernel"):
        capture_net(nn.Sequential(nn.Linear(4, 2), nn.LogSigmoid()), [torch.zeros(1, 4)])
    causal = capture_net(Causal(), [torch.randn(1, 2, 4, 4)])
    with pytest.raises(UnsupportedOpError, match="is causal"):
        quantize(causal, ranges_of(causal, [[torch.randn(1, 2, 4, 4)]]))
    with pytest.raises(InfeasibleError, match="The next limit to try is") as caught:
        compile_net(whole, board, ram=3_000)
    assert caught.value.smallest_found is not None
    compile_net(whole, board, ram=caught.value.smallest_found)
    size = len(whole.constants.data)
    with pytest.raises(InfeasibleError, match=f"take {size} B of flash; the limit is 1000 B"):
        compile_net(whole, changed(board, flash=1000), ram=20_000)
    with pytest.raises(InfeasibleError, match="Ask for a stack of"):
        compile_net(whole, board, ram=20_000, stack=700)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "letter.txt").write_text("mine")
    with pytest.raises(TightropeError, match="did not write it"):
        compile_net(whole, board, ram=20_000).write(taken)
    assert [path.name for path in tmp_path.rglob("*")] == ["taken", "letter.txt"]


def test_a_constant_outside_of_the_flash_is_refused(whole: IntegerNet, board: Machine) -> None:
    op = next(op for op in whole.graph.ops if op.target == "micro.q_linear")
    view = op.arguments[1]
    assert isinstance(view, View)
    assert view.base == EMPTY
    moved = _with(whole.graph, op, 1, changed(view, offset=len(whole.constants.data)))
    with pytest.raises(TightropeError, match="inside its base"):
        compile_net(replace(whole, graph=moved), board, ram=20_000)
