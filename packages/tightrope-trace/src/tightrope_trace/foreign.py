"""Traces from profiles of anybody's: `torch.profiler` JSON, without the code that ran.

Stages come from what torch marks, modules from one watched forward of the model (see `follow`) or from an
alignment of names (see `align`), backward nodes from their forward ops. Sequence numbers are used where
the file has them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tightrope.core import Doubt, EventPhase, Module, Summary, Trace
from tightrope.core.trace_check import check_modules
from tightrope.record.tables import ROOT_TREE
from tightrope_trace.align import aligned
from tightrope_trace.follow import follow
from tightrope_trace.match import UNPROVED
from tightrope_trace.reverse import nodes_of
from tightrope_trace.rows import inherit, to_trace
from tightrope_trace.slices import Slice
from tightrope_trace.stages import BORDERS, marks, outermost, stages
from tightrope_trace.without_values import DryRun

_SEEMS_RIGHT = 0.5
"""Match below which a watched forward is no help, and names alone are asked."""


class Told(NamedTuple):
    """What is known of every slice.

    Attributes:
        phases: stages.
        owners: positions in the module tree.
        doubts: why an owner may be another one.
        match: see `tightrope.core.Summary`.
    """

    phases: list[EventPhase]
    owners: list[int]
    doubts: list[Doubt]
    match: float | None


def annotate(
    slices: Sequence[Slice],
    modules: Sequence[Module] = ROOT_TREE,
    *,
    name: str = "",
    run: DryRun | None = None,
) -> Trace:
    """Tell a profile in the words of a model.

    Args:
        slices: see `tightrope.record.read_profile`.
        modules: the module tree in order of definition, root first; see `tree_of` and `read_tree`.
        name: of the model.
        run: one forward of the model, see `dry_run`; its modules are taken then. With it, modules are proved
            where the profile has the same ops; names and order alone hardly ever prove them.

    Returns:
        A trace with stages and modules; without buffers. Its ``summary.match`` says how well the
        profile and the modules go together: below `POOR_MATCH` they are probably of different models,
        and below `SURE_MATCH` every event whose module may be another one says why in its ``doubt``.

    Raises:
        PlanFileError: the modules are not a tree whose parents come first.

    Example:
        >>> from tightrope_trace.slices import Slice
        >>> tree = (Module(""), Module("fc", "Linear", 0))
        >>> annotate([Slice("aten::linear", 0, 5)], tree).events[0].module
        1
    """
    tree = run.modules if run is not None else modules
    check_modules(tree)
    told = _followed(slices, run) if run is not None else None
    if told is None or (told.match is not None and told.match < _SEEMS_RIGHT):
        told = assign(slices, stages(slices), tree)
    doubted = Counter(doubt for one, doubt in zip(slices, told.doubts, strict=True) if not one.annotation)
    summary = Summary(
        name=name,
        producer="profile",
        match=told.match,
        order_doubts=doubted[Doubt.ORDER],
        place_doubts=doubted[Doubt.PLACE],
    )
    return to_trace(slices, told.phases, told.owners, tree, summary, told.doubts)


def assign(slices: Sequence[Slice], phases: list[EventPhase], modules: Sequence[Module]) -> Told:
    """Find the module of every slice from names and order."""
    outer, groups, group = list[int](), list[int](), 0
    for position in range(len(slices)):
        if phases[position] not in (EventPhase.FORWARD, EventPhase.LOSS):
            group += 1
        elif outermost(slices, position):
            outer.append(position)
            groups.append(group)
    found = aligned([slices[k].name for k in outer], modules, groups)
    told = Told(phases, *_spread(slices, phases, outer, found.owners, found.doubts), found.match)
    return told if len(modules) > 1 else told._replace(match=None, doubts=[Doubt.NONE] * len(slices))


def _followed(slices: Sequence[Slice], run: DryRun) -> Told:
    """Find the module of every slice from a watched forward, and stages from when the model ran."""
    marked = marks(slices)
    outer, groups, group = list[int](), list[int](), 0
    for position in range(len(slices)):
        if marked[position] in BORDERS:
            group += 1
        elif outermost(slices, position):
            outer.append(position)
            groups.append(group)
    found = follow([slices[k].name for k in outer], groups, run)
    inside = [False] * len(slices)
    for position, ran in zip(outer, found.inside, strict=True):
        inside[position] = ran
    phases = stages(slices, inside)
    owners, doubts = _spread(slices, phases, outer, found.owners, found.doubts)
    match = found.match
    if match is not None and match > UNPROVED and any(doubt is not Doubt.NONE for doubt in doubts):
        match = UNPROVED
    return Told(phases, owners, doubts, match)


def _spread(
    slices: Sequence[Slice],
    phases: Sequence[EventPhase],
    outer: Sequence[int],
    found: Sequence[int],
    doubted: Sequence[Doubt],
) -> tuple[list[int], list[Doubt]]:
    """Give what is known of outermost ops to what they call, and to their nodes in the backward."""
    owners, doubts = [0] * len(slices), [Doubt.NONE] * len(slices)
    for position, module, doubt in zip(outer, found, doubted, strict=True):
        owners[position], doubts[position] = module, doubt
    settled = frozenset(outer)
    inherit(slices, owners, settled)
    _inherit_doubts(slices, doubts, settled)
    nodes = nodes_of(slices, phases)
    for node, op in nodes.ops.items():
        owners[node] = owners[op] if op >= 0 else 0
        doubts[node] = Doubt.PLACE if node in nodes.guessed or op < 0 else doubts[op]
    settled |= nodes.ops.keys()
    inherit(slices, owners, settled)
    _inherit_doubts(slices, doubts, settled)
    return owners, doubts


def _inherit_doubts(slices: Sequence[Slice], doubts: list[Doubt], settled: frozenset[int]) -> None:
    for position, one in enumerate(slices):
        if one.parent >= 0 and position not in settled:
            doubts[position] = doubts[one.parent]
