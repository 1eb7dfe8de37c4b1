"""Nets of TensorFlow Lite in int8: the C has the bits of the reference; other files are refused."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from benchmarks.micro.tflite_nets import NETS, SAME, SINGLE, VALID, Layers, drawn
from benchmarks.micro.tflite_reference import doubled_high, multiplied, quantized, rounded, run_net
from benchmarks.micro.tflite_writer import WrittenNet
from tightrope.cli.app import app
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError, TightropeError, UnsupportedOpError
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import CompiledNet, compile_net

pytest.importorskip("tflite")

from tightrope_micro.tflite import load_tflite
from tightrope_micro.tflite.rounding import mean_multiplier, multiplier_of, nearest, stays

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
SANITIZER = ("-fsanitize=undefined", "-fno-sanitize-recover")


def compiled(net: WrittenNet, path: Path, *, stack: int = 2048, ram: int = 200 * 1024) -> CompiledNet:
    file = path / "net.tflite"
    file.write_bytes(net.content())
    return compile_net(load_tflite(file), find_machine("stm32h743"), ram=ram, stack=stack)


def inputs(net: WrittenNet, num: int) -> NDArray[Any]:
    draw, one = np.random.default_rng(3), net.tensors[net.inputs[0]]
    if one.dtype == "float32":
        return draw.uniform(-3, 3, (num, *one.shape)).astype(np.float32)
    limits = np.iinfo(one.dtype)
    return draw.integers(limits.min, limits.max + 1, (num, *one.shape)).astype(one.dtype)


def check_bits(net: WrittenNet, path: Path, num: int, **limits: Any) -> tuple[CompiledNet, Path]:
    made, given = compiled(net, path, **limits), inputs(net, num)
    out = made.write(path / "out")
    found = run_on_host(out, [one.tobytes() for one in given], flags=SANITIZER)
    assert [one.hex() for one in found.outputs] == [run_net(net, one).tobytes().hex() for one in given]
    assert found.arena == made.manifest.arena
    return made, out


@needs_cc
@pytest.mark.few(6)
@pytest.mark.parametrize("name", SINGLE)
def test_an_op_has_the_bits_of_the_reference_arithmetic(name: str, tmp_path: Path) -> None:
    check_bits(SINGLE[name](5), tmp_path, 12)


@needs_cc
@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(100, 160))
def test_a_drawn_net_has_the_bits_of_the_reference_arithmetic(seed: int, tmp_path: Path) -> None:
    check_bits(drawn(seed), tmp_path, 8)


@needs_cc
@needs_board
@pytest.mark.few(1)
@pytest.mark.parametrize("name", NETS)
def test_the_nets_of_mlperf_tiny_have_the_bits_here_and_on_the_board(name: str, tmp_path: Path) -> None:
    net = NETS[name](0)
    made, out = check_bits(net, tmp_path, 2)
    given = inputs(net, 1)[0]
    board = run_on_board(out, [given.tobytes()])
    assert board.outputs == (run_net(net, given).tobytes(),)
    assert board.ram <= made.manifest.total
    assert board.stack <= made.manifest.stack


@needs_cc
def test_less_stack_takes_other_loops_with_the_same_bits(tmp_path: Path) -> None:
    net = Layers((1, 7, 7, 40), 2).conv(6, (3, 3)).conv(0, (3, 3), depth=1).conv(5, (3, 3)).done()
    for stack in (2048, 1300, 820):
        (tmp_path / str(stack)).mkdir()
        check_bits(net, tmp_path / str(stack), 3, stack=stack)


@needs_cc
def test_a_number_that_is_moved_shows(tmp_path: Path) -> None:
    net = Layers((1, 6, 6, 3), 4).conv(5, (3, 3), activation=0).done()
    for change in ({"zero": net.tensors[0].zero + 1}, {"scales": (net.tensors[0].scales[0] * 1.01,)}):
        other = WrittenNet([replace(net.tensors[0], **change), *net.tensors[1:]], net.ops, [0], net.outputs)
        made, given, folder = compiled(other, tmp_path), inputs(net, 4), tmp_path / str(change)
        folder.mkdir()
        found = run_on_host(made.write(folder / "out"), [one.tobytes() for one in given]).outputs
        assert list(found) != [run_net(net, one).tobytes() for one in given]


@needs_cc
def test_padding_goes_into_the_convolution_that_alone_reads_it(tmp_path: Path) -> None:
    ends = [(0, 0), (0, 1), (1, 2), (0, 0)]
    alone = Layers((1, 6, 6, 3), 1).pad(ends).conv(4, (3, 3), (2, 2), padding=VALID).done()
    made, _ = check_bits(alone, tmp_path, 4)
    assert [op.target for op in made.net.graph.ops] == ["micro.t_conv2d"]
    both = Layers((1, 6, 6, 3), 1).pad(ends).conv(4, (3, 3), padding=SAME).done()
    assert [op.target for op in compiled(both, tmp_path).net.graph.ops] == ["micro.t_pad", "micro.t_conv2d"]


@needs_cc
def test_what_dies_is_written_over_and_pages_change_no_bit(tmp_path: Path) -> None:
    net = Layers((1, 8, 8, 8), 3).conv(8, (3, 3))
    start = net.at
    whole = net.conv(8, (3, 3)).conv(8, (3, 3)).pair("ADD", start).rescale("RELU").flat().softmax().done()
    arenas = []
    for ram in (8000, 3600):
        (tmp_path / str(ram)).mkdir()
        made, _ = check_bits(whole, tmp_path / str(ram), 3, ram=ram)
        arenas.append((made.manifest.arena, made.manifest.pages.pages_out))
        over = [run.target for run in made.planned.executable.runs() if run.target.endswith(".over")]
        assert {"micro.t_add.over", "micro.t_rescale.over", "micro.t_softmax.over"} <= set(over)
    assert arenas[0] == (3 * 512, 0)
    assert arenas[1][0] < arenas[0][0]
    assert arenas[1][1] == 1


def test_it_is_imported_alone() -> None:
    subprocess.run([sys.executable, "-c", "import tightrope_micro.tflite"], check=True)


def test_real_numbers_go_in_and_come_out(tmp_path: Path) -> None:
    net = Layers((1, 2, 2, 2), 1).flat().softmax().done()
    net.tensors[0].scales, net.tensors[0].zero = (0.5,), -10
    made = compiled(net, tmp_path)
    assert np.frombuffer(made.sample(torch.full((1, 2, 2, 2), 3.0)), np.int8).tolist() == [-4] * 8
    assert made.scores(np.full(8, 127, np.int8).tobytes()).tolist() == [255 / 256] * 8
    assert "which stand for 0 at -10" in made.source.texts["tightrope_micro.h"]


@needs_cc
@pytest.mark.parametrize(("width", "each"), [(300, -127), (600, -128), (1000, -128), (4000, -128)])
def test_equal_scores_of_a_long_row_share_one(width: int, each: int, tmp_path: Path) -> None:
    """1/256 is one step: from 512 scores on a share rounds to none, where LiteRT's reference aborts."""
    out = compiled(Layers((2, width), 1).softmax().done(), tmp_path).write(tmp_path / "out")
    (found,) = run_on_host(out, [bytes(2 * width)], flags=SANITIZER).outputs
    assert set(np.frombuffer(found, np.int8).tolist()) == {each}


