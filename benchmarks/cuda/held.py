"""C1, C2, C5: bytes reserved under a budget, equal bits, and how much of what is reserved lives."""

from collections.abc import Iterator
from typing import Any, Final

import torch

import tightrope
from benchmarks.cuda.nets import build
from benchmarks.cuda.steps import Run, clean, run, state_of
from benchmarks.zoo.case import Case
from tightrope.core import Bytes, InfeasibleError

SHARES: Final = (0.9, 0.75, 0.6, 0.5)
_STEPS: Final = 5
_PLENTY: Final = "100GiB"


def rows(name: str, *, seconds: float, shares: tuple[float, ...] = SHARES) -> Iterator[dict[str, Any]]:
    """Measure one net: eager, the captured graph without a plan, then every budget and the smallest one.

    A share is of what the unplanned step reserves; a budget that is refused gives a row that says so.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward is not deterministic
    case = build(name)
    start = state_of(case)
    eager = run(case, case.model.forward, start, steps=_STEPS)
    yield {"net": name, "budget": "eager", "reserved": eager.reserved,
           "reserved_over_live": eager.reserved / eager.allocated}  # fmt: skip
    plain = _planned(case, start, _PLENTY, None, seconds=seconds)
    whole = plain["run"]
    yield {**_row(name, "no limit", plain, whole, eager),
           "eager_again": eager.same_bits(run(case, case.model.forward, start, steps=_STEPS))}  # fmt: skip
    smallest = 0
    for share in (*shares, 0.0):
        budget = int(whole.reserved * share) if share else smallest
        shown = f"{share:.0%}" if share else "smallest"
        if not share and not smallest:
            budget = int(whole.reserved * shares[-1] / 2)
        try:
            found = _planned(case, start, budget, whole, seconds=seconds)
        except InfeasibleError as error:
            smallest = error.smallest_found or 0
            yield {"net": name, "budget": shown, "asked": budget, "refused": smallest}
            if share:
                continue
            found = _planned(case, start, smallest, whole, seconds=seconds)
        yield _row(name, shown, found, whole, eager)


def _planned(
    case: Case, start: dict[str, Any], budget: str | Bytes, reference: Run | None, *, seconds: float
) -> dict[str, Any]:
    torch._dynamo.reset()
    clean()
    model = tightrope.compile(case.model, budget=budget, verify=None, seconds=seconds, progress=False)
    try:
        found = run(case, model, start, steps=_STEPS)
        said = tightrope.report(model)
    finally:
        case.model.zero_grad(set_to_none=True)
    return {"run": found, "report": said}


def _row(name: str, shown: str, found: dict[str, Any], whole: Run, eager: Run) -> dict[str, Any]:
    made, said = found["run"], found["report"]
    forecast = said.forecast_peak
    return {
        "net": name, "budget": shown, "asked": said.budget, "level": said.level, "why": said.why[:200],
        "reserved": made.reserved, "first": made.first,
        "within": max(made.reserved, made.first) <= said.budget,
        "forecast_off": abs(said.observed_peak - forecast) / forecast if forecast else None,
        "equal_bits": made.same_bits(whole), "equal_to_eager": made.same_bits(eager),
        "allocated": made.allocated, "arena": said.arena, "outside": said.outside, "peak": said.observed_peak,
        "reserved_over_live": made.reserved / max(said.persistent + said.observed_peak, 1),
        "recomputed": said.num_recomputed, "divergences": int(said.divergences),
    }  # fmt: skip
