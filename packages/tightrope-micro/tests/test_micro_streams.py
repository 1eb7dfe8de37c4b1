"""Sums of 8 bits: bits of NumPy, bytes, the error budget by which they are chosen, proofs of damaged ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as changed
from torch import nn
from torch.nn import functional as F

from tightrope.core import JudgeError, Machine, TightropeError, View
from tightrope.judge import judge
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.constants import Constants
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import FloatNet, capture_net, compile_net, evaluate_net, ranges_of
from tightrope_micro.integer.demands import candidates
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.quantize import quantize
from tightrope_micro.integer.streams import quantize_within

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover")


class Streams(nn.Module):
    """A convolution and a dense layer that add to a stream, and a sum of pools; ``grown`` scales a branch."""

    def __init__(self, grown: float = 1.0) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up, self.down, self.last = nn.Linear(512, 32), nn.Linear(32, 512), nn.Linear(512, 5)
        with torch.no_grad():
            self.two.weight *= grown

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.two(F.relu(self.one(x))) + x)
        x = F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)
        x = F.relu(x).flatten(1)
        found: torch.Tensor = self.last(F.relu(self.down(F.relu(self.up(x))) + x))
        return found


def drawn_inputs(num: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(1, 2, 16, 16, generator=generator)] for _ in range(num)]


def captured(grown: float = 1.0) -> FloatNet:
    torch.manual_seed(0)
    return capture_net(Streams(grown).eval(), drawn_inputs(1)[0])


def within(net: FloatNet, budget: float) -> IntegerNet:
    return quantize_within(net, ranges_of(net, drawn_inputs(24)), drawn_inputs(24), budget)


def whole_numbers_of(net: IntegerNet, inputs: list[torch.Tensor]) -> list[Any]:
    return [np.clip(np.rint(x.numpy() / net.inputs[0].scale), -128, 127).astype(np.int64) for x in inputs]


def error_of(net: FloatNet, whole: IntegerNet) -> float:
    """Root mean square error of the result, as a share of its root mean square."""
    run = NetEvaluator(whole.graph, whole.constants, whole.programs)
    found = [run(whole_numbers_of(whole, one)).ravel() * whole.output.scale for one in drawn_inputs(24)]
    wanted = np.stack([evaluate_net(net, one).numpy().ravel() for one in drawn_inputs(24)])
    return float(np.sqrt(((np.stack(found) - wanted) ** 2).mean() / (wanted**2).mean()))


def num_wide(whole: IntegerNet) -> int:
    """Values of 16 bits that are not the result."""
    return sum(op.results[0].view.dtype == "int16" for op in whole.graph.ops[:-1])


def test_what_sums_alone_want_wide_may_be_narrow() -> None:
    net = captured()
    makers = {storage: op.target.removeprefix("micro.") for op in net.graph.ops for storage in op.creates}
    found = [makers[storage] for storage in candidates(net.graph)]
    assert sorted(found) == ["add", "avg_pool2d", "conv2d", "max_pool2d_only"]
    sizes = [net.graph.storages[storage].bytes for storage in candidates(net.graph)]
    assert sizes == sorted(sizes, reverse=True)


@needs_cc
def test_sums_of_8_bits_have_the_bits_of_numpy_in_half_the_bytes(board: Machine, tmp_path: Path) -> None:
    net = captured()
    wide, thin = quantize(net, ranges_of(net, drawn_inputs(24))), within(net, 0.5)
    assert num_wide(wide) > 0
    assert num_wide(thin) == 0
    inputs = drawn_inputs(12) + [[torch.full((1, 2, 16, 16), value)] for value in (1e9, -1e9)]
    exact = NetEvaluator(thin.graph, thin.constants, thin.programs)
    cut = NetEvaluator(thin.graph, thin.constants, thin.programs, wrapped=True)
    arenas = []
    for name, whole in (("wide", wide), ("thin", thin)):
        compiled = compile_net(whole, board, ram=24_000, bands=False, pages=False)
        arenas.append(compiled.manifest.arena)
        planned = compiled.planned
        assert judge(planned.tiled.graph, planned.executable, planned.plan, board).ok
        if name == "wide":
            continue
        samples = [compiled.sample(*one) for one in inputs]
        folder = compiled.write(tmp_path / "out")
        run = run_on_host(folder, samples, flags=UNDEFINED)
        for one, found in zip(inputs, run.outputs, strict=True):
            wanted = exact(whole_numbers_of(thin, one)).ravel()
            assert np.array_equal(np.frombuffer(found, thin.output.dtype), wanted)
            assert np.array_equal(cut(whole_numbers_of(thin, one)).ravel(), wanted)
        if not missing_tools():
            assert run_on_board(folder, samples[:2]).outputs == run.outputs[:2]
    assert arenas[1] == 2 * 8 * 16 * 16  # a stream and a branch, of a byte each
    assert arenas[0] >= 2 * arenas[1]


@needs_cc
def test_bands_of_a_thin_net_have_the_same_bits(board: Machine, tmp_path: Path) -> None:
    whole = within(captured(), 0.5)
    plain = compile_net(whole, board, ram=24_000, bands=False, pages=False)
    banded = compile_net(whole, board, ram=plain.manifest.total - 600, pages=False)
    assert banded.manifest.arena < plain.manifest.arena
    samples = [plain.sample(*one) for one in drawn_inputs(4)]
    runs = [run_on_host(one.write(tmp_path / str(k)), samples) for k, one in enumerate((plain, banded))]
    assert runs[0].outputs == runs[1].outputs


def test_an_error_budget_chooses_some_values_where_all_would_err_too_much() -> None:
    net = captured(grown=60.0)
    ranges = ranges_of(net, drawn_inputs(24))
    wide = quantize(net, ranges)
    every = quantize(net, ranges, thin=candidates(net.graph))
    start, worst = error_of(net, wide), error_of(net, every)
    budget = (worst - start) / 3
    assert budget > 0
    some = within(net, budget)
    assert error_of(net, some) <= start + budget
    assert num_wide(every) < num_wide(some) < num_wide(wide)


def test_a_stream_that_no_whole_factor_fits_stays_wide() -> None:
    found = set()
    for grown in (1.0, 60.0, 90.0, 120.0):
        torch.manual_seed(0)
        net = Streams().eval()
        net.two = nn.Conv2d(8, 8, 1, groups=8)
        with torch.no_grad():
            net.two.weight *= grown
        forward = capture_net(net, drawn_inputs(1)[0])
        whole = quantize(forward, ranges_of(forward, drawn_inputs(24)), thin=candidates(forward.graph))
        first = next(op for op in whole.graph.ops if op.target == "micro.q_conv2d_add")
        stream = first.arguments[0]
        assert isinstance(stream, View)
        found.add(stream.dtype)
        plain = quantize(forward, ranges_of(forward, drawn_inputs(24)))
        assert error_of(forward, whole) < 1.25 * error_of(forward, plain)
    assert found == {"int8", "int16"}


def test_the_proof_refuses_damaged_sums() -> None:
    whole = within(captured(), 0.5)
    prove_net(whole.graph, whole.constants, whole.programs)
    cases = []
    for op in whole.graph.ops:
        if op.target in ("micro.q_conv2d_add", "micro.q_linear_add"):
            times = op.arguments[4]
            assert isinstance(times, View)
            assert times.shape[0] == 2
            data = bytearray(whole.constants.data)
            at = 4 * (times.offset + times.shape[1])
            data[at : at + 4] = (2**30).to_bytes(4, "little")
            cases.append((whole.graph, Constants(data)))
            cases.append((damaged(whole, op, 4, changed(times, shape=times.shape[1:])), whole.constants))
        if op.target == "micro.q_add":
            cases += [(damaged(whole, op, at, 2**30), whole.constants) for at in (2, 3, 4)]
            cases.append((damaged(whole, op, 6, 33), whole.constants))
    assert len(cases) == 8
    for graph, constants in cases:
        with pytest.raises(JudgeError):
            prove_net(graph, constants, whole.programs)


def damaged(whole: IntegerNet, op: Any, at: int, value: Any) -> Any:
    arguments = list(op.arguments)
    arguments[at] = value
    ops = list(whole.graph.ops)
    ops[op.id] = changed(op, arguments=tuple(arguments))
    return changed(whole.graph, ops=tuple(ops))


def test_a_budget_without_samples_or_below_zero_is_refused() -> None:
    net = captured()
    ranges = ranges_of(net, drawn_inputs(2))
    for samples, budget in (([], 0.1), (drawn_inputs(2), -0.1)):
        with pytest.raises(TightropeError, match="give 0 or more, and samples"):
            quantize_within(net, ranges, samples, budget)
