"""What no plan of a pipeline goes below: the time of a step, and the bytes of one order.

Idea        Time: every rank waits for a first value, computes all, and hands a last one back. Bytes: what is
            held all the time, and what forwards keep.
Guarantee   Each is at most what `simulate` finds for any order, or for this one.
Complexity  Linear in the stages, or in the computations of the order.
Gaps        Messages count for time alone.
"""

from tightrope.core import Machine
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.pipeline.language import Orders
from tightrope_ranks.pipeline.simulate import Again
from tightrope_ranks.values.ranks import StageWork


def least_bytes(work: StageWork, orders: Orders, *, again: Again = ()) -> Bytes:
    """Sum what ranks keep in forwards, without messages and times: never more than what `simulate` finds.

    Args:
        work: whose stages the actions compute.
        orders: computations of every rank.
        again: forwards that are computed again.
    """
    most = 0
    for rank, row in enumerate(orders):
        live = most_here = work.held(rank)
        left = dict.fromkeys(work.local(rank), work.num_micro_batches)  # gradients to come, by stage
        for stage, kind, micro in row:
            cost = work.stages[stage]
            kept = cost.output + (0 if (stage, micro) in again else cost.saved)
            if kind == "F":
                live += kept
                gathered = cost.parameters if work.sharded else 0
                most_here = max(most_here, live + cost.work + gathered)
            elif kind in "BI":
                live -= kept
            if kind in "BW" and work.sharded:
                live += cost.whole_gradients if left[stage] == work.num_micro_batches else 0
                left[stage] -= 1
                live -= 0 if left[stage] else cost.whole_gradients
        most = max(most, most_here)
    return most


def bound(work: StageWork, machine: Machine) -> Nanoseconds:
    """Time below which no plan of this work exists: every rank waits for a first value, then computes all."""
    count, there, back, found = work.num_micro_batches, 0, 0, 0
    firsts = {work.local(rank)[0]: rank for rank in range(work.num_ranks)}
    for stage, cost in enumerate(work.stages):
        if stage in firsts:
            own = [work.stages[one] for one in work.local(firsts[stage])]
            weights = count * sum(one.weight for one in own)
            rest = count * sum(one.forward + one.backward for one in own)
            found = max(found, there + rest + max(weights, back))
        if stage + 1 == len(work.stages):
            return max(found, there + cost.forward + cost.backward + back)
        hop = 0
        one, other = work.owners[stage], work.owners[stage + 1]
        if one != other:
            link = machine.links[machine.link(one * work.replicas, other * work.replicas)]
            hop = link.message_ns(cost.output)
        there += cost.forward + hop
        back += cost.backward + (hop if work.hands_back(stage + 1) else 0)
    return found
