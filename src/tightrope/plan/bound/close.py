"""Close the gap of a bound where few ops are short of bytes.

Idea        Every op that is short, and then its neighbours, becomes a row of the staged problem, and bytes
            during re-runs between rows count too. Branch and bound then often ends at the time of the
            plan in hand, which is so proved to be the fastest.
Source      Checkmate (MLSys 2020) restricted to the stages where memory is short
Guarantee   as of `tightrope.plan.bound.stages`; effort is counted, so equal calls give equal bounds
Complexity  at most `_MOST_ROWS` rows of `_MOST_OPS` ops; about a second per million units of effort
Gaps        Graphs that are short of bytes at many ops are left as they are: branching on a hundred rows
            raises their bound too slowly.
"""

from typing import Final

import numpy as np

from tightrope.core import Bytes, Graph, Nanoseconds, OpId
from tightrope.plan.bound.cover import TimeBound
from tightrope.plan.bound.problem import problem
from tightrope.plan.bound.staged import Effort, StagedSearch
from tightrope.plan.bound.stages import staged_problem

_MOST_ROWS: Final = 16
_MOST_OPS: Final = 160
_REACHES: Final = (0, 1, 2)
"""How many neighbours of a short op become rows, tried in turn: more rows say more and take longer."""
_EFFORT: Final = 10_000_000


def close_bound(
    graph: Graph, *, budget: Bytes, upper_ns: Nanoseconds, effort: int = _EFFORT
) -> TimeBound | None:
    """Bound the added time in base order, looking at every op that is short of bytes.

    Args:
        graph: one training step, in base order.
        budget: total bytes.
        upper_ns: added time of a known schedule; the search ends there.
        effort: most units of work, of about a microsecond.

    Returns:
        The best bound found; None where nothing is short, or where too much is to be looked at.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> ops = (Op(0, "a", "a", (), (0,), ns=5), Op(1, "b", "b", (), (1,)), Op(2, "c", "c", (0,), (2,)))
        >>> chain = Graph(ops, (Storage(0, 64), Storage(1, 128), Storage(2, 64)))
        >>> found = close_bound(chain, budget=128, upper_ns=5)
        >>> found.extra_ns
        5
    """
    if len(graph.ops) > _MOST_OPS:
        return None
    covering, work, best = problem(graph), Effort(effort), None
    if (covering.fixed > budget).any():
        return None
    short = covering.fixed + covering.idle() - budget
    for reach in _REACHES:
        rows = _around(np.flatnonzero(short > 0).tolist(), reach, len(graph.ops))
        if not 0 < len(rows) <= _MOST_ROWS or not work.left():
            break
        staged = staged_problem(graph, covering, rows, budget, during=True)
        search = StagedSearch(staged, covering, upper_ns, work)
        search.run()
        extra, numbers = search.result()
        if best is None or extra > best.extra_ns:
            best = TimeBound(extra, None, numbers if extra else None)
        if extra >= upper_ns:
            break
    return best


def _around(ops: list[OpId], reach: int, num_ops: int) -> list[OpId]:
    near = {at for op in ops for at in range(op - reach, op + reach + 1)}
    return sorted(at for at in near if 0 <= at < num_ops)
