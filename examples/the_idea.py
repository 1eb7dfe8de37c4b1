"""The whole product over a toy chain: plan under a budget, place, run, judge.

A chain of layers x1 = f0(x0), x2 = f1(x1) ... is trained: the backward of layer i needs x[i] again.
Keeping every x takes much memory; computing some of them again takes time instead.
"""

import math
from array import array
from itertools import combinations

WIDTHS = [8, 64, 96, 32, 96, 64, 96, 16]  # numbers in x[0], x[1] ...; x[0] belongs to the caller
DEPTH = len(WIDTHS) - 1
Op = tuple[str, int]  # ("f", i) makes x[i + 1]; ("b", i) makes g[i], the gradient of x[i]
Copy = tuple[str, int, int, int]  # storage, numbers, first and one past the last run in which it is alive


def reads(op: Op) -> list[str]:
    kind, i = op
    return [f"x{i}"] if kind == "f" or i == DEPTH - 1 else [f"x{i}", f"g{i + 1}"]


def makes(op: Op) -> str:
    return f"x{op[1] + 1}" if op[0] == "f" else f"g{op[1]}"


def schedule(dropped: tuple[int, ...]) -> list[Op]:
    """Run every op once, and before a backward that misses x[i], run forwards again from what is there."""
    runs: list[Op] = [("f", i) for i in range(DEPTH)]
    missing = set(dropped)
    for i in reversed(range(DEPTH)):
        first = next(j for j in range(i, -1, -1) if j not in missing)
        runs += [("f", j) for j in range(first, i)]
        missing -= set(range(first, i + 1))
        runs.append(("b", i))
    return runs


def lifetimes(runs: list[Op]) -> list[Copy]:
    """A copy is alive from the run that makes it to its last reader before it is made again."""
    copies = []
    for start, op in enumerate(runs):
        name, end = makes(op), start + 1
        for later in range(start + 1, len(runs)):
            end = later + 1 if name in reads(runs[later]) else end
            if makes(runs[later]) == name:
                break
        copies.append((name, WIDTHS[int(name[1:])], start, len(runs) if name == "g0" else end))
    return copies


def place(copies: list[Copy]) -> list[int]:
    """First fit, widest first: the lowest offset at which nothing that is alive at the same time lies."""
    offsets: dict[int, int] = {}
    for one in sorted(range(len(copies)), key=lambda k: -copies[k][1]):
        _, size, start, end = copies[one]
        alive = [k for k in offsets if copies[k][2] < end and start < copies[k][3]]
        offset = 0
        for at, width in sorted((offsets[k], copies[k][1]) for k in alive):
            if at < offset + size:
                offset = max(offset, at + width)
        offsets[one] = offset
    return [offsets[k] for k in range(len(copies))]


def plan(budget: int) -> tuple[list[Op], list[int], int]:
    """The shortest schedule whose placed arena fits: every set of dropped activations is tried."""
    sets = (dropped for count in range(DEPTH) for dropped in combinations(range(1, DEPTH), count))
    for runs in sorted(map(schedule, sets), key=len):
        offsets = place(lifetimes(runs))
        arena = max(at + WIDTHS[int(makes(op)[1:])] for op, at in zip(runs, offsets, strict=True))
        if arena <= budget:
            return runs, offsets, arena
    raise MemoryError("no schedule fits")


def run(runs: list[Op], offsets: list[int], arena: int) -> list[float]:
    """Run a plan inside one block of memory and return the gradient of x[0]."""
    memory, where = array("d", bytes(8 * arena)), {}
    for (kind, i), offset in zip(runs, offsets, strict=True):
        x = [0.1 * k for k in range(WIDTHS[0])] if i == 0 else memory[where[f"x{i}"] :][: WIDTHS[i]]
        width = WIDTHS[i + 1]
        if kind == "f":
            result = array("d", [math.sin(x[k % len(x)] + i) for k in range(width)])
        else:
            g = memory[where[f"g{i + 1}"] :][:width] if i < DEPTH - 1 else [1.0] * width
            result = array("d", [math.cos(v + i) * sum(g[j :: len(x)]) for j, v in enumerate(x)])
        where[makes((kind, i))] = offset
        memory[offset : offset + len(result)] = result
    return list(memory[where["g0"] :][: WIDTHS[0]])


def judge(runs: list[Op], offsets: list[int], budget: int) -> None:
    """Walk the plan with an owner for every number in memory; knows nothing of planning or placing."""
    owner: list[str] = [""] * budget
    for op, offset in zip(runs, offsets, strict=True):
        for name in reads(op):
            assert name == "x0" or owner.count(name) == WIDTHS[int(name[1:])], f"{op} reads {name}: gone"
        owner = ["" if name == makes(op) else name for name in owner]
        owner[offset : offset + WIDTHS[int(makes(op)[1:])]] = [makes(op)] * WIDTHS[int(makes(op)[1:])]
        assert len(owner) == budget, f"{op} writes beyond the budget"


if __name__ == "__main__":
    expected = run(*plan(10**6))
    for budget in (608, 512, 416, 352):
        runs, offsets, arena = plan(budget)
        judge(runs, offsets, budget)
        assert run(runs, offsets, arena) == expected
        print(f"budget {budget}: arena {arena}, {len(runs) - 2 * DEPTH} runs again, gradient equal")
