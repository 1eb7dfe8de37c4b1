"""Loops over time as kernels, against eager and Inductor (L1), and their certificates (L3)."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from msgspec.structs import replace
from rich.console import Console
from torch import Tensor, nn

from benchmarks.forms.cells import (
    GruLoop,
    LoopNet,
    LstmLoop,
    MinimalLoop,
    RnnLoop,
    elements,
    watched,
)
from benchmarks.forms.hypergraphs import _mean, _over
from tightrope.core import CaptureError, JudgeError
from tightrope_forms.judge.loops import interpret, judge_by_counting, judge_by_isl
from tightrope_forms.loops import optimise_loops
from tightrope_forms.loops.order import OrderProof
from tightrope_forms.values.loops import LoopProgram

Case = tuple[type[LoopNet], int, int, int]
TUNED: Final[tuple[Case, ...]] = (
    (LstmLoop, 16, 64, 4), (LstmLoop, 64, 64, 4), (LstmLoop, 256, 64, 4), (GruLoop, 64, 64, 4),
    (GruLoop, 256, 64, 16), (GruLoop, 33, 128, 1),
)  # fmt: skip
"""Cell, hidden, steps, batch: looked at while kernels were written."""
HELD_OUT: Final[tuple[Case, ...]] = (
    (LstmLoop, 32, 512, 1), (LstmLoop, 128, 128, 8), (GruLoop, 100, 96, 3), (MinimalLoop, 16, 256, 4),
    (MinimalLoop, 64, 64, 4), (MinimalLoop, 200, 64, 5),
)  # fmt: skip
"""Measured for the first time when all was written."""
WHOLE: Final[tuple[Case, ...]] = ((LstmLoop, 64, 64, 4),)
"""Where Inductor compiles the whole loop, which takes it a CPU minute; it takes four for ``MinimalLoop``."""
BY_CELL: Final[tuple[Case, ...]] = ((LstmLoop, 16, 64, 4), (GruLoop, 100, 96, 3), (MinimalLoop, 16, 256, 4))
"""Where Inductor compiles a step, called in a loop."""


def _net(case: Case, dtype: torch.dtype = torch.float32) -> tuple[LoopNet, Tensor]:
    kind, hidden, steps, batch = case
    torch.manual_seed(0)
    return kind(hidden, hidden).to(dtype), torch.randn(steps, batch, hidden).to(dtype)


def _step(call: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        net.zero_grad()
        call(x).square().sum().backward()  # type: ignore[no-untyped-call]

    return run


def _gradients(call: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> list[Tensor]:
    _step(call, net, x)()
    return [call(x).detach(), *(one.grad.clone() for one in net.parameters() if one.grad is not None)]


def _kept(call: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> int:
    """Count the bytes that a call keeps for its backward, weights and inputs left out."""
    own = {one.untyped_storage().data_ptr() for one in (*net.parameters(), x)}
    kept: dict[int, int] = {}

    def pack(one: Tensor) -> Tensor:
        where = one.untyped_storage()
        if where.data_ptr() not in own:
            kept[where.data_ptr()] = where.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        made = call(x)
    del made
    return sum(kept.values())


def _seconds(call: Callable[[], object]) -> float:
    """Measure CPU time of this process and of those that it waits for, such as compilers."""
    before = os.times()
    call()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def cells(data: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """L1: print times, first calls, bytes and errors of kernels, a line a cell."""
    del data
    rows = []
    console.print(
        f"{'cell, hidden, steps, batch':<30}{'eager/ours':>11}{'first':>8}{'kept':>8}{'eps':>6}{'error':>7}"
    )
    old = dict(os.environ)
    with TemporaryDirectory() as folder:  # nothing is compiled already
        os.environ |= {
            "TIGHTROPE_CACHE": folder,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        for case in (*TUNED, *HELD_OUT):
            rows.append(_row(case, pairs))
            row = rows[-1]
            console.print(
                f"{row['name']:<30}{row['eager']:>10.2f}x{row['first']:>7.1f}s{row['kept']:>8.3f}"
                f"{row['eps']:>6.1f}{row['error']:>7.2f}{'' if row['held_out'] else '  tuned'}{row['said']}"
            )
        _with_inductor(rows, console, pairs)
    os.environ.clear()
    os.environ |= old
    for what, some in (("all", rows), ("held out", [row for row in rows if row["held_out"]])):
        ratios = [row["eager"] for row in some]
        console.print(
            f"eager over ours, {what}: geometric mean {_mean(ratios):.2f}x, lowest {min(ratios):.2f}x"
        )
    for key, what in (("inductor", "Inductor of the whole loop"), ("by_cell", "Inductor of a step")):
        if found := [row[key] for row in rows if key in row]:
            console.print(f"{what} over ours: geometric mean {_mean(found):.2f}x, lowest {min(found):.2f}x")
    if found := [row["inductor_first"] / row["first"] for row in rows if "inductor_first" in row]:
        console.print(f"first call, CPU time, Inductor over ours: {min(found):.1f}x at least")
    console.print(
        f"bytes kept over eager's: at most {max(row['kept'] for row in rows):.3f}; "
        f"errors over eager's, both against float64: at most {max(row['error'] for row in rows):.2f}"
    )
    return rows


def _row(case: Case, pairs: int) -> dict[str, Any]:
    net, x = _net(case)
    looped = optimise_loops(net)
    first = _seconds(_step(looped, net, x))
    ours, eager = _gradients(looped, net, x), _gradients(net, net, x)
    exact = _gradients(*((_net(case, torch.float64)[0],) * 2), x.double())
    eps = torch.finfo(torch.float32).eps
    largest = [float(one.abs().max()) for one in exact]
    apart = [float((a - b).abs().max()) / (eps * m) for a, b, m in zip(ours, eager, largest, strict=True)]
    errors = [
        max(float((a - c).abs().max()), eps * m) / max(float((b - c).abs().max()), eps * m)
        for a, b, c, m in zip(ours, eager, exact, largest, strict=True)
    ]
    return {
        "name": f"{case[0].__name__[:-4]:<8}{case[1]:>4}{case[2]:>5}{case[3]:>4}", "case": repr(case[1:]),
        "held_out": case in HELD_OUT, "first": first,
        "eager": _over(_step(net, net, x), _step(looped, net, x), 1e9 * (case[2] > 128), pairs),
        "kept": _kept(looped, net, x) / _kept(net, net, x), "eps": max(apart), "error": max(errors),
        "said": "".join(f"  {one}" for one in looped.said),
        "removed": [one._asdict() for one in looped.loops()],
    }  # fmt: skip


def _with_inductor(rows: list[dict[str, Any]], console: Console, pairs: int) -> None:
    """Compile the same loops by Inductor with empty caches, in this process alone."""
    by_case = dict(zip((*TUNED, *HELD_OUT), rows, strict=True))
    for cases, key in ((BY_CELL, "by_cell"), (WHOLE, "inductor")):
        for case in cases:
            net, x = _net(case)
            looped = optimise_loops(net)
            peer: Any = torch.compile(net)
            if key == "by_cell":
                peer, (other, _) = _net(case)[0], _net(case)
                peer.load_state_dict(net.state_dict())
                other = peer
                peer.cell = torch.compile(peer.cell)
            else:
                other = net
            looped(x)
            start = time.perf_counter()
            took = _seconds(_step(peer, other, x))
            wall = time.perf_counter() - start
            ratio = _over(_step(peer, other, x), _step(looped, net, x), 0, pairs)
            row = by_case[case]
            row[key], row[f"{key}_first"] = ratio, took
            console.print(
                f"{row['name']:<30}{key}: {ratio:.2f}x, first call {took:.1f} s of CPU time ({wall:.1f} s), "
                f"ours {row['first']:.1f} s"
            )
            torch.compiler.reset()


def certificates(data: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """L3: judge all orders by isl and by counting, run them by numbers, and refuse wrong ones."""
    del data, pairs
    rows = []
    for kind in (RnnLoop, LstmLoop, GruLoop, MinimalLoop):
        torch.manual_seed(0)
        looped, x = optimise_loops(kind(2, 3)), torch.randn(4, 2, 2)
        looped(x)
        with watched() as seen:
            looped(x).square().sum().backward()  # type: ignore[no-untyped-call]
        for program, steps, before, after in seen:
            start = time.thread_time()
            looked = judge_by_isl(program)
            took = time.thread_time() - start
            written = {one.target.array for one in program.statements}
            given = {
                key: value
                for key, value in elements(program, steps, before, first=True).items()
                if key[0] not in written
                or (key[0][0] in "sd" and key[1][0] == (0 if key[0][0] == "s" else steps))
            }
            counted = judge_by_counting(program, steps, given)
            made, wanted = interpret(program, steps, given), elements(program, steps, after, first=False)
            both = [key for key in wanted if key in made and key[0] in written]
            apart = max(abs(made[key] - wanted[key]) for key in both)
            refused = sum(_refused(one) for one in _wrong(program))
            way = "forward" if program.direction > 0 else "backward"
            console.print(
                f"{kind.__name__[:-4]:<8}{way:<9}{len(program.statements):>3} statements: {looked} pairs "
                f"by isl in {took:.1f} s, {counted} elements counted, {len(both)} run within {apart:.0e} "
                f"of the kernel, {refused} of 2 wrong orders refused by both"
            )
            rows.append(
                {"cell": kind.__name__, "way": way, "pairs": looked, "apart": apart, "refused": refused}
            )
    return rows


def _wrong(program: LoopProgram) -> list[LoopProgram]:
    """Reverse time, and call the sums of products parallel."""
    back = [
        replace(
            one, when=tuple(replace(t, affine=(t.affine[0], -t.affine[1], *t.affine[2:])) for t in one.when)
        )
        for one in program.statements
    ]
    return [replace(program, statements=tuple(back)), replace(program, parallel=(6,))]


def _refused(program: LoopProgram) -> bool:
    try:
        judge_by_isl(program)
    except JudgeError:
        try:
            OrderProof(program).check()
        except CaptureError:
            return True
    return False
