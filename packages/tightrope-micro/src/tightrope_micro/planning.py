"""A plan of a step under a limit on all RAM of a device, stack included."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from msgspec.structs import replace

from tightrope.core import (
    Bytes,
    Graph,
    InfeasibleError,
    Items,
    Machine,
    Nanoseconds,
    Op,
    Plan,
    StorageId,
    TightropeError,
    View,
    fitted,
)
from tightrope.core.executable import Executable
from tightrope.lower import lowered
from tightrope_micro.judge.cuts import check_cuts
from tightrope_micro.maps import MapShape, finer_maps, with_maps_cut
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.resident import floor_bytes, plan_resident
from tightrope_micro.tiles import TiledGraph, tile

STACK_RESERVE: Final[Bytes] = 2048
"""Bytes for the stack inside the limit; the emulated board measures what it takes."""
STATIC_BYTES: Final[Bytes] = 64
"""Bytes of RAM beside the arena: the four counters of pages, and room for their alignment."""


@dataclass(frozen=True)
class MicroPlan:
    """A plan that was judged, and what runs.

    Attributes:
        plan: under the bytes that are left for the arena.
        executable: what the C says, instruction by instruction.
        tiled: the graph that was planned, with weights cut as far as that takes.
        ram: the limit on all RAM.
        stack: bytes of it that are kept for the stack.
    """

    plan: Plan
    executable: Executable
    tiled: TiledGraph
    ram: Bytes
    stack: Bytes


def plan_step(
    graph: Graph,
    machine: Machine,
    *,
    ram: Bytes,
    stack: Bytes = STACK_RESERVE,
    tiles: bool = True,
    maps: bool = True,
    economy: Economy | None = None,
) -> MicroPlan:
    """Plan a step within ``ram`` bytes, of which the stack and the counters take some.

    Weights are cut into tiles only where no plan of whole ones fits, and maps into groups of channels only
    where that does not do; ``tiles=False`` leaves both whole.

    Args:
        graph: of ops of the C library.
        machine: with a slower tier.
        ram: bytes of all RAM.
        stack: bytes of it for the stack.
        tiles: whether weights may be cut.
        maps: whether maps may be cut too.
        economy: what ops run again for, limits of time and energy; None = the least time.

    Raises:
        InfeasibleError: an op needs more, named with the smallest limit that does; or time or energy do.
        TightropeError: the machine has no slower tier, or the slower tier is too small; or energy was
            asked for, and the machine does not tell its power.
        JudgeError: what is cut does not compute the same.
    """
    economy = economy or Economy()
    if not machine.watts and (economy.joules is not None or economy.objective == "joules"):
        raise TightropeError(
            f"machine {machine.name!r} does not tell its power (watts), so energy cannot be planned. "
            "Ask for seconds, or give a profile with watts."
        )
    if len(machine.tiers) < 2:
        raise TightropeError(
            f"machine {machine.name!r} has no slower tier: weights lie there between their uses."
        )
    if ram > machine.tiers[0].bytes:
        raise TightropeError(
            f"the budget is {ram} B of RAM; {machine.name!r} has {machine.tiers[0].bytes} B. Ask for less."
        )
    held = sum(storage.bytes for storage in graph.storages if storage.home)
    if held > machine.tiers[1].bytes:
        raise TightropeError(
            f"the step holds {held} B of weights, state and inputs; {machine.tiers[1].name} of "
            f"{machine.name!r} has {machine.tiers[1].bytes} B. Take a smaller model, or a machine with more."
        )
    beside = stack + STATIC_BYTES
    room = max(0, ram - beside)
    try:
        if tiles:
            plan, tiled = _tiled_plan(graph, machine, room, economy, maps=maps)
        else:
            plan, tiled = _plan(tile(graph, {}), machine, room, economy)
    except InfeasibleError as error:
        if not error.op:
            raise  # time or energy, not bytes
        least = error.smallest_found or error.lower_bound
        raise InfeasibleError(
            f"--ram {ram} B leaves {max(0, ram - beside)} B next to {stack} B of stack and {STATIC_BYTES} B "
            f"of counters. The next limit to try is {least + beside} B: {error}",
            asked=ram, smallest_found=least + beside, lower_bound=error.lower_bound + beside, op=error.op,
        ) from error  # fmt: skip
    if tiled.whole is not graph or tiled.counts:
        check_cuts(graph, tiled.graph, _held(graph, tiled))
    return MicroPlan(plan, lowered(tiled.graph, plan, machine).executable, tiled, ram, stack)


def _held(graph: Graph, tiled: TiledGraph) -> dict[StorageId, tuple[StorageId, Bytes]]:
    """What the caller holds in a graph that is cut: parts of what it holds in the whole one."""
    pairs = zip(tiled.whole.parts[0].inputs, graph.parts[0].inputs, strict=True)
    whole = {one.view.base: other.view.base for one, other in pairs if one.view and other.view}
    return {storage: (whole[of], first) for storage, (of, first) in tiled.origin.items()}


def _plan(tiled: TiledGraph, machine: Machine, room: Bytes, economy: Economy) -> tuple[Plan, TiledGraph]:
    priced = dataclasses.replace(tiled, graph=price(tiled.graph, machine))
    return plan_resident(priced.graph, budget=room, machine=machine, economy=economy), priced


def _as_long(economy: Economy, ops: int, graph: Graph) -> Economy:
    """Fewer walks where a form has more than twice the ops of the step, so that a search takes no longer."""
    share = min(1.0, 2 * ops / max(1, len(graph.ops)))
    return dataclasses.replace(economy, walks=max(1, int(share * economy.walks)))


def _tiled_plan(
    graph: Graph, machine: Machine, room: Bytes, economy: Economy, *, maps: bool
) -> tuple[Plan, TiledGraph]:
    """Cut the largest weight of the op that needs most, then its maps, until it fits or nothing can be cut.

    Where pages are allowed, a plan in which nothing that ops make is paged, with weights cut further, is
    taken if it costs less.

    Raises:
        InfeasibleError: that with the smallest plan, of all forms that are tried under any limit: it works.
    """
    forms = partial(_cut_forms, graph, machine, maps=maps)
    ways = [(economy, forms(room, stay=not economy.pages))]
    if economy.pages:
        ways.append((dataclasses.replace(economy, pages=False), forms(room, stay=True)))
    elif economy.reruns:  # each form is searched in full: not all of them
        ways[0] = (economy, chain(forms(room, stay=True), _halves(forms(room, stay=False), room)))
    found: list[tuple[Plan, TiledGraph]] = []
    late: list[InfeasibleError] = []
    for way, asked in ways:
        try:
            fits = _first(asked, graph, machine, room, way)
        except InfeasibleError as error:
            late.append(error)
        else:
            found += [fits] if fits is not None else []
    if found:
        return min(found, key=lambda one: economy.cost(one[0].forecast.ns, one[0].forecast.joules))
    if late:
        raise late[0]
    refused: list[InfeasibleError] = []
    once = economy if economy.pages else dataclasses.replace(economy, reruns=False)  # as what is named holds
    for need, tiled in sorted(forms(0, stay=not economy.pages), key=lambda one: one[0]):
        if refused and need >= min(map(_least, refused)):
            break
        tried = _tried(tiled, machine, room, _as_long(once, len(graph.ops), tiled.graph))
        if isinstance(tried, tuple):
            better = _tried(tiled, machine, room, _as_long(economy, len(graph.ops), tiled.graph))
            return better if isinstance(better, tuple) else tried
        refused.append(tried)
    raise min(refused, key=_least)


def _halves(forms: Iterable[tuple[Bytes, TiledGraph]], room: Bytes) -> Iterator[tuple[Bytes, TiledGraph]]:
    """The first form of which every op fits, and each that needs at most half of the one before."""
    last = 2 * room
    for need, tiled in forms:
        if need <= room and 2 * need <= last:
            last = need
            yield need, tiled


def _first(
    forms: Iterable[tuple[Bytes, TiledGraph]], graph: Graph, machine: Machine, room: Bytes, economy: Economy
) -> tuple[Plan, TiledGraph] | None:
    """Plan forms until one fits; None where none does.

    Raises:
        InfeasibleError: time or energy do not.
    """
    for need, tiled in forms:
        if need <= room:
            tried = _tried(tiled, machine, room, _as_long(economy, len(graph.ops), tiled.graph))
            if isinstance(tried, tuple):
                return tried
    return None


def _cut_forms(
    graph: Graph, machine: Machine, room: Bytes, *, stay: bool, maps: bool
) -> Iterator[tuple[Bytes, TiledGraph]]:
    """Iterate over finer and finer forms of a graph, with the bytes that one op needs.

    The weight of the op that needs most is cut until that op fits. Where its weight alone does not do, its
    maps are cut, and weights from the start again; where these cannot be, its weight is cut all the same.
    """
    groups: Mapping[MapShape, int] | None = {}
    while groups is not None:
        base = with_maps_cut(graph, groups) if groups else graph
        counts: Mapping[StorageId, int] | None = {}
        finer: Mapping[MapShape, int] | None = None
        while counts is not None and finer is None:
            tiled = tile(base, counts)
            fit = fitted(tiled.graph, machine.tiers[0].alignment)
            need, witness = floor_bytes(fit, stay=stay)
            yield need, tiled
            counts = tiled.finer(witness, max(0, need - room))
            if maps and (counts is None or tiled.saved(witness, counts) < need - room):
                finer = finer_maps(graph, tiled.graph.ops[witness], groups)
        groups = finer


def _least(error: InfeasibleError) -> Bytes:
    return error.smallest_found or error.lower_bound


def _tried(
    tiled: TiledGraph, machine: Machine, room: Bytes, economy: Economy
) -> tuple[Plan, TiledGraph] | InfeasibleError:
    """Plan a form; returns why it does not fit.

    Raises:
        InfeasibleError: time or energy do not.
    """
    try:
        return _plan(tiled, machine, room, economy)
    except InfeasibleError as error:
        if not error.op:
            raise
        return error


def price(graph: Graph, machine: Machine) -> Graph:
    """Give every op the time that the machine's rates say: modelled, not measured."""
    return replace(graph, ops=tuple(replace(op, ns=_ns(graph, op, machine)) for op in graph.ops))


