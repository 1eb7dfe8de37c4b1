"""The C of a plan, run on this computer, against PyTorch, the plan and the judge."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.micro.nets import NETS
from benchmarks.micro.trained import samples, train
from tightrope.core import Machine
from tightrope.judge import judge
from tightrope_micro import CompiledStep, HostRun, MicroStep, compile_step, run_on_host
from tightrope_micro.host import c_compiler
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.resident import floor_bytes
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES

needs_cc = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc or clang) is installed")
NUM_STEPS = 4


def rams(step: MicroStep, num: int) -> list[int]:
    """Limits from all that the step can use down to what its largest op needs, fragmentation aside."""
    floor = floor_bytes(step.graph)[0]
    whole = sum(s.size for s in step.graph.storages)
    shares = [k / (num - 1) for k in range(num)]
    return [
        STACK_RESERVE + STATIC_BYTES + round(floor * 1.1 + share * (whole - floor * 1.1)) for share in shares
    ]


def check_bytes(compiled: CompiledStep, run: HostRun, board: Machine) -> None:
    """Arena and pages as linked and counted, forecast, in the manifest, and as the judge derives them."""
    planned, graph = compiled.planned, compiled.planned.tiled.graph
    verdict = judge(graph, planned.executable, planned.plan, board)
    assert verdict.ok, verdict.problems
    assert run.arena == compiled.manifest.arena == planned.plan.forecast.arena == verdict.arena
    assert compiled.manifest.total <= compiled.manifest.ram
    for name in ("pages_in", "bytes_in", "pages_out", "bytes_out"):
        assert getattr(run.pages, name) == NUM_STEPS * getattr(compiled.manifest.pages, name)


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("name", NETS)
def test_weights_are_those_of_pytorch_and_bytes_those_of_the_forecast(
    name: str, steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    losses, state, batches = train(NETS[name], NUM_STEPS)
    for ram in rams(steps[name], 3):
        compiled = compile_step(steps[name], board, ram=ram)
        run = run_on_host(compiled.write(tmp_path / str(ram)), samples(compiled, batches))
        check_bytes(compiled, run, board)
        np.testing.assert_allclose(run.losses, losses, rtol=2e-6)
        trained = [one.name for one in compiled.manifest.held if one.kind != "input"]
        assert len(trained) >= 6
        for one in trained:
            np.testing.assert_allclose(
                np.frombuffer(run.values[one], np.float32), state[one], rtol=0, atol=1e-6
            )


@pytest.mark.slow
@needs_cc
def test_an_address_that_is_four_bytes_off_shows_in_the_weights(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    """The comparison with PyTorch can fail: every third call with one pointer moved gives other weights."""
    _, state, batches = train(NETS["normed"], NUM_STEPS)
    compiled = compile_step(steps["normed"], board, ram=rams(steps["normed"], 3)[0])
    lines = compiled.source.texts["step.c"].splitlines()
    calls = [k for k, line in enumerate(lines) if line.lstrip().startswith("k_conv2d(")]
    assert len(calls) == 6
    for number in calls[::3]:
        folder = compiled.write(tmp_path / str(number))
        head, _, tail = lines[number].partition("F(")
        at, _, rest = tail.partition(")")
        moved = int(at) - 4 if int(at) else 4
        wrong = [*lines[:number], f"{head}F({moved}){rest}", *lines[number + 1 :]]
        (folder / "step.c").write_text("\n".join(wrong) + "\n")
        run = run_on_host(folder, samples(compiled, batches))
        worst = max(
            np.abs(np.frombuffer(run.values[one.name], np.float32) - state[one.name]).max()
            for one in compiled.manifest.held
            if one.kind == "parameter"
        )
        assert worst > 1e-6


@pytest.mark.slow
@needs_cc
def test_the_update_makes_no_gradient_and_the_residual_adds_in_place(
    steps: dict[str, MicroStep], board: Machine
) -> None:
    compiled = compile_step(steps["residual"], board, ram=10**6)
    text = compiled.source.texts["step.c"]
    assert "k_conv2d_weight_sgd(" in text
    adds = [line for line in text.splitlines() if "k_add(" in line]
    assert adds
    assert all("in place" in line for line in adds)
    largest = max(storage.bytes for storage in compiled.step.graph.storages if not storage.external)
    assert largest == 16 * 32 * 32 * 4, "no gradient of a weight, the largest of which has 147,456 bytes"


@pytest.mark.slow
@needs_cc
def test_ops_that_run_again_for_less_energy_leave_the_same_bits(
    steps: dict[str, MicroStep], board: Machine, tmp_path: Path
) -> None:
    _, _, batches = train(NETS["residual"], NUM_STEPS)
    ram, found = 300_000, []
    for reruns in (True, False):
        economy = Economy(objective="joules", reruns=reruns, walks=300)
        compiled = compile_step(steps["residual"], board, ram=ram, economy=economy)
        run = run_on_host(compiled.write(tmp_path / str(reruns)), samples(compiled, batches))
        check_bytes(compiled, run, board)
        found.append((compiled.manifest.num_ops, compiled.manifest.joules, run))
    (again, joules, run), (once, most, other) = found
    assert again > once
    assert joules < most
    assert run.values == other.values
    assert run.losses == other.losses
