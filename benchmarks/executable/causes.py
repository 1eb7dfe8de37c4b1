"""X1: every executable that ran was judged as it ran and checked in its first run, and the report says so.

One row per way of running and per cause of planning anew, each made to happen in a small training loop
while `observed` watches.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from benchmarks.executable.observed import observed
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from tests.run.training import Blocks, batches, budget_for, built
from tightrope.core import Bytes, InfeasibleError
from tightrope.price.store import PriceStore
from tightrope.run.compile import compiled_of
from tightrope.run.execute.prepared import Proof
from tightrope.run.ledger.accounts import accounts

Proofs: TypeAlias = tuple[Proof, ...]
X, Y = batches(1)[0]


@dataclass(frozen=True)
class Case:
    """Something that happens in a training loop.

    Attributes:
        run: makes it happen and returns the proofs of the report.
        cause: what the report gives as the reason of a plan; empty = of no other than the first.
    """

    run: Callable[[], Proofs]
    cause: str = ""


def compiled(
    build: Callable[[], nn.Module] = Blocks, *, share: float = 0.2, extra: Bytes = 512 << 10
) -> nn.Module:
    """A model under a budget that makes it recompute."""
    model = built(build)
    return tightrope.compile(model, budget=budget_for(model, (X,), share=share) + extra, progress=False)


def train(
    model: nn.Module, *, steps: int = 2, size: int = 1024, tail: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Run training steps without an optimizer."""
    for _ in range(steps):
        model.zero_grad()
        out = model(X[:size])
        loss = functional.cross_entropy(out, Y[:size]) if tail is None else tail(out)
        loss.backward()  # type: ignore[no-untyped-call]


def proofs_of(model: Any) -> Proofs:
    """What the report says of every plan; the budget is lifted."""
    found = tightrope.report(model).proofs
    accounts().release(compiled_of(model) if isinstance(model, nn.Module) else model)
    return found


# ways of running


def by_compile() -> Proofs:
    """Forward and backward."""
    model = compiled()
    train(model)
    return proofs_of(model)


_TIGHT: Bytes = 1_650_000
"""Beside what is held: two graphs compute something again."""


class Broken(Blocks):
    """A break of the graph after its layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers, then the head."""
        for layer in self.layers:
            x = x + layer(x)
        torch._dynamo.graph_break()
        out: Tensor = self.head(x)
        return out


def in_pieces(room: Bytes = 3 << 20) -> Proofs:
    """Two graphs, planned one by one."""
    torch._dynamo.reset()
    gc.collect()  # what earlier cases leave counts as held, and goes in the middle of this one
    model = built(Broken)
    accounts().note_tensors([X, Y])
    budget = accounts().held() + room
    tightrope.compile(model, budget=budget, fallback="pieces", progress=False)
    train(model, steps=4)
    return proofs_of(model)


def _stepping(model: nn.Module, optimizer: torch.optim.Optimizer, budget: Bytes) -> Any:
    return tightrope.step(
        lambda x, y: functional.cross_entropy(model(x), y),
        budget=budget, model=model, optimizer=optimizer, progress=False,
    )  # fmt: skip


def by_step() -> Proofs:
    """Forward, backward and update."""
    model = built(Blocks)
    budget = budget_for(model, (X,), share=0.2) + (1 << 20)
    train_step = _stepping(model, torch.optim.AdamW(model.parameters(), foreach=False), budget)
    for _ in range(2):
        train_step(X, Y)
    return proofs_of(train_step)


def without_gradient() -> Proofs:
    """Inference."""
    model = tightrope.compile(built(Blocks).eval(), budget=accounts().held() + (4 << 20), progress=False)
    with torch.no_grad():
        for _ in range(2):
            model(X)
    return proofs_of(model)


# causes