def _ns(graph: Graph, op: Op, machine: Machine) -> Nanoseconds:
    kind = "conv" if "conv2d" in op.target else "matmul" if "linear" in op.target else "pointwise"
    rate = machine.flops.get(kind, 0.0)
    return round(1e9 * 2 * num_macs(graph, op) / rate) if rate else 0


def num_macs(graph: Graph, op: Op) -> int:
    """Multiply-accumulates of one run; one per element touched where it is no product."""
    shapes = [value.shape for value in op.arguments if isinstance(value, View)]
    made = [result.view.shape for result in op.results]
    count = _elements(made[0]) if made else _elements(shapes[0])
    name = op.target.removeprefix("micro.").removeprefix("q_")
    if name.startswith("t_") and ("conv2d" in name or name == "t_linear"):  # channels last
        return _elements(made[0][:-1]) * _elements(shapes[1])
    if name.endswith("_add"):
        shapes = shapes[1:]
    if name.startswith(("conv2d", "linear")):  # rows of the weight are one tile, and outputs may be all
        weight = shapes[2 if name.endswith(("sgd", "adamw")) else 1]
        into = dict(op.keywords).get("out")
        outputs = made[0] if made and name in ("conv2d", "conv2d_dilated") else shapes[0]
        if name == "conv2d.into" and isinstance(into, View):
            outputs = into.shape
        macs = outputs[0] * _elements(outputs[2:]) * _elements(weight)
        if "channels" in dict(op.keywords):  # a group of the weight's channels
            macs = macs * _input_shape(op, shapes)[1] // weight[1]
        return macs
    if name.startswith("attention"):  # products of every row with every key: two forward, four backward
        query, key = shapes[0 if name == "attention" else 1], shapes[1 if name == "attention" else 2]
        return (2 if name == "attention" else 5) * _elements(query) * key[1]
    if name in ("embedding_sgd", "embedding_adamw"):
        return max(map(_elements, shapes))
    if name in ("recurrent", "recurrent_gates"):  # both products of every step, and of gradients one again
        weights = shapes[1:3] if name == "recurrent" else (*shapes[1:3], shapes[2])
        return shapes[0][0] * shapes[0][1] * sum(map(_elements, weights))
    if name.startswith("recurrent_weight"):
        return _elements(shapes[0]) * shapes[1][2]
    if name == "bmm":
        return count * shapes[0][2]
    window = next((value for value in op.arguments if isinstance(value, Items)), None)
    if "pool" in name and window is not None:
        return _elements(shapes[0])
    return max([count, *map(_elements, shapes)])


def _input_shape(op: Op, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Sizes of a convolution's input, whichever way it computes."""
    if "conv2d_input" in op.target:
        into = dict(op.keywords).get("out")
        return into.shape if isinstance(into, View) else op.results[0].view.shape
    return shapes[1] if "weight" in op.target else shapes[0]


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