def test_products_are_rounded_as_the_definitions_say() -> None:
    draw = np.random.default_rng(0)
    a = np.concatenate((draw.integers(-(2**31), 2**31, 2000), [0, 1, -1, 2**31 - 1, -(2**31)]))
    b = draw.integers(0, 2**31, len(a))
    assert np.array_equal(doubled_high(a, b), (a * b + 2**30) >> 31)
    for ratio in (0.9999999999, 1e-3, 0.37, 1.7, 3e-10, 1e-12):
        assert multiplier_of(ratio) == quantized(ratio)
    assert stays(10**6, *multiplier_of(0.01))
    assert mean_multiplier(1.0, 1) == multiplier_of(1.0)
    assert abs(int(multiplied(1000, *mean_multiplier(0.5, 20))) - 25) <= 1


@pytest.mark.parametrize("seed", range(6))
def test_one_rounding_is_that_of_float64_for_every_sum(seed: int) -> None:
    draw = np.random.default_rng(seed)
    ratio = float(draw.uniform(0.0005, 0.4)) if seed else 0.0625  # whose halves are exact
    found = nearest(ratio, 5000, -128, 127)
    assert found is not None
    sums = np.arange(-5000, 5001)
    whole = (sums * found.multiplier + found.start) >> found.shift
    assert np.array_equal(np.clip(whole, -128, 127), np.clip(rounded(sums * ratio), -128, 127))
    assert nearest(ratio, 0, -128, 127) is not None


def _wrong(change: Callable[[WrittenNet], None]) -> WrittenNet:
    net = Layers((1, 6, 6, 3), 0).conv(4, (3, 3)).done()
    change(net)
    return net


def _two(net: WrittenNet) -> None:
    net.outputs.append(0)


def _nothing(net: WrittenNet) -> None:
    net.outputs = [0]


def _float(net: WrittenNet) -> None:
    for one in net.tensors:
        one.dtype, one.scales = "float32", ()
        one.data = None if one.data is None else one.data.astype(np.float32)


def _endless(net: WrittenNet) -> None:
    data = net.tensors[2].data
    assert data is not None
    data[0] = 2**31 - 1


