"""X4: several forwards before a backward: what waits costs what it keeps, and named budgets work.

**Eight forwards.** What one call keeps between forward and backward, K, and its peak P are read off the
executable that runs it alone. Eight forwards need 7 K + P, or 6 K + P + G where the caller already holds
the gradients G of the first backward, if that is more. The budget is what is held + 1.05 of that: no step
may be refused, exceed it, diverge, or compute anything again.

**Two calls.** A siamese net (two calls, one loss) and a GAN (discriminator called on real and on made
pictures, then the generator through it) ask for next to nothing; the budget that the refusal says to try is
asked for, and so on: a first call cannot know that others follow before its backward. Every refusal must come
before the first update, and the loop must then run, bit-equal to eager, with momentum that appears after it.
"""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from benchmarks._measure import HighWater, digest
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, count, share
from benchmarks.spine.nets import UNLIMITED, clean, native, planned
from tightrope.core import Alloc, Bytes, Executable, InfeasibleError, Release, Return, format_bytes
from tightrope.core.executable import CALLER
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE

_NUM_FORWARDS = 8
_SLACK = 1.05
_NUM_STEPS = 3
_MOST_NAMED = 5
_HINT = re.compile(r"Try budget=(\d+)")


def each(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run eight forwards, then a backward for each."""
    losses = [model(*inputs) for _ in range(_NUM_FORWARDS)]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses]


def summed(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Run eight forwards, then one backward of their sum."""
    total = torch.stack([model(*inputs) for _ in range(_NUM_FORWARDS)]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    return [total.detach()]


_LOOPS: dict[str, Callable[[nn.Module, Sequence[Tensor]], list[Tensor]]] = {"each": each, "summed": summed}


def kept_and_peak(executable: Executable) -> tuple[Bytes, Bytes]:
    """Bytes that are live at the first return, and the most that ever are; the caller's do not count."""
    live: dict[int, Bytes] = {}
    kept: Bytes | None = None
    peak = 0
    for item in executable.flat():
        if isinstance(item, Alloc) and item.space != CALLER:
            live[item.buffer] = executable.charged(item)
            peak = max(peak, sum(live.values()))
        elif isinstance(item, Release):
            live.pop(item.buffer, None)
        elif isinstance(item, Return) and kept is None:
            kept = sum(live.values())
    return kept or 0, peak


def _eight(case: str, settings: Settings) -> Iterator[Row]:
    name, loop = case.split()
    with planned(name, settings, lambda _: UNLIMITED) as net:
        net.loop.step()
        kept, peak = kept_and_peak(net.compiled.calls.recent[0].prepared.executable)
        gradients = sum(p.grad.nbytes for p in net.case.model.parameters() if p.grad is not None)
    need = (_NUM_FORWARDS - 2) * kept + peak + max(kept, gradients)
    body, charged = _LOOPS[loop], []
    with planned(name, settings, lambda before: before + RESERVE + int(_SLACK * need)) as net:
        for _ in range(_NUM_STEPS):
            net.loop.clear()
            gc.collect()
            with HighWater(native()) as most:
                body(net.case.model, net.case.inputs)
            charged.append((most.bytes - net.held) / need)
        again = sum(proof.num_again for proof in net.report.proofs)
        calls = net.compiled.calls
        yield {
            "net": case,
            "kept": kept,
            "peak": peak,
            "need": need,
            "first": charged[0],
            "later": max(charged[1:]),
            "again": again,
            "divergences": calls.num_divergences,
        }


def _eight_verdict(rows: Sequence[Row], _: Settings) -> list[Verdict]:
    worst = max(max(row["first"], row["later"]) for row in rows)
    clean_rows = [not row["again"] and not row["divergences"] for row in rows]
    figure = (
        f"eight forwards before a backward: at most {worst:.3f}x of what eight kept sets and one working "
        f"arena need; nothing again, as planned: {count(clean_rows)}"
    )
    return [Verdict("X4", worst <= _SLACK and all(clean_rows), figure)]


def _nets(settings: Settings) -> Sequence[str]:
    return [f"{net} {loop}" for net in settings.choose("resnet18", "gpt2", "unet") for loop in _LOOPS]


EIGHT = Bar(
    ("X4",),
    "Eight forwards before the first backward, budget = held + 1.05 x need",
    (
        Column("net", "net, loop", 18),
        Column("kept", "kept", 11, format_bytes),
        Column("peak", "peak", 11, format_bytes),
        Column("need", "need", 11, format_bytes),
        Column("first", "1st step", 9, share),
        Column("later", "later", 9, share),
        Column("again", "recomputed", 11),
        Column("divergences", "div", 4),
    ),
    _nets,
    _eight,
    _eight_verdict,
)


_Models = Sequence[nn.Module]
_Optimizers = Sequence[torch.optim.Optimizer]


def _encoder(width: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(width)]
    return nn.Sequential(*layers)


def _siamese(models: _Models, optimizers: _Optimizers, data: Tensor) -> Tensor:
    (encoder,), (optimizer,) = models, optimizers
    left, right = encoder(data), encoder(data.flip(0))
    loss = functional.relu(1 - (left * right).sum(1) / 64).mean() + functional.mse_loss(left, right)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def _gan(models: _Models, optimizers: _Optimizers, data: Tensor) -> Tensor:
    made_by, judged_by = models
    made = made_by(torch.randn_like(data))
    real, false = judged_by(data), judged_by(made.detach())
    loss = functional.softplus(-real).mean() + functional.softplus(false).mean()
    optimizers[1].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizers[1].step()
    fooled = functional.softplus(-judged_by(made)).mean()
    optimizers[0].zero_grad()
    fooled.backward()  # type: ignore[no-untyped-call]
    optimizers[0].step()
    return torch.stack([loss.detach(), fooled.detach()])


_TWO: dict[str, tuple[int, Callable[..., Tensor]]] = {"siamese": (1, _siamese), "gan": (2, _gan)}
_WIDTH, _BATCH = 192, 1024


def _play(
    case: str, budget: Callable[[Bytes], Bytes] | None, *, num_steps: int = 5, shown: list[str] | None = None
) -> list[str]:
    """Run a loop from one seed, eagerly or under a budget; return digests of all it shows."""
    number, loop = _TWO[case]
    torch.manual_seed(5)
    models = [_encoder(_WIDTH) for _ in range(number)]
    data = torch.randn(_BATCH, _WIDTH)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
    if budget is not None:
        accounts().note_tensors([*(p for model in models for p in model.parameters()), data])
        size = budget(accounts().charged())
        for model in models:
            tightrope.compile(model, budget=size, progress=False)
    seen = [] if shown is None else shown
    try:
        for _ in range(num_steps):
            loss = loop(models, optimizers, data)
            seen.append(digest([loss, *(p.grad for model in models for p in model.parameters())]))
        if budget is not None:
            assert all(tightrope.report(model).proofs for model in models)
    finally:
        if budget is not None:
            for model in models:
                accounts().release(compiled_of(model))
        native().limit = None
    return seen


def _two(case: str, _: Settings) -> Iterator[Row]:
    """Type in what is named, until nothing is refused: what a call alone needs, then what the loop needs."""
    clean()
    native()
    wanted = _play(case, None)
    asked: list[Bytes] = []
    row: Row = {"net": case, "named": asked, "works": False, "equal": False, "late": False, "note": ""}
    budget: Callable[[Bytes], Bytes] = lambda before: before + RESERVE  # noqa: E731
    while len(asked) < _MOST_NAMED and not row["works"]:
        clean()
        shown: list[str] = []
        try:
            _play(case, budget, shown=shown)
            row |= {"works": bool(asked), "equal": shown == wanted}
        except InfeasibleError as error:
            row["late"] |= bool(shown)
            hinted = _HINT.search(str(error))
            if hinted is None:
                row["note"] = str(error)
                break
            asked.append(int(hinted[1]))
            budget = partial(_constant, asked[-1])
        except (tightrope.TightropeError, torch.OutOfMemoryError) as error:
            row["note"] = f"{type(error).__name__}: {error}"
            break
    clean()
    yield row


def _constant(size: Bytes, _: Bytes) -> Bytes:
    return size


def _two_verdict(rows: Sequence[Row], _: Settings) -> list[Verdict]:
    good: list[Any] = [row["works"] and row["equal"] and not row["late"] for row in rows]
    asked = ", ".join(f"{row['net']} after {len(row['named'])} refusals" for row in rows)
    figure = f"budgets named before the first update work, bit-equal to eager: {count(good)} ({asked})"
    return [Verdict("X4", all(good), figure)]


TWO = Bar(
    ("X4",),
    "The smallest budget that is named before the first update, asked for",
    (
        Column("net", "loop", 10),
        Column("named", "named, in turn", 36, lambda sizes: ", ".join(map(format_bytes, sizes))),
        Column("works", "works", 7),
        Column("equal", "bit-equal", 10),
        Column("note", "note", 40),
    ),
    lambda _: tuple(_TWO),
    _two,
    _two_verdict,
)
