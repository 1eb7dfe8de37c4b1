"""Integer kernels: within a unit of the float functions, proved in 32 bits, the same numbers in C."""

import math
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tightrope.core import JudgeError, TightropeError
from tightrope_micro.host import c_compiler
from tightrope_micro.integer import (
    HEADER,
    RowKind,
    RowProgram,
    emitted,
    evaluate,
    gelu,
    layer_norm,
    proved,
    softmax,
)
from tightrope_micro.integer.kernels import i_exp_softmax, plain_layer_norm

Rows = NDArray[np.integer]
compiled = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")
SCALES = [0.003 * 1.06**k for k in range(100)]


def scores(rng: np.random.Generator, num: int, length: int) -> Rows:
    """Drawn rows, and rows that sums and shifts find hard."""
    rows = np.concatenate(
        [
            rng.integers(-128, 128, (num, length)),
            np.clip(rng.normal(0, 25, (num, length)), -128, 127).astype(int),
        ]
    )
    hard = np.full((6, length), -128)
    hard[0] = 127
    hard[1, 0] = hard[2, -1] = 127
    hard[3, ::2] = 127
    hard[4], hard[5, : length // 2] = 0, -127
    return np.concatenate([rows, hard])


def exact_softmax(rows: Rows, scale: float) -> NDArray[np.float64]:
    powers = np.exp((rows - rows.max(axis=1, keepdims=True)) * scale)
    shares: NDArray[np.float64] = 255 * powers / powers.sum(axis=1, keepdims=True)
    return shares


@pytest.mark.parametrize("length", [1, 2, 17, 64, 197, 512, 1000])
def test_a_softmax_is_within_a_unit_of_the_float_one(length: int) -> None:
    rng = np.random.default_rng(length)
    for scale in SCALES[::9]:
        rows = scores(rng, 100, length)
        for table in (False, True):
            found = evaluate(softmax(scale, length, table=table), rows)
            assert np.abs(found - exact_softmax(rows, scale)).max() < 0.6


def test_a_gelu_is_the_rounded_float_one_for_every_input_and_1000_scales() -> None:
    rng = np.random.default_rng(0)
    every = np.arange(-128, 128)[None, :]
    exact = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))
    for scale, target in np.exp(rng.uniform(np.log(1e-3), np.log(0.2), (1000, 2))):
        found = evaluate(gelu(scale, target, 256), every)
        wanted = np.clip(exact(every * scale) / target, -128, 127)
        assert np.abs(found - wanted).max() <= 0.5 + 1e-9


