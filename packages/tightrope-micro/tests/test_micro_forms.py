"""Forms of row kernels: the cheapest is chosen, integers match NumPy to the bit, damaged nets are refused."""

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.micro.digit_nets import Block
from tightrope.core import JudgeError, Machine, TightropeError
from tightrope.judge import judge
from tightrope_micro import run_on_host
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import FloatNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.costs import CORES, KernelForm, RowOp, chosen, costs_of
from tightrope_micro.integer.evaluate import evaluate
from tightrope_micro.integer.floats import FloatRows, float_section, nearest
from tightrope_micro.integer.forms import KernelForms, form_of
from tightrope_micro.integer.kernels import gelu_polynomial, layer_norm
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.proof import proved
from tightrope_micro.integer.quantize import quantize

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")


@pytest.fixture(scope="module")
def net() -> FloatNet:
    torch.manual_seed(0)
    return capture_net(Block().eval(), [torch.randn(1, 5, 64)])


@pytest.fixture(scope="module")
def samples() -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(1, 5, 64, generator=generator)] for _ in range(20)]


@pytest.mark.parametrize("core", CORES)
def test_the_cheapest_form_is_chosen_of_those_that_there_are(core: str) -> None:
    for op in RowOp:
        for length in (1, 7, 64, 65, 197, 768):
            for forms in (tuple(KernelForm), (KernelForm.POLYNOMIAL, KernelForm.TABLE)):
                least = min(costs_of(core)[op][form].of(length) for form in forms)
                assert costs_of(core)[op][chosen(core, op, length, forms)].of(length) == least


def test_a_gelu_without_a_table_is_within_a_unit_or_refused() -> None:
    every, rng, refusals = np.arange(-128, 128)[None, :], np.random.default_rng(0), 0
    for scale, target in np.exp(rng.uniform(np.log(1e-3), np.log(0.2), (60, 2))):
        try:
            kernel = gelu_polynomial(scale, target, 256)
        except TightropeError:
            refusals += 1
            continue
        proved(kernel)
        wanted = [0.5 * x * math.erfc(-x / math.sqrt(2)) / target for x in every[0] * scale]
        assert np.abs(evaluate(kernel, every)[0] - np.clip(wanted, -128, 127)).max() <= 1
    assert refusals < 10


def test_a_layer_norm_by_a_table_is_within_a_unit() -> None:
    rng = np.random.default_rng(3)
    kernel = layer_norm([1.0] * 64, [0.0] * 64, 0.03, table=True)
    rows = rng.integers(-3000, 3000, (200, 64))
    off = rows - rows.mean(axis=1, keepdims=True)
    wanted = np.clip(off / np.sqrt((off**2).mean(axis=1, keepdims=True)) / 0.03, -128, 127)
    assert np.abs(evaluate(kernel, rows) - wanted).max() < 1


@pytest.mark.few(1)
@needs_cc
@pytest.mark.parametrize(
    ("core", "floats"), [("cortex-m4f", False), ("x86-64-v3", False), ("x86-64-v3", True)]
)
def test_a_net_of_chosen_kernels_is_that_of_the_reference(
    net: FloatNet, samples: list[list[torch.Tensor]], board: Machine, tmp_path: Path, core: str, floats: bool
) -> None:
    whole = quantize(net, ranges_of(net, samples), core=core, floats=floats)
    assert (KernelForm.FLOAT in whole.forms.values()) == floats
    compiled = compile_net(whole, board, ram=40_000)
    planned = compiled.planned
    assert judge(planned.tiled.graph, planned.executable, planned.plan, board).ok
    run = run_on_host(compiled.write(tmp_path / "out"), [compiled.sample(*one) for one in samples[:3]])
    reference = NetEvaluator(whole.graph, whole.constants, whole.programs)
    for one, found in zip(samples, run.outputs, strict=False):
        given = np.clip(np.rint(one[0].numpy() / whole.inputs[0].scale), -128, 127).astype(np.int64)
        wanted = reference([given]).ravel()
        got = np.frombuffer(found, whole.output.dtype)
        if floats:
            assert np.abs((got - wanted) * whole.output.scale).max() < 0.1
        else:
            assert np.array_equal(got, wanted)


