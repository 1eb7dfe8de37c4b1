"""A time below which no plan of all ranks exists, proved apart from the planner."""

from tightrope.core.units import Nanoseconds
from tightrope_ranks.values.ranks import JointPlan


def step_bound(plan: JointPlan) -> Nanoseconds:
    """Prove a time below which no plan of this work on this machine exists.

    A rank computes all that is its own one after the other; before, some micro-batch goes through the stages
    in front of its first one, and after its last input gradient that goes back through them.
    """
    work, bound = plan.work, 0
    device = [owner * work.replicas for owner in work.owners]

    def hop(stage: int) -> int:
        if device[stage] == device[stage + 1]:
            return 0
        link = plan.machine.links[plan.machine.link(device[stage], device[stage + 1])]
        return link.message_ns(work.stages[stage].output)

    count = work.num_micro_batches
    there = [0]
    for stage, cost in enumerate(work.stages[:-1]):
        there.append(there[-1] + cost.forward + hop(stage))
    back = [0]
    for stage, cost in enumerate(work.stages[:-1]):
        back.append(back[-1] + cost.backward + (hop(stage) if stage >= work.frozen else 0))
    for rank in range(work.num_ranks):
        own = [work.stages[stage] for stage in work.local(rank)]
        first = work.local(rank)[0]
        busy = count * sum(cost.forward + cost.backward + cost.weight for cost in own)
        weights = count * sum(cost.weight for cost in own)
        # gradients of parameters may come while others still go back
        bound = max(bound, there[first] + busy - weights + max(weights, back[first]))
    last = work.stages[-1]
    return max(bound, there[-1] + last.forward + last.backward + back[-1])
