"""S9: an impossible budget is refused before anything runs.

The first request leaves nothing above what is held; the second is 64 bytes below the bound that the
first refusal proves. Nothing has run when no runner exists and gradients, buffers and the random
state are what they were.
"""

import re
from collections.abc import Iterator, Sequence

import torch

from benchmarks._measure import digest
from benchmarks.spine.bar import TEN, Bar, Column, Row, Settings, Verdict, count
from benchmarks.spine.nets import planned
from tightrope.core import ALIGNMENT, Bytes, InfeasibleError, format_bytes
from tightrope.run.ledger.room import RESERVE

_PLACE = re.compile(r"\S+ in \S+ \(\S+:\d+\)")
"""An op with its module path and line."""


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Ask twice for too little."""
    first = _ask(name, settings, RESERVE)
    yield {"net": name, "ask": "nothing"} | first
    if first["refused"]:
        yield {"net": name, "ask": "bound - 64"} | _ask(
            name, settings, first["bound"] - first["held"] - ALIGNMENT
        )


def _ask(name: str, settings: Settings, above: Bytes) -> Row:
    with planned(name, settings, lambda before: before + above) as net:
        model = net.case.model
        before = _state(model)
        try:
            net.loop.step()
        except InfeasibleError as error:
            return {
                "held": net.held,
                "asked": net.budget,
                "refused": True,
                "smallest": error.smallest_found,
                "bound": error.lower_bound,
                "op": error.op,
                "untouched": not net.compiled.calls.recent and _state(model) == before,
                "message": str(error),
            }
        return {"held": net.held, "asked": net.budget, "refused": False, "message": "accepted"}


def _state(model: torch.nn.Module) -> tuple[str, ...]:
    gradients = [parameter.grad for parameter in model.parameters()]
    return (
        digest([*model.parameters()]),
        digest([*model.buffers()]),
        digest(gradients),
        digest([torch.default_generator.get_state()]),
    )


def good(row: Row) -> bool:
    """Whether a refusal says everything that it must, and nothing has run."""
    if not row["refused"] or row["smallest"] is None:
        return False
    ordered = row["asked"] < row["bound"] <= row["smallest"]
    return ordered and row["untouched"] and bool(_PLACE.search(row["op"]))


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Every request is refused in full."""
    del settings
    fine = [good(row) for row in found]
    example = next((row["message"] for row in found if row["refused"]), "")
    return [
        Verdict(
            "S9",
            all(fine) and bool(fine),
            f"{count(fine)} refused before running, with smallest, bound and place. E.g. {example}",
        )
    ]


BAR = Bar(
    ids=("S9",),
    title="Impossible budgets",
    columns=(
        Column("net", "net", 12),
        Column("ask", "ask", 10),
        Column("asked", "asked", 11, format_bytes),
        Column("smallest", "smallest", 11, format_bytes),
        Column("bound", "proved >=", 11, format_bytes),
        Column("untouched", "nothing ran", 11),
        Column("op", "op that sets the bound", 60),
    ),
    cases=lambda settings: settings.choose(*TEN),
    rows=rows,
    verdicts=verdicts,
)
