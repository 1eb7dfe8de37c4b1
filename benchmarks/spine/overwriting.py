"""U5: what freed gradients and results over dying inputs save of the smallest whole step with AdamW.

*Neither* is the smallest plan of a step without an optimizer, which leaves every gradient behind and writes
over nothing, with AdamW's two moments beside it: the step of a loop. *Freed* is that of `tightrope.step` with
AdamW, where a gradient ends as the update uses it, that writes over nothing; *both* is the default. The steps
whose graphs these are have run once with room for everything, and their losses are compared.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch

import tightrope
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import fresh
from tightrope.core import Bytes, Graph, format_bytes, round_up
from tightrope.plan import smallest
from tightrope.run.ledger.accounts import accounts

_FALL: Final = 0.05
_NUM_FALLING: Final = 2
_WAYS: Final = {"neither": (False, False), "freed": (True, False), "both": (True, True)}
"""Of each: whether the update is part of the step, and whether results may be written over inputs."""


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Find the smallest plans with neither, with one and with both."""
    numbers, losses = {}, set()
    for who, (update, overwrite) in _WAYS.items():
        graph, loss, moments = _ran(name, settings, update=update, overwrite=overwrite)
        numbers[who] = smallest(graph).forecast.total + (0 if update else moments)
        losses.add(loss)
    row: Row = {who: format_bytes(number) for who, number in numbers.items()}
    fall = {f"{who} fall": 1 - numbers[who] / numbers["neither"] for who in ("freed", "both")}
    yield {"net": name, **row, **fall, "same": len(losses) == 1}


def _ran(name: str, settings: Settings, *, update: bool, overwrite: bool) -> tuple[Graph, float, Bytes]:
    """The graph of a step that ran, its loss, and the bytes of AdamW's two moments."""
    case = fresh(name, settings)
    trained = [one for one in case.model.parameters() if one.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-3, foreach=False) if update else None
    train = tightrope.step(
        case.model, budget="100%", model=case.model, optimizer=adamw, overwrite=overwrite, progress=False
    )
    torch.manual_seed(1)
    try:
        loss = float(train(*case.inputs))
        graph = train.wholes[0].calls.captured[0].graph
    finally:
        accounts().release(train)
    return graph, loss, 2 * sum(round_up(one.nbytes) for one in trained)


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge U5: two of the nets need at least 5 % less, and all train alike."""
    del settings
    there = [row for row in found if "both fall" in row]
    low = [row["net"] for row in there if row["both fall"] >= _FALL]
    alike = bool(there) and all(row["same"] for row in there)
    text = ", ".join(
        f"{row['net']} {100 * row['both fall']:.1f} % ({100 * row['freed fall']:.1f} % by freeing alone)"
        for row in there
    )
    return [
        Verdict(
            "U5", len(low) >= _NUM_FALLING and alike, f"less than with neither: {text}; losses equal: {alike}"
        )
    ]


BAR = Bar(
    ids=("U5",),
    title="The smallest whole step with AdamW: gradients freed by the update, results over what ends",
    columns=(
        Column("net", "net", 14),
        Column("neither", "neither", 12),
        Column("freed", "freed", 12),
        Column("both", "both", 12),
        Column("freed fall", "saved", 7, share),
        Column("both fall", "by both", 7, share),
        Column("same", "same loss", 9),
    ),
    cases=lambda settings: settings.choose("vit", "bert", "gpt2", "densenet121"),
    rows=rows,
    verdicts=verdicts,
)
