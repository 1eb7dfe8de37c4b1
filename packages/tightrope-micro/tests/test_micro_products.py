"""Products of 8-bit numbers: every form of a layer gives the bits of the reference."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tightrope.cli.machines import find_machine
from tightrope_micro import run_on_board, run_on_host
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.infer import capture_net, compile_net, ranges_of
from tightrope_micro.infer.compile import as_numbers
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.quantize import quantize

pytestmark = pytest.mark.skipif(c_compiler() is None, reason="no C compiler")
STACKS = (820, 900, 1200, 8192)
"""Room for no window, for some of one plane, for windows one at a time, and for two."""


def drawn(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Draw a net of a few layers, with and without groups, padding and strides."""
    draw = random.Random(f"products {seed}")
    channels, height, width = draw.choice((1, 2, 3, 8)), draw.randint(5, 11), draw.randint(5, 11)
    shape, layers = (1, channels, height, width), list[nn.Module]()
    given = channels
    for _ in range(draw.randint(1, 3)):
        kh, kw = draw.choice(((1, 1), (3, 3), (3, 3), (2, 3), (5, 1)))
        kind = draw.choice(("dense", "depth", "multiplied", "groups"))
        made = {"dense": draw.choice((1, 3, 4, 7)), "depth": given, "multiplied": 2 * given}.get(kind, given)
        groups = {"dense": 1, "groups": 2 if given % 2 == 0 else 1}.get(kind, given)
        padding = (draw.randint(0, kh // 2), draw.randint(0, kw // 2))
        stride = draw.choice((1, 1, 2))
        layers += [nn.Conv2d(given, made, (kh, kw), stride, padding, groups=groups), nn.ReLU()]
        given, height = made, (height + 2 * padding[0] - kh) // stride + 1
        width = (width + 2 * padding[1] - kw) // stride + 1
        if min(height, width) < 5:
            break
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(given * height * width, draw.choice((1, 3, 6)))
    ), shape


def compared(seed: int, folder: Path, *, board: bool = False) -> None:
    torch.manual_seed(seed)
    net, shape = drawn(seed)
    samples = [(torch.randn(shape),) for _ in range(4)]
    plain = capture_net(net.eval(), samples[0])
    whole = quantize(plain, ranges_of(plain, samples))
    numbers = as_numbers(samples[1][0], whole.inputs[0])
    right = NetEvaluator(whole.graph, whole.constants, whole.programs)([numbers]).ravel()
    for stack in STACKS:
        fast = compile_net(whole, find_machine("stm32h743"), ram=64 * 1024, stack=8192).fast_stack
        assert 800 < fast < 8192
        compiled = compile_net(whole, find_machine("stm32h743"), ram=64 * 1024, stack=stack)
        out = compiled.write(folder / f"{seed}-{stack}-{board}")
        sample = compiled.sample(*samples[1])
        run = run_on_board(out, [sample]) if board else run_on_host(out, [sample])
        assert (np.frombuffer(run.outputs[0], whole.output.dtype) == right).all(), (seed, stack)
        if board:
            assert run.stack <= stack


@pytest.mark.parametrize("seed", range(6))
def test_every_form_has_the_bits_of_the_reference(seed: int, tmp_path: Path) -> None:
    compared(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
def test_every_form_on_the_board_has_them_too_and_stays_within_its_stack(tmp_path: Path) -> None:
    for seed in range(100, 130):
        compared(seed, tmp_path)
        compared(seed, tmp_path, board=True)
