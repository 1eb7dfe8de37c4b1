"""AdamW on the device: the bits of PyTorch's fused AdamW, both moments and a count of steps in storage."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from test_micro_host import check_bytes
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.adamw import exact, with_adamw
from benchmarks.micro.nets import NETS
from benchmarks.micro.trained import samples, train
from tightrope.core import Machine, TightropeError
from tightrope_micro import (
    BoardRun,
    CompiledStep,
    HostRun,
    capture_step,
    compile_step,
    run_on_board,
    run_on_host,
)
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.paging.resident import floor_bytes
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
needs_board = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all tools are there")
Bench = Callable[..., HostRun | BoardRun]


def same_bits(bench: Bench, board: Machine, folder: Path, num_steps: int) -> CompiledStep:
    """Every parameter and both moments after some steps, to the bit; the losses too."""
    losses, state, batches = train(exact, num_steps)
    compiled = compile_step(capture_step(*exact()), board, ram=8192)
    run = bench(compiled.write(folder), samples(compiled, batches))
    held = {one.name: one for one in compiled.manifest.held if one.kind != "input"}
    assert {"fc.weight", "fc.weight.exp_avg", "fc.weight.exp_avg_sq", "adamw.step"} <= set(held)
    for name in held:
        wanted = np.full(1, num_steps, np.float32) if name == "adamw.step" else state[name]
        assert np.frombuffer(run.values[name], np.float32).tobytes() == wanted.tobytes(), name
    assert len(set(losses)) == num_steps
    return compiled


@pytest.mark.slow
@needs_cc
def test_twenty_steps_on_this_computer_have_the_bits_of_fused_adamw(board: Machine, tmp_path: Path) -> None:
    compiled = same_bits(run_on_host, board, tmp_path / "out", 20)
    text = compiled.source.texts["step.c"]
    assert "k_linear_weight_adamw(" in text
    assert text.count("k_adamw_rates(") == 1


@needs_board
def test_twenty_steps_on_the_emulated_core_have_the_bits_of_fused_adamw(
    board: Machine, tmp_path: Path
) -> None:
    same_bits(run_on_board, board, tmp_path / "out", 20)


@pytest.mark.slow
@needs_cc
def test_a_rule_that_is_changed_shows_in_the_bits(board: Machine, tmp_path: Path) -> None:
    """The comparison can fail: one correction less, or sum and product rounded apart."""
    _, state, batches = train(exact, 3)
    compiled = compile_step(capture_step(*exact()), board, ram=8192)
    for file, right, wrong in (
        ("kernels.c", "rates[0] = (float)(-rate / (1.0 - first));", "rates[0] = (float)-rate; (void)first;"),
        ("support.h", "__builtin_fmaf(rule.first, d - m[at], m[at])", "rule.first * (d - m[at]) + m[at]"),
    ):
        folder = compiled.write(tmp_path / file)
        text = (folder / file).read_text()
        assert text.count(right) == 1
        (folder / file).write_text(text.replace(right, wrong))
        run = run_on_host(folder, samples(compiled, batches))
        assert any(
            np.frombuffer(run.values[name], np.float32).tobytes() != state[name].tobytes()
            for name in ("fc.weight", "fc.weight.exp_avg")
        )


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("name", ["normed", "dense", "sentences"])
def test_whole_nets_are_as_in_pytorch_at_every_limit(name: str, board: Machine, tmp_path: Path) -> None:
    make = with_adamw(NETS[name], eps=1e-3)
    _, state, batches = train(make, 4)
    step = capture_step(*make())
    floor, whole = floor_bytes(step.graph)[0], sum(s.size for s in step.graph.storages)
    for room in (whole, round(1.1 * floor), round(0.6 * floor) if name == "dense" else floor + 2048):
        compiled = compile_step(step, board, ram=STACK_RESERVE + STATIC_BYTES + room)
        run = run_on_host(compiled.write(tmp_path / str(room)), samples(compiled, batches))
        check_bytes(compiled, run, board)
        for one in compiled.manifest.held:
            if one.kind != "input" and one.name != "adamw.step":
                found = np.frombuffer(run.values[one.name], np.float32)
                np.testing.assert_allclose(found, state[one.name], rtol=0, atol=1e-6)


def test_two_groups_with_rates_of_their_own_count_on_their_own(board: Machine) -> None:
    model, args, _ = NETS["dense"]()
    assert isinstance(model.first, nn.Linear)
    assert isinstance(model.second, nn.Linear)
    groups = [
        {"params": model.first.parameters(), "lr": 1e-3},
        {"params": model.second.parameters(), "lr": 1e-2},
    ]
    step = capture_step(model, args, torch.optim.AdamW(groups))
    assert {"adamw.step", "adamw.step1"} <= set(step.names.values())


@pytest.mark.parametrize("wrong", [{"amsgrad": True}, {"lr": torch.tensor(0.1)}, {"betas": (0.3, 0.9)}])
def test_what_the_kernel_does_not_compute_is_refused(wrong: dict[str, object]) -> None:
    model = nn.Linear(4, 4)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = model

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.fc(x), y)

    rule = torch.optim.AdamW(model.parameters(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="has no kernel in C"):
        capture_step(Loss(), (torch.ones(2, 4), torch.ones(2, 4)), rule)
