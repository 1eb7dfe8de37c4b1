"""A1: predicted saved bytes beside measured ones, on real ranks.

Predicted: the graph of one rank, captured from sizes alone, with what runs by rule in that mode run again.
Measured: what autograd saves on every rank of four gloo processes, each storage once.
"""

from typing import Any, Final

import torch
from torch import distributed

from benchmarks.micro.rows import Row
from benchmarks.sequence.ranks import on_ranks
from tightrope_ranks.sequence import (
    Division,
    Stack,
    capture_rank,
    cores_again,
    gather_again,
    layer_bytes,
    measure_saved,
    name_group,
    saved_bytes,
    schedule_of,
)
from tightrope_shared.attention import TransformerShape

SHAPES: Final = ((64, 2, 128, 4), (128, 1, 64, 8))
"""s, b, h, a."""
DIVIDED: Final = ("tensor", "tensor+selective", "sequence kept", "sequence", "sequence+selective")
NUM_LAYERS: Final = 2
WORLD: Final = 4
DROPOUT: Final = 0.1
MOST: Final = 0.01
Cell = tuple[tuple[int, int, int, int], str, int]


def cells(quick: bool) -> list[Cell]:
    """Shape, mode and t of every cell."""
    shapes = SHAPES[:1] if quick else SHAPES
    modes = [(mode, 1) for mode in ("none", "selective")]
    modes += [(mode, t) for t in (2, 4) for mode in DIVIDED]
    return [(shape, mode, t) for shape in shapes for mode, t in modes]


def division(mode: str, t: int, *, planned: bool) -> Division:
    """How a cell divides its layers, for its graph (``planned``) or as a module."""
    again = "selective" in mode and not planned
    return Division(
        mode="sequence" if "sequence" in mode else "tensor" if t > 1 else "serial",
        ranks=t,
        group=f"{t} of {WORLD}",
        regather=not planned and mode.startswith("sequence") and "kept" not in mode,
        attention="again" if again else "plain",
    )


def predicted(cell: Cell) -> int:
    """Bytes by the graph."""
    (s, b, h, a), mode, t = cell
    graph = capture_rank(
        TransformerShape(s=s, b=b, h=h, a=a, layers=NUM_LAYERS), division(mode, t, planned=True)
    )
    sets = [gather_again(graph)] if "sequence" in mode and "kept" not in mode else []
    sets += [cores_again(graph)] if "selective" in mode else []
    return saved_bytes(graph, schedule_of(graph, *sets))


def measured(rank: int, wanted: list[Cell]) -> list[int]:
    """Bytes that autograd saves on this rank, cell by cell."""
    for size in (2, 4):
        for first in range(0, WORLD, size):
            group: Any = distributed.new_group(list(range(first, first + size)))
            if first <= rank < first + size:
                name_group(f"{size} of {WORLD}", group)
    found = []
    for (s, b, h, a), mode, t in wanted:
        layout = division(mode, t, planned=False)
        model = Stack(NUM_LAYERS, h, a, s, layout, dropout=DROPOUT, dtype=torch.bfloat16)
        rows = torch.randn(s // layout.rows, b, h, dtype=torch.bfloat16, requires_grad=True)
        found.append(measure_saved(model, lambda m=model, r=rows: m(r)))  # type: ignore[misc]
    return found


def a1(quick: bool) -> list[Row]:
    """Compare every cell; the worst counts."""
    wanted = cells(quick)
    ranks = on_ranks(WORLD, measured, wanted)
    errors, forms = [], []
    for number, cell in enumerate(wanted):
        forecast = predicted(cell)
        errors.append(max(abs(forecast / rank[number] - 1) for rank in ranks))
        (s, b, h, a), mode, t = cell
        if "kept" not in mode:
            shape = TransformerShape(s=s, b=b, h=h, a=a, t=t)
            forms.append(abs(NUM_LAYERS * layer_bytes(shape, mode) / ranks[0][number] - 1))  # type: ignore[arg-type]
    worst = wanted[errors.index(max(errors))]
    return [
        Row(
            "A1",
            "predicted saved bytes within 1 % of measured on >= 12 cells",
            f"{len(wanted)} cells on {WORLD} real ranks, largest error {100 * max(errors):.2f} % at {worst}; "
            f"closed forms, without norms' statistics and generator states: {100 * max(forms):.2f} %",
            max(errors) <= MOST and (quick or len(wanted) >= 12),
        )
    ]
