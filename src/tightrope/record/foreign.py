"""Traces from profiles of anybody's: `torch.profiler` JSON, without the code that ran.

Stages come from what torch marks, modules from an alignment of names (see `align`), backward nodes
from their forward ops. Sequence numbers are used where the file has them.
"""

from collections.abc import Sequence

from tightrope.core import Event, EventPhase, Module, Summary, Trace
from tightrope.core.trace_check import check_modules
from tightrope.record.align import Alignment, aligned
from tightrope.record.reverse import by_sequence, forward_of
from tightrope.record.slices import Slice
from tightrope.record.stages import stages
from tightrope.record.tables import ROOT_TREE


def annotate(slices: Sequence[Slice], modules: Sequence[Module] = ROOT_TREE, *, name: str = "") -> Trace:
    """Tell a profile in the words of a model.

    Args:
        slices: see `tightrope.record.read_profile`.
        modules: the module tree in order of definition, root first; see `tree_of` and `read_tree`.
        name: of the model.

    Returns:
        A trace with stages and modules; without buffers. Its ``summary.match`` says how well the
        profile and the modules go together: below `POOR_MATCH` they are probably of different models.

    Raises:
        PlanFileError: the modules are not a tree whose parents come first.

    Example:
        >>> from tightrope.record.slices import Slice
        >>> tree = (Module(""), Module("fc", "Linear", 0))
        >>> annotate([Slice("aten::linear", 0, 5)], tree).events[0].module
        1
    """
    check_modules(modules)
    phases = stages(slices)
    owners, match = assign(slices, phases, modules)
    return to_trace(slices, phases, owners, modules, Summary(name=name, producer="profile", match=match))


def assign(slices: Sequence[Slice], phases: Sequence[EventPhase], modules: Sequence[Module]) -> Alignment:
    """Find the module of every slice from names and order."""
    owners = [0] * len(slices)
    outer = [k for k, one in enumerate(slices) if _outermost(slices, phases, k, one)]
    found = aligned([slices[k].name for k in outer], modules)
    for position, module in zip(outer, found.owners, strict=True):
        owners[position] = module
    inherit(slices, owners, frozenset(outer))
    known = by_sequence(slices, phases)
    nodes = known if known else forward_of(slices, phases)
    for node, op in nodes.items():
        owners[node] = owners[op] if op >= 0 else 0
    inherit(slices, owners, frozenset([*outer, *nodes]))
    return Alignment(owners, found.match if len(modules) > 1 else None)


def inherit(slices: Sequence[Slice], owners: list[int], settled: frozenset[int]) -> None:
    """Give slices the owner of the slice around them, unless they are settled."""
    for position, one in enumerate(slices):
        if one.parent >= 0 and position not in settled:
            owners[position] = owners[one.parent]


def to_trace(
    slices: Sequence[Slice],
    phases: Sequence[EventPhase],
    owners: Sequence[int],
    modules: Sequence[Module],
    summary: Summary,
) -> Trace:
    """Write slices as events; annotations are left out."""
    events = tuple(
        Event(one.start, one.end, -1, one.name, owner, phase, one.thread)
        for one, owner, phase in zip(slices, owners, phases, strict=True)
        if not one.annotation
    )
    return Trace("observed", (), events, modules=tuple(modules), summary=summary)


def _outermost(slices: Sequence[Slice], phases: Sequence[EventPhase], position: int, one: Slice) -> bool:
    """Whether a slice is an op of the forward that no other op called."""
    if one.annotation or phases[position] not in (EventPhase.FORWARD, EventPhase.LOSS):
        return False
    return one.parent < 0 or slices[one.parent].annotation
