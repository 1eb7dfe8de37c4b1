"""Stages of a training step in a profile: load data, forward, loss, backward, optimizer."""

from bisect import bisect_left
from collections.abc import Sequence

from tightrope.core import EventPhase
from tightrope.record.slices import Slice

ENGINE = "autograd::engine::evaluate_function"
SEED = "aten::ones_like"
_MARKS = (
    ("enumerate(DataLoader)", EventPhase.LOAD_DATA),
    ("Optimizer.", EventPhase.OPTIMIZER),
    (ENGINE, EventPhase.BACKWARD),
)


def stages(slices: Sequence[Slice]) -> list[EventPhase]:
    """Find the stage of every slice.

    What torch marks itself (data loaders, the autograd engine, optimizers) is certain and holds for
    everything inside. What stands before a backward is forward, and loss from its last op with "loss"
    in its name on; what follows the last backward belongs to the optimizer. The gradient that a backward
    starts from is made right before its first node and belongs to it.

    Example:
        >>> step = [Slice("aten::mm", 0, 1), Slice(ENGINE + ": MmBackward0", 1, 2), Slice("aten::add_", 2, 3)]
        >>> [stage.value for stage in stages(step)]
        ['forward', 'backward', 'optimizer']
    """
    found: list[EventPhase | None] = []
    for one in slices:
        inherited = found[one.parent] if one.parent >= 0 else None
        found.append(inherited if inherited is not None else _marked(one))
    certain = [position for position, stage in enumerate(found) if stage is not None]
    losses = [k for k, one in enumerate(slices) if found[k] is None and "loss" in one.name.lower()]
    result: list[EventPhase] = []
    for position, stage in enumerate(found):
        parent = slices[position].parent
        if stage is not None:
            result.append(stage)
        elif parent >= 0 and not slices[parent].annotation:
            result.append(result[parent])
        else:
            result.append(_between(position, found, certain, losses))
    for position in _seeds(slices):
        result[position] = EventPhase.BACKWARD
    return result


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


def _marked(one: Slice) -> EventPhase | None:
    return next((stage for start, stage in _MARKS if one.name.startswith(start)), None)


def _between(
    position: int, found: Sequence[EventPhase | None], certain: list[int], losses: list[int]
) -> EventPhase:
    """Name an unmarked stretch by the marks around it."""
    at = bisect_left(certain, position)
    before = found[certain[at - 1]] if at else None
    after = found[certain[at]] if at < len(certain) else None
    if before is EventPhase.BACKWARD:
        first, last = certain[at - 1], certain[at] if at < len(certain) else len(found)
        if after is not EventPhase.BACKWARD:
            return EventPhase.OPTIMIZER
        if bisect_left(losses, first) == bisect_left(losses, last):
            return EventPhase.BACKWARD
    end = certain[at] if at < len(certain) else len(found)
    last_loss = bisect_left(losses, end)
    begin = certain[at - 1] if at else -1
    inside = last_loss > 0 and losses[last_loss - 1] > begin
    return (
        EventPhase.LOSS if inside and position >= _outermost(losses, last_loss, begin) else EventPhase.FORWARD
    )


def _outermost(losses: list[int], last: int, begin: int) -> int:
    """The first of the run of loss slices that ends the forward (an op and what it calls)."""
    at = last - 1
    while at > 0 and losses[at - 1] > begin and losses[at] - losses[at - 1] <= _NEAR:
        at -= 1
    return losses[at]


_NEAR = 8
"""Slices between a loss op and the ops of the same name that it calls."""
