"""P2 beside ExecuTorch, P3 and P7: arenas of other nets, and their weights beside PyTorch's."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.micro.nets import Made, bert_tiny, gestures, lenet, poet_resnet, residual
from benchmarks.micro.rows import Row
from benchmarks.micro.trained import samples, train, worst
from tightrope.cli.machines import find_machine
from tightrope.core import InfeasibleError
from tightrope_micro import (
    BoardRun,
    CompiledStep,
    HostRun,
    capture_step,
    compile_step,
    run_on_board,
    run_on_host,
)
from tightrope_micro.planning import STACK_RESERVE, STATIC_BYTES

_EQUAL = 1e-6
_QUARTER, _EIGHTH = 262_144, 131_072


@dataclass(frozen=True)
class _Trained:
    """A net as it was compiled and trained.

    Attributes:
        compiled: within the limit.
        run: what it left.
        apart: largest difference of a value from PyTorch.
        seconds: that building and running took on this computer.
    """

    compiled: CompiledStep
    run: HostRun | BoardRun
    apart: float
    seconds: float


def _trained(make: Callable[[], Made], ram: int, num_steps: int, *, classes: int, board: bool) -> _Trained:
    compiled = compile_step(capture_step(*make()), find_machine("poet-cortex-m4f"), ram=ram)
    _, state, batches = train(make, num_steps, classes=classes)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out, data = compiled.write(Path(folder) / "out"), samples(compiled, batches)
        run = run_on_board(out, data) if board else run_on_host(out, data)
    return _Trained(compiled, run, worst(run, compiled, state), time.perf_counter() - start)


def planned_by_peer(python: str, name: str, *, infer: bool = False) -> dict[str, int] | None:
    """Ask ExecuTorch, by another interpreter, for its planned buffers; None without one."""
    if not python:
        return None
    script = Path(__file__).with_name("executorch_bytes.py")
    done = subprocess.run(
        [python, str(script), name, *(["infer"] if infer else [])],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def p2(python: str, num_steps: int) -> list[Row]:
    """Arena with updates fused and values written over, then with pages and tiles, beside ExecuTorch's."""
    rows = []
    limits = (
        (lenet, 65_536, 10),
        (gestures, 6_144, 4),
        (residual, 235_000 - STACK_RESERVE - STATIC_BYTES, 10),
    )
    for make, limit, classes in limits:
        ram = limit + STACK_RESERVE + STATIC_BYTES
        found = _trained(make, ram, num_steps, classes=classes, board=False)
        fused = _without_activations_in_storage(make)
        peer, said = planned_by_peer(python, make.__name__), ""
        arena = found.run.arena
        held = arena <= limit and found.apart <= _EQUAL
        claim = f"arena <= {limit} B"
        if peer is not None:
            said = f"ExecuTorch plans {peer['planned']} B beside {peer['weights']} B of weights: "
            said += f"{peer['planned'] / fused:.2f} times the first arena, "
            said += f"{peer['planned'] / arena:.2f} times the second"
        if make is residual:
            claim = "arena <= 1/5 of ExecuTorch's buffers"
            held = peer is not None and 5 * arena <= peer["planned"] and found.apart <= _EQUAL
            said = said or "not run: give --peer, an interpreter with executorch"
        ours = f"{make.__name__}: arena {fused} B with updates fused and in place, "
        ours += f"{arena} B with pages and tiles; "
        rows.append(Row("P2", claim, f"{ours}weights apart {found.apart:.1e}", held, said))
    return rows


def _without_activations_in_storage(make: Callable[[], Made]) -> int:
    """Bytes of the arena where weights alone are paged: the least that writes no more out than weights."""
    step, machine = capture_step(*make()), find_machine("poet-cortex-m4f")
    least = compile_step(step, machine, ram=2**22, tiles=False).source
    low, high = 0, int(least.arena)
    while high - low > 64:
        middle = (low + high) // 2
        try:
            ram = middle + STACK_RESERVE + STATIC_BYTES
            found = compile_step(step, machine, ram=ram, tiles=False).source
        except InfeasibleError:
            low = middle
            continue
        if found.pages.bytes_out > least.pages.bytes_out:
            low = middle
        else:
            high = min(middle, found.arena)
    return high


def p3(num_steps: int) -> list[Row]:
    """POET's own net for small images: parameters, gradients and the residual backward counted."""
    rows = []
    for bar, limit in (("P3", _QUARTER), ("P3 stretch", _EIGHTH)):
        found = _trained(poet_resnet, limit, num_steps, classes=10, board=True)
        rows.append(_within(bar, "poet_resnet", found, _EQUAL, limit=limit))
    try:
        compile_step(capture_step(*poet_resnet()), find_machine("poet-cortex-m4f"), ram=10_000)
    except InfeasibleError as error:
        least = error.smallest_found or error.lower_bound
        rows[-1] = replace(rows[-1], ours=f"{rows[-1].ours}; smallest limit found {least} B")
    return rows


def p7(num_steps: int) -> list[Row]:
    """An encoder of two blocks, as wide as BERT-tiny."""
    found = _trained(bert_tiny, _QUARTER, num_steps, classes=10, board=True)
    return [_within("P7", "bert_tiny", found, 1e-5, seconds=60.0 * num_steps)]


def _within(
    bar: str, name: str, found: _Trained, equal: float, *, seconds: float | None = None, limit: int = _QUARTER
) -> Row:
    run, manifest = found.run, found.compiled.manifest
    assert isinstance(run, BoardRun)
    held = run.ram <= limit and found.apart <= equal and run.arena == manifest.arena
    held = held and run.stack <= manifest.stack
    held = held and (seconds is None or found.seconds <= seconds)
    weights = sum(one.bytes for one in manifest.held if one.kind == "parameter")
    claim = f"all RAM <= {limit} B, weights within {equal:g}"
    claim += f", <= {seconds:g} s emulated" if seconds else ""
    ours = f"{name}, {weights} B of weights: RAM {run.ram} B behind the fence "
    ours += f"(arena {run.arena}, stack {run.stack} of {manifest.stack}), "
    ours += f"apart {found.apart:.1e} after {len(run.losses)} steps, {found.seconds:.1f} s with the build; "
    ours += (
        f"code and constants {run.rom} B; modelled {manifest.seconds:.1f} s, {manifest.joules:.3f} J a step"
    )
    return Row(bar, claim, ours, held)
