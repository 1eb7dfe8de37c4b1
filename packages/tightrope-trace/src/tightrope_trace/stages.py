"""Stages of a training step in a profile: load data, copy, forward, loss, backward, optimizer.

Idea        What torch marks itself (data loaders, the autograd engine, optimizers) is certain and holds
            for everything inside; so is a range that somebody called by a stage. The ops between two
            such marks are a stretch: what comes before a backward is data, copies, a forward and a loss,
            in this order, and `stretch` finds where each ends. Threads that neither differentiate nor
            use weights load data.
Guarantee   Every slice has one stage; what an op calls has the stage of the op.
Complexity  Linear in slices.
Gaps        Without marks and without knowing when the model ran, a model that begins with random numbers
            or ends with a difference looks as if the data or the loss began there.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tightrope.core import EventPhase
from tightrope_trace.slices import STANDARD, Slice
from tightrope_trace.stretch import StageStretch, bare, moves_bytes, split, uses_weights

ENGINE = "autograd::engine::evaluate_function"
SEED = "aten::ones_like"
_ZERO: Final = "Optimizer.zero_grad"
_MARKS = (
    ("enumerate(DataLoader)", EventPhase.LOAD_DATA),
    ("Optimizer.", EventPhase.OPTIMIZER),
    (ENGINE, EventPhase.BACKWARD),
)
_RANGES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), stage)
    for pattern, stage in (
        (r"(?<![a-z])(backward|bwd)(?![a-z])", EventPhase.BACKWARD),
        (r"(?<![a-z])(forward|fwd)(?![a-z])", EventPhase.FORWARD),
        (r"(?<![a-z])(zero_grad|optimi[sz]er|optim)(?![a-z])", EventPhase.OPTIMIZER),
        (r"(?<![a-z])(loss|criterion)(?![a-z])", EventPhase.LOSS),
        (r"data_?load|load_?(data|batch)|(fetch|next|get|read)_?(data|batch)|^data$", EventPhase.LOAD_DATA),
        (r"(?<![a-z0-9])(h2d|to_?device|to_?gpu|copy_?(batch|input|data)s?)(?![a-z])", EventPhase.COPY),
    )
)
"""Ranges whose name says what they are for."""
BORDERS: Final = frozenset({EventPhase.BACKWARD, EventPhase.OPTIMIZER, EventPhase.LOAD_DATA})
"""Stages whose marks end a stretch."""


def stages(slices: Sequence[Slice], inside: Sequence[bool] | None = None) -> list[EventPhase]:
    """Find the stage of every slice.

    Args:
        slices: see `tightrope.record.read_profile`.
        inside: whether the model was running, where that is known.

    Example:
        >>> step = [Slice("aten::mm", 0, 1), Slice(ENGINE + ": MmBackward0", 1, 2), Slice("aten::add_", 2, 3)]
        >>> [stage.value for stage in stages(step)]
        ['forward', 'backward', 'optimizer']
    """
    found = marks(slices)
    for stretch in _stretches(slices, found, inside):
        for position, stage in zip(stretch.positions, split(stretch), strict=True):
            found[position] = stage
    result: list[EventPhase] = []
    for one, known in zip(slices, found, strict=True):
        above = result[one.parent] if one.parent >= 0 else EventPhase.FORWARD
        result.append(known if known is not None else above)
    for position in _seeds(slices):
        result[position] = EventPhase.BACKWARD
    return result


def marks(slices: Sequence[Slice]) -> list[EventPhase | None]:
    """Find the stages that are marked: by torch for certain, by the names of ranges, and by threads."""
    found: list[EventPhase | None] = []
    for one in slices:
        inherited = found[one.parent] if one.parent >= 0 else None
        own = _marked(one)
        known = inherited is not None and (own is None or inherited in BORDERS)
        found.append(inherited if known else own)
    for thread in _loading(slices, found):
        for position, one in enumerate(slices):
            if one.thread == thread:
                found[position] = EventPhase.LOAD_DATA
    return found


def _marked(one: Slice) -> EventPhase | None:
    certain = next((stage for start, stage in _MARKS if one.name.startswith(start)), None)
    if certain is not None or not one.annotation or one.name.startswith(STANDARD):
        return certain
    return next((stage for pattern, stage in _RANGES if pattern.search(one.name)), None)


def _loading(slices: Sequence[Slice], found: Sequence[EventPhase | None]) -> set[int]:
    """Threads beside the one of the training loop that neither differentiate nor use weights."""
    unmarked = Counter(one.thread for one, stage in zip(slices, found, strict=True) if stage is None)
    busy = {
        one.thread
        for one in slices
        if one.annotation or one.name.startswith(ENGINE) or uses_weights(one.name)
    }
    if not unmarked:
        return set()
    return set(unmarked) - busy - {unmarked.most_common(1)[0][0]}


def outermost(slices: Sequence[Slice], position: int) -> bool:
    """Whether a slice is an op that no other op called."""
    one = slices[position]
    return not one.annotation and (one.parent < 0 or slices[one.parent].annotation)


def _stretches(
    slices: Sequence[Slice], found: Sequence[EventPhase | None], inside: Sequence[bool] | None
) -> list[StageStretch]:
    """Collect the ops between marks; a range that is a forward, a loss or a copy is part of its stretch."""
    moving = _moving(slices)
    result = [StageStretch()]
    for position, one in enumerate(slices):
        stage = found[position]
        if stage in BORDERS:
            if not one.name.startswith(_ZERO) and (one.parent < 0 or found[one.parent] not in BORDERS):
                result[-1].after = stage
                result.append(StageStretch(before=stage))
        elif outermost(slices, position):
            ran = inside[position] if inside is not None else None
            result[-1].add(position, bare(one.name), moving[position], stage, ran)
    return [stretch for stretch in result if stretch.positions]


def _moving(slices: Sequence[Slice]) -> list[bool]:
    """Whether a slice copies bytes, or calls something that does; drivers know best."""
    if any(one.moves for one in slices):
        return [one.moves for one in slices]
    found = [moves_bytes(one.name) for one in slices]
    for position in range(len(slices) - 1, -1, -1):
        parent = slices[position].parent
        if parent >= 0 and found[position]:
            found[parent] = True
    return found


def _seeds(slices: Sequence[Slice]) -> list[int]:
    """Slices of what makes the first gradient: the op right before the first node of a backward."""
    found, seed, before = [], -1, ""
    for position, one in enumerate(slices):
        if one.parent >= 0 and not slices[one.parent].annotation:
            continue
        if one.name.startswith(ENGINE) and before == SEED:
            inside = range(seed, position)
            found += [k for k in inside if k == seed or slices[k].parent >= seed]
        seed, before = position, one.name
    return found