REFUSED: dict[str, tuple[Callable[[WrittenNet], None], str]] = {
    "two": (_two, "returns 2 tensors"),
    "nothing": (_nothing, "computes nothing"),
    "float": (_float, "has a tensor of float32 where int8 is expected"),
    "dynamic": (lambda net: setattr(net.tensors[0], "signature", (-1, -1, 6, 3)), "sizes that are not fixed"),
    "empty": (lambda net: setattr(net.tensors[0], "shape", (1, 0, 6, 3)), "has the shape"),
    "zero": (lambda net: setattr(net.tensors[0], "zero", 300), "has a zero of 300"),
    "unit": (lambda net: setattr(net.tensors[0], "scales", (float("nan"),)), "no positive number"),
    "units": (lambda net: setattr(net.tensors[0], "scales", (0.1, 0.2)), "2 units where one"),
    "large": (lambda net: setattr(net.tensors[0], "scales", (1e30,)), "too large"),
    "sums": (_endless, "may leave 32 bits in channel 0"),
    "shape": (lambda net: setattr(net.tensors[-1], "shape", (1, 6, 6, 5)), "where the file says"),
    "strides": (lambda net: net.ops[0][3].update(stride_h=0), "with strides"),
    "activation": (lambda net: net.ops[0][3].update(activation=4), "fused activation of number 4"),
    "constant": (lambda net: net.inputs.append(1), "computes what has to be a constant"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_nets_are_refused_by_name(name: str, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    with pytest.raises(TightropeError, match=words):
        compiled(_wrong(change), tmp_path)


def test_a_batch_that_is_not_fixed_is_one_and_what_nothing_reads_is_left_out(tmp_path: Path) -> None:
    net = Layers((1, 6, 6, 3), 0).conv(4, (3, 3)).flat().done()
    net.tensors[0].signature = (-1, 6, 6, 3)
    other = net.tensor((2,), "int32")
    net.ops.insert(0, ("LOGISTIC", (0,), other, {}))  # the sizes, which old converters compute
    kind, reads, makes, options = net.ops[-1]
    net.ops[-1] = (kind, (reads[0], other), makes, options)
    assert len(compiled(net, tmp_path).net.graph.ops) == 1


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, content = tmp_path / "net.tflite", Layers((1, 8), 0).dense(3).done().content()
    with pytest.raises(TightropeError, match="no net at"):
        load_tflite(file)
    file.write_bytes(b"\x08\x07 not a net")
    with pytest.raises(TightropeError, match="is no file of TensorFlow Lite"):
        load_tflite(file)
    for end in range(8, len(content), 7):
        file.write_bytes(content[:end])
        with pytest.raises(TightropeError, match="damaged or cut off"):
            load_tflite(file)
    file.write_bytes(Layers((1, 8), 0).dense(3).done().content(code=15))
    with pytest.raises(UnsupportedOpError, match=r"LSH_PROJECTION, op 0 of .* has no kernel"):
        load_tflite(file)
    file.write_bytes(content)
    monkeypatch.setattr("tightrope_micro.tflite.file._MOST", 100)
    with pytest.raises(TightropeError, match="no net at"):
        load_tflite(file)
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(TightropeError, match=r"tightrope-micro\[tflite\]"):
        load_tflite(file)


def test_damage_is_refused_in_a_sentence_or_changes_numbers(tmp_path: Path) -> None:
    draw, file = np.random.default_rng(0), tmp_path / "net.tflite"
    contents = [SINGLE[name](2).content() for name in ("CONV_2D", "SOFTMAX", "MEAN", "MUL by a row")]
    for trial in range(300):
        content = bytearray(contents[trial % len(contents)])
        at = int(draw.integers(8, len(content) - 4))
        content[at : at + 4] = draw.integers(0, 256, 4).astype(np.uint8).tobytes()
        file.write_bytes(content)
        words = ""
        try:
            load_tflite(file)
        except TightropeError as error:
            words = str(error)
        assert "\n" not in words


def test_the_command_compiles_it_within_limits(tmp_path: Path) -> None:
    file = tmp_path / "net.tflite"
    file.write_bytes(Layers((1, 12, 12, 8), 0).conv(16, (3, 3)).done().content())
    command = ["micro", "compile", str(file), "--infer", "-o"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "out"), "--ram", "16KiB"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "reference.h").is_file()
    done = CliRunner().invoke(app, [*command, str(tmp_path / "no"), "--ram", "4KiB"])
    assert isinstance(done.exception, InfeasibleError)
    done = CliRunner().invoke(app, [*command, str(tmp_path / "no"), "--ram", "16KiB", "--flash", "1000"])
    assert isinstance(done.exception, InfeasibleError)
    done = CliRunner().invoke(
        app, ["micro", "compile", str(file), "-o", str(tmp_path / "no"), "--ram", "16KiB"]
    )
    assert "give --infer" in str(done.exception)
    assert not (tmp_path / "no").exists()
