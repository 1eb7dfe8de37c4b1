"""D1: AdamW on the device. Steps whose gradients round once have the bits of PyTorch's fused AdamW.

A dense layer from one number to 64, batch 1, with a squared error: every product is rounded once, here as
there, so that parameter and moments can be compared to the bit. Nets of several layers add in another order;
they are compared within a tolerance, with the pages that two moments take beside those of plain SGD.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.micro.nets import Made, residual
from benchmarks.micro.rows import Row
from benchmarks.micro.trained import samples, train, worst
from tightrope.cli.machines import find_machine
from tightrope.judge import judge
from tightrope_micro import capture_step, compile_step, run_on_board, run_on_host
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK

_LIMIT = 235_000


class Exact(nn.Module):
    """One layer whose sums have one term."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 64, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.fc(x), y)


def exact() -> Made:
    """`Exact`, batch 1, with fused AdamW and every number other than by default."""
    torch.manual_seed(10)
    model = Exact()
    rule = torch.optim.AdamW(
        model.parameters(), lr=0.013, betas=(0.87, 0.983), eps=1e-7, weight_decay=0.03, fused=True
    )
    return model, (torch.randn(1, 1), torch.randn(1, 64)), rule


def with_adamw(make: Callable[[], Made], *, eps: float = 1e-8) -> Callable[[], Made]:
    """The same net with AdamW on all parameters."""

    def made() -> Made:
        model, args, _ = make()
        return model, args, torch.optim.AdamW(model.parameters(), lr=0.003, eps=eps, fused=True)

    return made


def d1(num_steps: int) -> list[Row]:
    """Bits of a layer after 100 steps on both benches; the residual net beside plain SGD."""
    return [_bits(100), _residual(num_steps)]


def _bits(num_steps: int) -> Row:
    _, state, batches = train(exact, num_steps)
    compiled = compile_step(capture_step(*exact()), find_machine("poet-cortex-m4f"), ram=8192)
    count = np.full(1, num_steps, np.float32)
    state["adamw.step"] = count
    said, held = [], True
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "out")
        for name, bench in (("this computer", run_on_host), ("the emulated Cortex-M4F", run_on_board)):
            found = bench(out, samples(compiled, batches)).values
            values = [one.name for one in compiled.manifest.held if one.kind != "input"]
            other = sum(
                int((np.frombuffer(found[one], np.uint32) != state[one].view(np.uint32)).sum())
                for one in values
            )
            held = held and not other
            said.append(f"{name}: {other} of {sum(len(state[one]) for one in values)} numbers differ")
    return Row(
        "D1", f"weight and moments after {num_steps} steps, bits of fused AdamW", "; ".join(said), held
    )


def _residual(num_steps: int) -> Row:
    make, machine = with_adamw(residual), find_machine("poet-cortex-m4f")
    _, state, batches = train(make, num_steps)
    state["adamw.step"] = np.full(1, num_steps, np.float32)
    plain = compile_step(capture_step(*residual()), machine, ram=_LIMIT).manifest
    compiled = compile_step(capture_step(*make()), machine, ram=_LIMIT)
    verdict = judge(compiled.planned.tiled.graph, compiled.planned.executable, compiled.planned.plan, machine)
    with tempfile.TemporaryDirectory() as folder:
        found = run_on_board(compiled.write(Path(folder) / "out"), samples(compiled, batches), count=True)
    ours, pages = compiled.manifest, compiled.manifest.pages
    counted = all(
        getattr(found.pages, name) == num_steps * getattr(pages, name) for name in pages.__struct_fields__
    )
    apart = worst(found, compiled, state)
    held = found.ram <= _LIMIT and counted and verdict.ok and verdict.arena == found.arena == ours.arena
    said = (
        f"RAM {found.ram} B (arena {found.arena}, stack {found.stack}), code and constants {found.rom} B, "
        f"storage {ours.storage} B, plain SGD {plain.storage}; bytes in and out a step {pages.bytes_in}, "
        f"{pages.bytes_out}, plain SGD {plain.pages.bytes_in}, {plain.pages.bytes_out}; "
        f"{found.ticks * INSTRUCTIONS_PER_TICK // num_steps:,} instructions a step; modelled "
        f"{ours.seconds:.2f} s, {ours.joules:.3f} J, plain SGD {plain.seconds:.2f}, {plain.joules:.3f}; "
        f"largest difference of a weight or moment after {num_steps} steps {apart:.1e}"
    )
    return Row(
        "D1", f"residual net with AdamW within {_LIMIT} B behind the fence, judged = counted", said, held
    )
