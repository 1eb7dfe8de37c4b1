"""Better plans by moving tasks on the chain that decides the makespan.

Idea        A plan is a device per task and a sequence of all tasks. A move takes a task of the critical
            chain to another device that has bytes left, exchanges two tasks' devices, or moves a task that
            its device let wait to the front of the one before; neighbours of the task may move with it. A
            move is accepted where it is no worse than the plan was some moves ago. A coarse plan, where
            tasks that send each other much share a device, may be the start.
Source      Late acceptance hill climbing, Burke and Bykov 2017; critical-path moves of job shops; heavy-edge
            matching of METIS
Guarantee   Never worse than the plan it starts from; within the bytes; equal seeds give equal plans.
Complexity  O(moves * (tasks + edges)).
Gaps        Local; a proof needs `solve_exactly`.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

from tightrope.core import Nanoseconds
from tightrope_assign.tasks.heft import heft
from tightrope_assign.tasks.problem import TaskProblem
from tightrope_assign.tasks.simulate import critical, in_sequence, makespan

_HISTORY: Final = 40
"""Moves back with which a plan is compared."""
_MORE: Final = 0.6
"""Chance that a neighbour of a task moves with it."""


def improve(
    problem: TaskProblem,
    hosts: Sequence[int],
    starts: Sequence[Nanoseconds],
    *,
    moves: int,
    seed: int = 0,
    seconds: float | None = None,
) -> tuple[list[int], list[Nanoseconds]]:
    """Search from a plan.

    Args:
        problem: tasks and devices.
        hosts: of the plan.
        starts: likewise.
        moves: plans tried.
        seed: of the moves.
        seconds: by the clock, None = no limit.

    Returns:
        Hosts and starts of the best plan seen.
    """
    chance = random.Random(seed)
    place = {task: at for at, task in enumerate(problem.order)}
    now = list(hosts)
    sequence = sorted(range(len(now)), key=lambda task: (starts[task], place[task]))
    free = problem.free(now)
    times = in_sequence(problem, now, sequence)
    cost = makespan(problem, now, times)
    best = (cost, list(now), list(times))
    past = [cost] * _HISTORY
    chain = critical(problem, now, times)
    until = None if seconds is None else time.monotonic() + seconds
    for step in range(moves):
        if until is not None and step % 16 == 0 and time.monotonic() > until:
            break
        task, waited = chance.choice(chain) if chance.random() < 0.8 else (chance.randrange(len(now)), False)
        trial_hosts, trial = _moved(problem, (now, sequence, free), task, waited, chance)
        near = [t for t, _ in (*problem.parents[task], *problem.children[task])]
        while near and chance.random() < _MORE:
            left = free if trial_hosts is now else problem.free(trial_hosts)
            trial_hosts, trial = _moved(
                problem, (trial_hosts, trial, left), chance.choice(near), False, chance
            )
        if trial_hosts is now and trial is sequence:
            continue
        trial_times = in_sequence(problem, trial_hosts, trial)
        found = makespan(problem, trial_hosts, trial_times)
        if found <= cost or found <= past[step % _HISTORY]:
            if trial_hosts is not now:
                free = problem.free(trial_hosts)
            now, sequence, times, cost = trial_hosts, trial, trial_times, found
            chain = critical(problem, now, times)
        if cost < best[0]:
            best = (cost, list(now), list(times))
        past[step % _HISTORY] = cost
    return best[1], best[2]


def _moved(
    problem: TaskProblem,
    plan: tuple[list[int], list[int], list[int]],
    task: int,
    waited: bool,
    chance: random.Random,
) -> tuple[list[int], list[int]]:
    """Draw a neighbour; the parts of the plan that stay are the same objects."""
    hosts, sequence, free = plan
    if waited and chance.random() < 0.5:
        return hosts, _earlier(problem, sequence, task, hosts)
    size, host = problem.size[task], hosts[task]
    others = [d for d in problem.options[task] if d != host]
    if not others:
        return hosts, _earlier(problem, sequence, task, hosts)
    device = _wanted(problem, hosts, task, others, chance)
    changed = list(hosts)
    changed[task] = device
    if size <= free[device]:
        return changed, sequence
    partner = [
        t for t, h in enumerate(hosts)
        if h == device and host in problem.options[t]
        and problem.size[t] - size <= free[host] and size - problem.size[t] <= free[device]
    ]  # fmt: skip
    if not partner:
        return hosts, sequence
    changed[chance.choice(partner)] = host
    return changed, sequence


def _wanted(
    problem: TaskProblem, hosts: Sequence[int], task: int, others: Sequence[int], chance: random.Random
) -> int:
    """Choose a device: that of a neighbour, the fastest, or any."""
    kind = chance.random()
    if kind < 0.4 and (near := _near(problem, hosts, task, others)):
        return chance.choice(near)
    if kind < 0.6:
        return min(others, key=problem.cost[task].__getitem__)
    return chance.choice(others)


def _near(problem: TaskProblem, hosts: Sequence[int], task: int, others: Sequence[int]) -> list[int]:
    """List devices of tasks that a task exchanges messages with."""
    return [h for t, _ in (*problem.parents[task], *problem.children[task]) if (h := hosts[t]) in others]


def _earlier(problem: TaskProblem, sequence: list[int], task: int, hosts: Sequence[int]) -> list[int]:
    """Move a task, with what it waits for, to the front of the task before it on its device."""
    at = sequence.index(task)
    back = next((i for i in range(at - 1, -1, -1) if hosts[sequence[i]] == hosts[task]), None)
    if back is None:
        return sequence
    needed = {task}
    for other in reversed(sequence[back:at]):
        if any(child in needed for child, _ in problem.children[other]):
            needed.add(other)
    if sequence[back] in needed:
        return sequence
    middle = sequence[back : at + 1]
    return [
        *sequence[:back], *(t for t in middle if t in needed), *(t for t in middle if t not in needed),
        *sequence[at + 1 :],
    ]  # fmt: skip


def better_start(
    problem: TaskProblem, hosts: Sequence[int], starts: Sequence[Nanoseconds]
) -> tuple[list[int], list[Nanoseconds]]:
    """Return the best of a plan, a coarse one, and all tasks on one device, where HEFT is weak.

    On graphs of anrg-saga, HEFT alone takes up to 1.86 times what the best plan takes.
    """
    plans = [(list(hosts), list(starts)), coarse_start(problem, most=4 * problem.num_devices)]
    for device, room in enumerate(problem.room):
        if sum(problem.size) <= room and all(device in able for able in problem.options):
            alone = [device] * problem.num_tasks
            plans.append((alone, in_sequence(problem, alone, problem.order)))
    return min(plans, key=lambda plan: makespan(problem, *plan))


def coarse_start(problem: TaskProblem, *, most: int) -> tuple[list[int], list[Nanoseconds]]:
    """Place groups of tasks that send each other much, then time the tasks.

    Args:
        problem: tasks and devices.
        most: groups at the end, about.
    """
    group = list(range(problem.num_tasks))
    size, able = list(problem.size), [set(one) for one in problem.options]
    members = [[task] for task in group]
    load = [min(problem.cost[task][d] for d in one) for task, one in enumerate(problem.options)]
    fair = 2 * sum(load) / min(most, problem.num_devices)
    count = len(group)
    slowest = [max(row) for row in problem.travel]
    edges = [(e, p, task) for task, rows in enumerate(problem.parents) for p, e in rows]
    for _, a, b in sorted(edges, key=lambda one: (-slowest[one[0]], one[0])):
        one, other = group[a], group[b]
        both = {d for d in able[one] & able[other] if size[one] + size[other] <= problem.room[d]}
        if one == other or count <= most or not both or load[one] + load[other] > fair:
            continue
        for task in members[other]:
            group[task] = one
        members[one] += members[other]
        size[one] += size[other]
        load[one] += load[other]
        able[one], count = both, count - 1
    return _place_groups(problem, [members[one] for one in sorted(set(group))])


def _place_groups(
    problem: TaskProblem, groups: Sequence[Sequence[int]]
) -> tuple[list[int], list[Nanoseconds]]:
    """Give each group, the heaviest first, the device that it loads least; alone where none has room."""
    free, load = list(problem.room), [0] * problem.num_devices
    hosts = [-1] * problem.num_tasks
    weight = {
        id(one): sum(min(problem.cost[t][d] for d in problem.options[t]) for t in one) for one in groups
    }
    for one in sorted(groups, key=lambda one: -weight[id(one)]):
        need = sum(problem.size[task] for task in one)
        able = [
            d for d in range(problem.num_devices)
            if need <= free[d] and all(d in problem.options[task] for task in one)
        ]  # fmt: skip
        if not able:
            return heft(problem)
        device = min(able, key=lambda d: load[d] + sum(problem.cost[task][d] for task in one))
        load[device] += sum(problem.cost[task][device] for task in one)
        free[device] -= need
        for task in one:
            hosts[task] = device
    return heft(problem, hosts)