def norms(rng: np.random.Generator, length: int) -> Rows:
    single = np.zeros((4, length), dtype=int)
    single[0, 0], single[1, -1], single[2], single[3, ::2] = 1, -32768, 777, 32767
    return np.concatenate(
        [
            rng.integers(-32768, 32768, (200, length)), rng.normal(100, 300, (200, length)).astype(int),
            rng.integers(-2, 3, (200, length)), single,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("length", [2, 16, 64, 192, 384, 768])
def test_a_layer_norm_is_within_a_unit_of_the_float_one(length: int) -> None:
    rng = np.random.default_rng(length)
    for spread, target in ((0.1, 0.05), (0.5, 0.02), (0.0, 0.2)):
        gamma, beta = rng.normal(1, spread, length), rng.normal(0, 2 * spread, length)
        rows = norms(rng, length)
        off = rows - rows.mean(axis=1, keepdims=True)
        deviation = np.sqrt(np.maximum((off**2).mean(axis=1, keepdims=True), 1e-30))
        wanted = np.clip((off / deviation * gamma + beta) / target, -128, 127)
        assert np.abs(evaluate(layer_norm(gamma, beta, target), rows) - wanted).max() < 1


def test_the_proof_refuses_what_needs_more_than_32_bits() -> None:
    for scale in (0.1, 0.05, 0.01):
        with pytest.raises(JudgeError, match=r"shl, from .* leaves int32_t"):
            proved(i_exp_softmax(scale, 197))
    with pytest.raises(JudgeError, match=r"mul, from 0 to .* leaves int32_t"):
        proved(plain_layer_norm([1.0] * 192, [0.0] * 192, 0.05))


def test_what_the_proof_refuses_is_wrong_in_32_bits_and_what_it_passes_is_not() -> None:
    rng = np.random.default_rng(3)
    rows, wide = scores(rng, 200, 64), rng.integers(-20_000, 20_000, (400, 64))
    right = exact_softmax(rows, 0.05)
    control = i_exp_softmax(0.05, 64)
    assert np.abs(evaluate(control, rows) - right).mean() < 1
    forced = evaluate(control, rows, wrapped=True)
    sharp = right.max(axis=1) > 1.2 * np.sort(right, axis=1)[:, -2]
    assert (forced.argmax(axis=1) == right.argmax(axis=1))[sharp].mean() < 0.5
    plain = plain_layer_norm([1.0] * 64, [0.0] * 64, 0.05)
    exact = evaluate(plain, wide)
    assert np.abs(exact - evaluate(layer_norm([1.0] * 64, [0.0] * 64, 0.05), wide)).max() <= 1
    assert (np.abs(evaluate(plain, wide, wrapped=True) - exact) > 10).mean() > 0.5
    for program, given in ((softmax(0.05, 64), rows), (layer_norm([1.0] * 64, [0.0] * 64, 0.05), wide)):
        assert np.array_equal(evaluate(program, given), evaluate(program, given, wrapped=True))


PROGRAMS: dict[str, Callable[[], RowProgram]] = {
    "softmax": lambda: softmax(0.07, 197),
    "short softmax": lambda: softmax(0.4, 3),
    "gelu": lambda: gelu(0.03, 0.02, 40),
    "layer norm": lambda: layer_norm(np.linspace(0.5, 1.5, 96), np.linspace(-1, 1, 96), 0.03),
    "wide layer norm": lambda: layer_norm([1.0] * 768, [0.0] * 768, 0.05),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_stays_in_the_range_that_is_proved(name: str) -> None:
    program = PROGRAMS[name]()
    ranges, rng = proved(program), np.random.default_rng(1)
    low, high = program.values[0].numbers
    rows = rng.integers(low, high + 1, (500, program.length))
    rows[0], rows[1], rows[2, ::2] = low, high, high
    for number, interval in enumerate(ranges):
        seen = evaluate(replace(program, values=program.values[: number + 1]), rows)
        assert interval.low <= seen.min()
        assert seen.max() <= interval.high


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_damaged_programs_are_refused_or_stay_in_32_bits(name: str) -> None:
    """What passes the proof is the same wrapped and exact, whatever somebody did to the program."""
    rng, refused = random.Random(5), 0
    draw = np.random.default_rng(2)
    for _ in range(150):
        program = PROGRAMS[name]()
        at = rng.randrange(1, len(program.values))
        value = program.values[at]
        if value.kind is RowKind.CONST:
            value = value._replace(numbers=(value.numbers[0] * rng.choice((-1, 2, 8, 1000)),))
        elif value.bits:
            value = value._replace(bits=value.bits + rng.choice((-3, 1, 4)))
        elif value.operands:
            place = rng.randrange(len(value.operands))
            operands = list(value.operands)
            operands[place] = rng.randrange(at)
            value = value._replace(operands=tuple(operands))
        program.values[at] = value
        try:
            proved(program)
        except JudgeError:
            refused += 1
            continue
        low, high = program.values[0].numbers
        rows = draw.integers(low, high + 1, (50, program.length))
        assert np.array_equal(evaluate(program, rows), evaluate(program, rows, wrapped=True))
    assert refused >= (0 if name == "gelu" else 30)


MAIN = """#include <stdio.h>
int main(void) {{
  static {source} x[{size}];
  static {target} y[{size}];
  if (fread(x, sizeof *x, {size}, stdin) != {size}) return 1;
  {name}(x, y, {rows});
  return fwrite(y, sizeof *y, {size}, stdout) == {size} ? 0 : 1;
}}
"""


@compiled
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_c_has_the_numbers_of_the_reference_and_no_undefined_behaviour(name: str, tmp_path: Path) -> None:
    program, rng = PROGRAMS[name](), np.random.default_rng(4)
    low, high = program.values[0].numbers
    rows = rng.integers(low, high + 1, (64, program.length))
    rows[0], rows[1], rows[2, ::2], rows[3] = low, high, high, 0
    main = MAIN.format(
        source=program.source, target=program.target, name=program.name, rows=64, size=rows.size
    )
    (tmp_path / "kernel.c").write_text(HEADER + emitted(program) + main)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    compiler = c_compiler()
    assert compiler is not None
    subprocess.run([compiler, *flags, "kernel.c", "-o", "kernel"], cwd=tmp_path, check=True)
    types = {"int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16}
    given = rows.astype(types[program.source]).tobytes()
    ran = subprocess.run([tmp_path / "kernel"], input=given, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    found = np.frombuffer(ran.stdout, types[program.target]).reshape(rows.shape)
    assert np.array_equal(found, evaluate(program, rows))


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="needs arm-none-eabi-gcc")
def test_a_core_without_floating_point_calls_nothing_for_it(tmp_path: Path) -> None:
    text = HEADER + "".join(emitted(make()) for make in PROGRAMS.values())
    (tmp_path / "kernels.c").write_text(text)
    tool = ["arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-std=c11", "-O2", "-c", "kernels.c"]
    subprocess.run(tool, cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["arm-none-eabi-objdump", "-dr", "kernels.o"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "softmax_197" in listed
    assert "__aeabi" not in listed  # neither floats nor 64-bit division


def test_wrong_arguments_are_refused() -> None:
    for make in (
        lambda: softmax(0, 4), lambda: softmax(0.1, 0), lambda: gelu(-1, 1, 4),
        lambda: layer_norm([1.0], [], 1),
    ):  # fmt: skip
        with pytest.raises(TightropeError):
            make()
    with pytest.raises(TightropeError, match="no 32-bit format fits softmax"):
        softmax(0.1, 2**24)
