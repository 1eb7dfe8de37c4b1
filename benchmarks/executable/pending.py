"""X4: several forwards before their backwards.

Eight forwards keep eight sets of tensors, but need one working arena: what is planned together is
compared with that. Loops that call a model twice per step (siamese nets, GANs) are told a budget before
their first update, and it must do.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

import tightrope
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from benchmarks.spine.nets import UNLIMITED
from tests.run.training import Blocks, batches, built
from tightrope.core import Bytes, InfeasibleError, format_bytes
from tightrope.run.accounts import accounts
from tightrope.run.compile import compiled_of
from tightrope.run.room import RESERVE

_NUM_FORWARDS: Final = 8
_NUM_STEPS: Final = 4
_MOST_REFUSALS: Final = 12
Step = Callable[[Any, Any], None]


def _losses(model: Any, number: int) -> list[Tensor]:
    return [model(x).square().mean() for x, _ in batches(number)]


def micro(model: Any, optimizer: Any) -> None:
    """Eight forwards, then eight backwards."""
    for loss in _losses(model, _NUM_FORWARDS):
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def siamese(model: Any, optimizer: Any) -> None:
    """Two branches, one loss between them."""
    (x, _), (u, _) = batches(2)
    (model(x) - model(u)).square().mean().backward()
    optimizer.step()


def gan(model: Any, optimizer: Any) -> None:
    """Real and generated, each with a loss of its own, backward after both."""
    (x, _), (u, _) = batches(2)
    real, made = model(x).mean(), model(u * 2).square().mean()
    (made - real).backward()
    optimizer.step()


LOOPS: Final[dict[str, Step]] = {"siamese": siamese, "gan": gan, "micro-batches": micro}


def _compiled(budget: Bytes) -> tuple[nn.Module, torch.optim.Optimizer, Bytes]:
    """A model under so many bytes more than what is held, and what is held."""
    torch._dynamo.reset()
    gc.collect()
    model = built(Blocks)
    accounts().note_tensors(model.parameters())
    held = accounts().charged()
    tightrope.compile(model, budget=held + budget, progress=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), held


def together(case: str) -> Row:
    """Compare the bytes of eight forwards planned together with eight kept sets and one working arena."""
    model, optimizer, _ = _compiled(UNLIMITED)
    (model(batches(1)[0][0])).square().mean().backward()
    one = compiled_of(model).calls.recent[0].prepared
    kept, most = one.live[1], max(one.peaks)
    for _ in range(3):
        optimizer.zero_grad()
        micro(model, optimizer)
    report = tightrope.report(model)
    runnings = compiled_of(model).calls.recent
    taken = sum(r.prepared.plan.forecast.arena + r.prepared.plan.forecast.outside for r in runnings)
    accounts().release(compiled_of(model))
    need = _NUM_FORWARDS * kept + most - kept
    return {
        "net": case,
        "need": need,
        "taken": taken,
        "ratio": taken / need,
        "plans": len(runnings),
        "note": f"observed {format_bytes(report.observed_peak)}, {report.divergences} divergences",
    }


def named(case: str) -> Row:
    """Type in what refusals name until a step goes through, and train on with it."""
    step, budget, refusals = LOOPS[case], RESERVE, 0
    while refusals <= _MOST_REFUSALS:
        model, optimizer, held = _compiled(budget)
        done = 0
        try:
            for _ in range(_NUM_STEPS):
                optimizer.zero_grad()
                step(model, optimizer)
                done += 1
        except InfeasibleError as error:
            refusals, budget = refusals + 1, (error.smallest_found or 0) - held
            note = f"refused {refusals} times, the last time after {done} updates"
            accounts().release(compiled_of(model))
            if done:
                break
            continue
        except torch.OutOfMemoryError as error:
            done, note = 0, f"after {refusals} refusals: {error}"
            accounts().release(compiled_of(model))
            break
        note = f"the budget of refusal {refusals} trained {done} steps"
        accounts().release(compiled_of(model))
        return {"net": case, "taken": budget, "refusals": refusals, "works": True, "note": note}
    return {"net": case, "taken": budget, "refusals": refusals, "works": False, "note": note}


def rows(case: str, settings: Settings) -> Iterator[Row]:
    """Measure one case."""
    del settings
    yield together(case) if case == "eight forwards" else named(case)


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """At most 1.05 times what is needed, and what was named last before the first update works."""
    del settings
    ratio = max((row["ratio"] for row in found if "ratio" in row), default=9.9)
    loops = [row for row in found if "works" in row]
    bad = [row["net"] for row in loops if not row["works"]]
    failing = ", ".join(bad) or "none"
    text = f"eight forwards take {ratio:.3f} of what they need; named budgets fail for: {failing}"
    return [Verdict("X4", ratio <= 1.05 and not bad and len(loops) == len(LOOPS), text)]


BAR = Bar(
    ids=("X4",),
    title="Several forwards before their backwards",
    columns=(
        Column("net", "case", 16),
        Column("need", "needed", 11, format_bytes),
        Column("taken", "taken", 11, format_bytes),
        Column("ratio", "ratio", 6, lambda value: f"{value:.3f}"),
        Column("refusals", "refusals", 8),
        Column("works", "works", 6),
        Column("note", "note", 60),
    ),
    cases=lambda _: ("eight forwards", *LOOPS),
    rows=rows,
    verdicts=verdicts,
)