def test_damaged_kernels_are_refused(net: FloatNet, samples: list[list[torch.Tensor]]) -> None:
    whole = quantize(net, ranges_of(net, samples), core="x86-64-v3", floats=True)
    for at, kernel in enumerate(whole.programs):
        if not isinstance(kernel, FloatRows):
            continue
        other = RowOp.GELU if kernel.op is not RowOp.GELU else RowOp.SOFTMAX
        for wrong in (
            replace(kernel, scale=math.nan), replace(kernel, target=0.0), replace(kernel, op=other),
            replace(kernel, length=kernel.length + 1), replace(kernel, name="other"),
        ):  # fmt: skip
            programs = [*whole.programs[:at], wrong, *whole.programs[at + 1 :]]
            with pytest.raises(JudgeError):
                prove_net(whole.graph, whole.constants, programs)


def test_no_core_takes_what_was_always_taken_and_unknown_ones_are_refused() -> None:
    assert form_of(KernelForms().softmax(0.05, 64)) is KernelForm.POLYNOMIAL
    assert form_of(KernelForms().gelu(0.05, 0.05, 64)) is KernelForm.TABLE
    with pytest.raises(TightropeError, match="no costs of kernels are known for core 'z80'"):
        KernelForms("z80")
    with pytest.raises(TightropeError, match="no core is given"):
        KernelForms(floats=True)


MAIN = """#include <stdint.h>
#include <stdio.h>
{text}
int main(void) {{
  static {kernel.source} x[{size}];
  static {kernel.into} y[{size}];
  if (fread(x, sizeof *x, {size}, stdin) != {size}) return 1;
  {kernel.name}(x, y, {rows});
  return fwrite(y, sizeof *y, {size}, stdout) == {size} ? 0 : 1;
}}
"""


@needs_cc
@pytest.mark.parametrize(
    "kernel",
    [
        FloatRows("softmax", 197, RowOp.SOFTMAX, 0.07),
        FloatRows("steep_softmax", 5, RowOp.SOFTMAX, 0.9),
        FloatRows("gelu", 64, RowOp.GELU, 0.03, 0.02),
        FloatRows("fine_gelu", 33, RowOp.GELU, 0.004, 0.002),
        FloatRows("layer_norm", 96, RowOp.LAYER_NORM, 1.0, 0.03, (1.1,) * 96, (-0.3,) * 96),
    ],
    ids=lambda kernel: kernel.name,
)
def test_a_float_kernel_is_within_a_unit_and_has_no_undefined_behaviour(
    kernel: FloatRows, tmp_path: Path
) -> None:
    source, into = (np.dtype(name.removesuffix("_t")) for name in (kernel.source, kernel.into))
    limits = np.iinfo(source)
    rows = np.random.default_rng(6).integers(limits.min, limits.max + 1, (64, kernel.length))
    rows[0], rows[1], rows[2], rows[3, ::2] = limits.min, limits.max, 0, limits.max
    (tmp_path / "kernel.c").write_text(
        MAIN.format(text=float_section([kernel]), kernel=kernel, rows=len(rows), size=rows.size)
    )
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    compiler = c_compiler()
    assert compiler is not None
    subprocess.run([compiler, *flags, "kernel.c", "-o", "kernel", "-lm"], cwd=tmp_path, check=True)
    given = rows.astype(source).tobytes()
    ran = subprocess.run([tmp_path / "kernel"], input=given, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    found = np.frombuffer(ran.stdout, into).reshape(rows.shape)
    assert np.abs(found - nearest(kernel, rows)).max() <= 1