class _Keeping(torch.optim.SGD):
    """An optimizer that nobody knows: its state appears in its first step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keep two tensors per parameter."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter]["both"] = [torch.zeros_like(parameter) for _ in range(8)]


def state_appeared() -> Proofs:
    """The second step has less room, because an optimizer holds state."""
    model = compiled(share=0.1, extra=0)
    optimizer = _Keeping(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, steps=1)
        optimizer.step()
    return proofs_of(model)


def room_not_needed() -> Proofs:
    """A tensor that was held during the first step is gone."""
    ballast = torch.empty(1 << 18)
    model = compiled(share=0.1, extra=0)
    train(model)
    del ballast
    gc.collect()
    train(model)
    return proofs_of(model)


def room_lacking() -> Proofs:
    """A tensor is held that was not there during the first step."""
    model = compiled(share=0.5)
    train(model)
    ballast = torch.empty(1 << 18)
    train(model)
    del ballast
    return proofs_of(model)


def share_moved() -> Proofs:
    """The loss of later steps takes more between forward and backward."""
    model = compiled(share=0.5)
    train(model, tail=lambda out: out.sum())
    large = torch.ones(96, 1)
    for _ in range(4):
        with suppress(torch.OutOfMemoryError):  # the next forward leaves what it lacked
            train(model, steps=1, tail=lambda out: out.mean() + 0 * (large * out.detach()[:, 0]).mean())
    return proofs_of(model)


def pieces_together() -> Proofs:
    """Two graphs that follow each other compute something again: they are planned together."""
    proofs = in_pieces(_TIGHT)
    for less in range(50_000, 500_000, 50_000):  # what earlier cases held may have gone since it was counted
        if any("planned together" in proof.cause for proof in proofs):
            break
        with suppress(InfeasibleError):
            proofs = in_pieces(_TIGHT - less)
    return proofs


def diverged() -> Proofs:
    """A price on disk is wrong: a kernel allocates otherwise than planned."""
    honest = PriceStore.get

    def wrong(self: PriceStore, key: str) -> Any:
        price = honest(self, key)
        if price is None or "aten.gelu.default" not in key or type(self) is not PriceStore:
            return price
        *others, (size, result, start, end) = price.allocations
        return replace(price, allocations=(*others, (size + 64, result, start, end)))

    with patch.object(PriceStore, "get", wrong):
        model = compiled(share=1.0, extra=4 << 20)
        train(model, steps=3)
    return proofs_of(model)


def new_shape() -> Proofs:
    """The second batch is smaller."""
    model = compiled()
    train(model, steps=1)
    train(model, steps=1, size=384)
    return proofs_of(model)


def new_shape_of_a_step() -> Proofs:
    """The second batch of a whole step is smaller."""
    model = built(Blocks)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    train_step = _stepping(model, optimizer, budget_for(model, (X,), share=0.2) + (1 << 20))
    train_step(X, Y)
    train_step(X[:384], Y[:384])
    return proofs_of(train_step)


def several_forwards() -> Proofs:
    """Two forwards before their backwards, at first planned one by one, then together."""
    model = compiled(share=0.5, extra=1 << 20)
    for _ in range(3):
        model.zero_grad()
        one, two = functional.cross_entropy(model(X), Y), functional.cross_entropy(model(X), Y)
        (one + two).backward()  # type: ignore[no-untyped-call]
    return proofs_of(model)


def backward_of_the_rest() -> Proofs:
    """A forward gives up what it kept for another one: its backward is planned from what is left."""
    model = compiled(share=0.6, extra=128 << 10)
    one = functional.cross_entropy(model(X), Y)
    two = functional.cross_entropy(model(X), Y)
    two.backward()  # type: ignore[no-untyped-call]
    one.backward()  # type: ignore[no-untyped-call]
    return proofs_of(model)


def frozen() -> Proofs:
    """A parameter is frozen."""
    model = compiled()
    train(model, steps=1)
    next(iter(model.parameters())).requires_grad_(False)
    train(model, steps=1)
    return proofs_of(model)


def added() -> Proofs:
    """A parameter is added to the optimizer of a whole step."""
    model = built(Blocks)
    first, *others = model.parameters()
    optimizer = torch.optim.AdamW(others, foreach=False)
    train_step = _stepping(model, optimizer, budget_for(model, (X,), share=0.2) + (1 << 20))
    train_step(X, Y)
    model.zero_grad()
    optimizer.add_param_group({"params": [first]})
    train_step(X, Y)
    return proofs_of(train_step)


CASES: Final[dict[str, Case]] = {
    "compile": Case(by_compile),
    "step": Case(by_step),
    "pieces": Case(in_pieces),
    "inference": Case(without_gradient),
    "several forwards": Case(several_forwards, "planned together"),
    "backward of the rest": Case(backward_of_the_rest, "a backward from what its forward left"),
    "optimizer state": Case(state_appeared, "more are held: optimizer state"),
    "room not needed": Case(room_not_needed, "left free in vain"),
    "room lacking": Case(room_lacking, "more are held"),
    "share moved": Case(share_moved, "code between the parts of a step takes"),
    "pieces together": Case(pieces_together, "planned together"),
    "divergence": Case(diverged, "allocations differed from the plan"),
    "new shape": Case(new_shape, "another captured graph"),
    "new shape of a step": Case(new_shape_of_a_step, "another captured graph"),
    "frozen parameter": Case(frozen, "another captured graph"),
    "added parameter": Case(added, "the optimizer updates other parameters"),
}
"""Ways of running, then causes of planning anew."""


def watch(name: str) -> Row:
    """Make one case happen and say what was judged, checked and reported."""
    torch._dynamo.reset()
    gc.collect()
    accounts()
    with observed() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proofs = CASES[name].run()
    problems = seen.problems(proofs)
    wanted = CASES[name].cause
    if wanted and not any(wanted in proof.cause for proof in proofs):
        problems.append(f"no plan was made because of {wanted!r}: {[proof.cause for proof in proofs]}")
    return {
        "net": name,
        "judged": sum(ok for _, ok, _ in seen.verdicts),
        "executed": len(seen.executed()),
        "parts": len(seen.runs),
        "checked": sum(run.num_checked >= 0 for run in seen.runs),
        "again": sum(proof.num_again for proof in proofs),
        "reported": len(proofs),
        "note": "; ".join(problems) or next((p.cause for p in proofs if wanted and wanted in p.cause), ""),
        "problems": problems,
    }


def rows(case: str, settings: Settings) -> Iterator[Row]:
    """Watch one case."""
    del settings
    yield watch(case)


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """No case has a problem, and each planned anew for its cause."""
    del settings
    wrong = [row["net"] for row in found if row["problems"]]
    text = (
        f"{sum(row['executed'] for row in found)} executables ran in {len(found)} cases: all judged before, "
        f"checked in their first run and reported, but for {', '.join(wrong) or 'none'}"
    )
    return [Verdict("X1", len(found) == len(CASES) and not wrong, text)]


BAR = Bar(
    ids=("X1",),
    title="What ran was judged as it ran, and checked in its first run",
    columns=(
        Column("net", "case", 20),
        Column("judged", "judged", 7),
        Column("executed", "ran", 4),
        Column("parts", "parts run", 9),
        Column("checked", "checked", 8),
        Column("again", "recomputed", 10),
        Column("reported", "reported", 8),
        Column("note", "cause, or what is wrong", 60),
    ),
    cases=lambda _: tuple(CASES),
    rows=rows,
    verdicts=verdicts,
)
