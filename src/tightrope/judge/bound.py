"""Bytes below which no schedule that keeps the base order exists.

Idea        While base op t runs for the first time, three groups are certainly live: what t reads;
            what t itself allocates at its worst instant; and what was made before t and cannot have
            been given up: storages that stay to the end, and storages that nothing can make again
            and that a later op of the base order reads.
Guarantee   Holds for every schedule that `replay_schedule` accepts: it never frees a resident
            storage, and never makes again what only a non-recomputable op makes.
Complexity  Linear in ops, reads and allocations.
Gaps        Recomputable storages are counted only where they are read. What an earlier op changed
            in place cannot be made again either; that is not used.
"""

from tightrope.core import Bytes, Graph, JudgeError, OpId, Plan, StorageId
from tightrope.core.plugins import absent, installed, loaded
from tightrope.judge.cover import certain_bytes, extra_time
from tightrope.judge.needs import inside
from tightrope.judge.versions import runs_once


def floors(graph: Graph, *, free_order: bool = False) -> tuple[Bytes, ...]:
    """List, for every op, the total bytes that its first run needs at least: in base order, or in any."""
    if free_order:
        return certain_bytes(graph)
    pinned_until = _pinned_until(graph)
    producer = {storage: op.id for op in graph.ops for storage in op.creates}
    change = [0] * (len(graph.ops) + 1)
    for storage, last in pinned_until.items():
        change[producer[storage] + 1] += graph.storages[storage].size
        change[last + 1] -= graph.storages[storage].size
    pinned, result = 0, []
    for op in graph.ops:
        pinned += change[op.id]
        read = sum(
            graph.storages[storage].size
            for storage in op.reads
            if storage in producer and pinned_until.get(storage, -1) < op.id
        )
        result.append(graph.persistent + pinned + read + inside(graph, op).need)
    return tuple(result)


def lower_bound(graph: Graph, *, free_order: bool = False) -> tuple[Bytes, OpId]:
    """Find the largest floor, in total bytes, and the op that sets it (-1 for a graph without ops)."""
    every = floors(graph, free_order=free_order)
    if not every:
        return graph.persistent, -1
    return max(every), every.index(max(every))


def check_bound(graph: Graph, claimed: Bytes, witness: OpId, *, free_order: bool = False) -> None:
    """Refuse a claimed lower bound that its witness does not support.

    Raises:
        JudgeError: says what the witness, and the graph, support.
    """
    if claimed <= graph.persistent:
        return
    every = floors(graph, free_order=free_order)
    best = max(every, default=graph.persistent)
    op = every.index(best) if every else -1
    if claimed > best:
        raise JudgeError(f"certificate: lower bound {claimed} bytes; only {best} can be shown (op {op}).")
    if not 0 <= witness < len(graph.ops):
        raise JudgeError(f"certificate: witness {witness} is not an op of the base order.")
    if claimed > (floor := every[witness]):
        who = graph.ops[witness].describe()
        raise JudgeError(f"certificate: op {witness} {who} needs {floor} bytes, not the {claimed} claimed.")


def _pinned_until(graph: Graph) -> dict[StorageId, OpId]:
    """Map each storage that cannot be given up to the last op up to which it stays."""
    pinned: dict[StorageId, OpId] = {}
    lasting: set[StorageId] = set()
    for op in graph.ops:
        for storage in op.reads:
            if storage in lasting:
                pinned[storage] = op.id
        again = set(graph.op(op.variant).creates) if op.variant >= 0 else set()
        lasting.update(storage for storage in op.creates if runs_once(op) and storage not in again)
    for storage in (made for op in graph.ops for made in op.creates):
        if graph.storages[storage].resident_at_end:
            pinned[storage] = len(graph.ops) - 1
    return pinned


def check_time_bound(graph: Graph, plan: Plan) -> None:
    """Refuse a claimed time bound that the graph and the certificate's cover do not support.

    Numbers of stages are for an installed judge: ``stages(graph, numbers)`` of the group ``tightrope.judges``
    gives the added time that they prove.

    Raises:
        JudgeError: quotes the claim and what can be shown, or says what to install.
    """
    claim, shown, by = plan.certificate, graph.base_ns, "every op once"
    for proof in (claim.cover, claim.stages):
        if proof is not None and proof.budget < plan.budget:
            raise JudgeError(f"certificate: its numbers hold up to {proof.budget} bytes, not {plan.budget}.")
    if claim.cover is not None:
        extra = extra_time(graph, claim.cover, free_order=claim.order == "free")
        shown, by = max(shown, graph.base_ns + extra), "the cover"
    if claim.stages is not None:
        if claim.order == "free":
            raise JudgeError("certificate: stages prove nothing about schedules in any order.")
        if not (entries := installed("tightrope.judges").get("stages", ())):
            raise JudgeError(f"certificate: {absent('the judge of its stages', 'planners')}")
        staged_time = loaded("the judge of stages", entries)
        shown, by = max(shown, graph.base_ns + staged_time(graph, claim.stages)), "the stages"
    if claim.ns_bound > shown:
        raise JudgeError(f"certificate: time bound {claim.ns_bound} ns; only {shown} ({by}) can be shown.")
    if claim.proved and plan.forecast.ns != claim.ns_bound:
        raise JudgeError(
            f"certificate: optimal time claimed, but {plan.forecast.ns} ns is not the bound {claim.ns_bound}."
        )
