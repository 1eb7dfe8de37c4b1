"""The C of a plan on an emulated Cortex-M4F: weights, RAM with the stack, the fence, counts."""

from pathlib import Path

import numpy as np
import pytest
from test_micro_host import NUM_STEPS, check_bytes

from benchmarks.micro.nets import NETS
from benchmarks.micro.trained import samples, train
from tightrope.core import Machine, NativeError
from tightrope_micro import FenceError, MicroStep, compile_step, run_on_board
from tightrope_micro.emulate import RAM_BASE, fenced, missing_tools

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all tools are there")


@pytest.mark.slow
def test_the_residual_net_trains_within_235000_bytes_of_all_ram(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    _, state, batches = train(NETS["residual"], NUM_STEPS)
    compiled = compile_step(steps["residual"], board, ram=235_000)
    run = run_on_board(compiled.write(tmp_path / "out"), samples(compiled, batches))
    check_bytes(compiled, run, board)
    assert run.ram <= 235_000
    assert run.static - run.arena <= compiled.manifest.static
    assert 0 < run.stack <= compiled.manifest.stack
    for name in (one.name for one in compiled.manifest.held if one.kind == "parameter"):
        np.testing.assert_allclose(
            np.frombuffer(run.values[name], np.float32), state[name], rtol=0, atol=1e-6
        )


def test_two_runs_take_the_same_number_of_instructions(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    compiled = compile_step(steps["pooled"], board, ram=20_000)
    folder = compiled.write(tmp_path / "out")
    sample = [(folder / "sample.bin").read_bytes()] * 2
    first, second = (run_on_board(folder, sample, count=True) for _ in range(2))
    assert first.ticks == second.ticks > 0
    assert first == second


@pytest.mark.parametrize("where", ["behind the RAM", "at zero"])
def test_a_stray_write_faults_at_its_address(
    where: str, steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    compiled = compile_step(steps["pooled"], board, ram=20_000)
    folder = compiled.write(tmp_path / "out")
    address = 0 if where == "at zero" else RAM_BASE + fenced(20_000)
    with pytest.raises(FenceError, match=f"0x{address:08x}") as caught:
        run_on_board(folder, [(folder / "sample.bin").read_bytes()], probe=address)
    assert caught.value.address == address


def test_a_plan_that_takes_all_of_a_limit_between_two_fences_runs(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    total = compile_step(steps["pooled"], board, ram=2**20).manifest.total
    assert fenced(total) < total
    folder = compile_step(steps["pooled"], board, ram=total).write(tmp_path / "out")
    run = run_on_board(folder, [(folder / "sample.bin").read_bytes()])
    assert run.ram <= total < run.fence <= total * (1 + 1 / 64)


def test_a_plan_for_more_ram_than_the_board_has_does_not_link(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    compiled = compile_step(steps["residual"], board, ram=300_000)
    folder = compiled.write(tmp_path / "out")
    with pytest.raises(NativeError, match="overflowed by"):
        run_on_board(folder, [(folder / "sample.bin").read_bytes()], ram=262_144)
