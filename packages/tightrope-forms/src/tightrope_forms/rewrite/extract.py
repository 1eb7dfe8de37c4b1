"""Choose the cheapest form out of an e-graph: an integer program, proved optimal.

Idea        One node for every class that is needed. Each is paid once, so sharing counts, and so does a value
            that several ops keep for their backwards. FormCosts are time, and bytes kept times a weight.
Source      tensat (MLSys 2021), which found tree costs and greedy choices to return the input
Guarantee   `Extracted.status` is "optimal" where HiGHS proved it. A choice has no circle, and is never worse
            than the input.
Complexity  Exponential at worst; a second for hundreds of nodes. Order variables only inside of circles.
Gaps        A view that is kept counts as what it looks into; bytes in flight are left to the planner.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from tightrope.core import Bytes
from tightrope_forms.rewrite.egraph import ClassId, EGraph, ENode, Facts, Spec

Choice: TypeAlias = dict[ClassId, ENode]
_MS: Final = 1e3
_MIB: Final = 2.0**20
_NEW: Final = 1e-6  # of a node that a rule made: of forms that cost the same, the one that came in


class CostWeights(NamedTuple):
    """What a second of modelled time, and a MiB that is kept for the backward, cost."""

    seconds: float = 1.0
    mib: float = 0.0


@dataclass(frozen=True)
class Extracted:
    """A form of a graph.

    Attributes:
        choice: a node of every class that is needed.
        cost: of it.
        bound: no form costs less.
        status: ``optimal``, or ``time_limit``.
    """

    choice: Choice
    cost: float
    bound: float
    status: str


class FormCosts:
    """The price of choices: of the classes that roots need.

    Args:
        graph: which forms there are.
        roots: classes that are needed.
        kept: classes that ops outside of it keep.
        weights: see `CostWeights`.
    """

    def __init__(
        self, graph: EGraph, roots: Iterable[ClassId], kept: Iterable[ClassId], weights: CostWeights
    ) -> None:
        self.graph, self.weights = graph, weights
        self.roots, self.kept = [graph.find(one) for one in roots], {graph.find(one) for one in kept}
        self.facts: dict[ENode, Facts] = {n: graph.facts(n) for nodes in graph.nodes.values() for n in nodes}

    def own(self, node: ENode) -> float:
        """What running a node costs, and what it keeps besides its inputs and its result."""
        facts, new = self.facts[node], _NEW if node in self.graph.why else 0.0
        return new + self.weights.seconds * facts.seconds * _MS + self.weights.mib * facts.own / _MIB

    def held(self, one: ClassId, node: ENode) -> float:
        """What keeping the value of a class costs, where a node makes it."""
        value = self.graph.values[one]
        if (
            not isinstance(value, Spec)
            or self.facts[node].view is not None
            or node[:2] == ("leaf", (node.args[0], True))
        ):
            return 0.0
        return self.weights.mib * value.bytes / _MIB

    def given(self) -> Choice:
        """The form that came in: of every class the first node that does not need the class itself."""
        choice: Choice = {}
        left = dict.fromkeys(self.graph.nodes)
        while left:
            ready = [one for one in left if self._ready(one, choice, first=True)]
            ready = ready or [one for one in left if self._ready(one, choice, first=False)][:1]
            for one in ready:
                choice[one] = next(n for n in self.graph.nodes[one] if self._made(n, choice))
                del left[one]
        return choice

    def _made(self, node: ENode, choice: Choice) -> bool:
        return all(self.graph.find(child) in choice for child in node.children)

    def _ready(self, one: ClassId, choice: Choice, *, first: bool) -> bool:
        nodes = list(self.graph.nodes[one])
        return any(self._made(node, choice) for node in (nodes[:1] if first else nodes))

    def needed(self, choice: Choice) -> list[ClassId] | None:
        """List the classes that a choice needs, children first; None where it goes in a circle."""
        order: list[ClassId] = []
        state: dict[ClassId, int] = {}
        stack = [(one, False) for one in self.roots]
        while stack:
            one, done = stack.pop()
            one = self.graph.find(one)
            if done:
                state[one] = 2
                order.append(one)
            elif state.get(one) == 1:
                return None
            elif one not in state:
                state[one] = 1
                stack.append((one, True))
                stack += [
                    (child, False) for child in choice[one].children if state.get(self.graph.find(child)) != 2
                ]
        return order

    def bytes(self, choice: Choice) -> Bytes:
        """Count the bytes that a choice keeps for its backward."""
        order = self.needed(choice)
        assert order is not None
        own: Bytes = sum(self.facts[choice[one]].own for one in order)
        values = [self.graph.values[one] for one in self._keeps(choice, order)]
        own += sum(value.bytes for value in values)
        return own

    def _keeps(self, choice: Choice, order: list[ClassId]) -> set[ClassId]:
        """List classes whose values are kept, views resolved, without leaves that others hold."""
        find, kept = self.graph.find, set(self.kept) & set(order)
        for one in order:
            facts = self.facts[choice[one]]
            kept |= {find(choice[one].children[k]) for k in facts.keeps}
            kept |= {one} if facts.keeps_result else set()
        bases = set()
        for one in kept:
            while (view := self.facts[choice[one]].view) is not None:
                one = find(choice[one].children[view])
            bases.add(one)
        held = {one for one in bases if choice[one].op == "leaf" and choice[one].args[1]}
        return {one for one in bases - held if isinstance(self.graph.values[one], Spec)}

    def of(self, choice: Choice) -> float:
        """Price a choice; infinite where it goes in a circle."""
        order = self.needed(choice)
        if order is None:
            return float("inf")
        held: float = sum(
            self.weights.mib * self.graph.values[one].bytes / _MIB for one in self._keeps(choice, order)
        )
        return sum(self.own(choice[one]) for one in order) + held


class _ChoiceProgram:
    """An integer program in the making: columns, and rows of (column, factor)."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[float, float, dict[int, float]]] = []

    def column(self, cost: float = 0.0, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1

    def at_least(self, low: float, terms: dict[int, float]) -> None:
        self.rows.append((low, np.inf, terms))

    def solve(self, start: list[float], seconds: float) -> tuple[Any, float, bool]:
        """Return values (or None), a lower bound, and whether they are proved optimal."""
        import highspy

        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", seconds),
            ("mip_rel_gap", 1e-7),
        ):
            highs.setOptionValue(name, value)
        num, none = len(self.costs), np.array([], np.int32)
        highs.addCols(num, np.array(self.costs), np.zeros(num), np.ones(num), 0, none, none, np.array([]))
        whole = np.flatnonzero(self.whole).astype(np.int32)
        kinds = np.array([highspy.HighsVarType.kInteger] * len(whole))
        highs.changeColsIntegrality(len(whole), whole, kinds)
        starts = np.cumsum([0, *(len(terms) for _, _, terms in self.rows)])[:-1].astype(np.int32)
        places = np.array([one for _, _, terms in self.rows for one in terms], np.int32)
        factors = np.array([one for _, _, terms in self.rows for one in terms.values()])
        low, high = (np.array([row[k] for row in self.rows], float) for k in (0, 1))
        highs.addRows(len(self.rows), low, high, len(places), starts, places, factors)
        solution = highspy.HighsSolution()
        solution.col_value = start
        highs.setSolution(solution)
        highs.run()
        info, optimal = highs.getInfo(), highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        values = highs.getSolution().col_value if info.primal_solution_status == 2 else None
        return values, info.mip_dual_bound if len(whole) else info.objective_function_value, optimal


def extract(costs: FormCosts, *, seconds: float = 5.0) -> Extracted:
    """Find the cheapest choice.

    Args:
        costs: of nodes and values.
        seconds: for HiGHS.

    Returns:
        The choice; that of the input where nothing better was found.
    """
    graph, program = costs.graph, _ChoiceProgram()
    classes = _reached(costs)
    node_at: dict[tuple[ClassId, ENode], int] = {}
    for one in classes:
        for node in graph.nodes[one]:
            node_at[one, node] = program.column(costs.own(node), whole=True)
    kept_at = {one: program.column() for one in classes}
    _choose_rows(costs, program, classes, node_at)
    _keep_rows(costs, program, node_at, kept_at)
    rank = _order_rows(graph, program, classes, node_at)
    given = costs.given()
    start = _start(costs, program, given, node_at, rank)
    values, bound, optimal = program.solve(start, seconds)
    best, cost = given, costs.of(given)
    if values is not None:
        choice = dict(given)
        choice.update({one: node for (one, node), at in node_at.items() if values[at] > 0.5})
        if (found := costs.of(choice)) < cost:
            best, cost = choice, found
    return Extracted(best, cost, min(bound, cost), "optimal" if optimal else "time_limit")


def _reached(costs: FormCosts) -> list[ClassId]:
    graph, seen, stack = costs.graph, dict.fromkeys(costs.roots), list(costs.roots)
    while stack:
        for node in graph.nodes[graph.find(stack.pop())]:
            for child in map(graph.find, node.children):
                if child not in seen:
                    seen[child] = None
                    stack.append(child)
    return list(seen)


def _choose_rows(
    costs: FormCosts, program: _ChoiceProgram, classes: list[ClassId], node_at: dict[Any, int]
) -> None:
    """Roots have a node; a child of a node that is taken has one."""
    graph = costs.graph
    of = {one: [node_at[one, node] for node in graph.nodes[one]] for one in classes}
    for one in dict.fromkeys(costs.roots):
        program.at_least(1.0, dict.fromkeys(of[one], 1.0))
    for (_, node), at in node_at.items():
        for child in dict.fromkeys(map(graph.find, node.children)):
            program.at_least(0.0, {**dict.fromkeys(of[child], 1.0), at: -1.0})


def _keep_rows(
    costs: FormCosts, program: _ChoiceProgram, node_at: dict[Any, int], kept_at: dict[ClassId, int]
) -> None:
    """A value that a node keeps is kept, or what it looks into; who makes it decides what it costs."""
    find = costs.graph.find
    for one in costs.kept & set(kept_at):
        program.at_least(1.0, {kept_at[one]: 1.0})
    for (one, node), at in node_at.items():
        facts = costs.facts[node]
        for child in {find(node.children[k]) for k in facts.keeps}:
            program.at_least(0.0, {kept_at[child]: 1.0, at: -1.0})
        if facts.keeps_result:
            program.at_least(0.0, {kept_at[one]: 1.0, at: -1.0})
        if facts.view is not None:
            base = find(node.children[facts.view])
            if base != one:
                program.at_least(-1.0, {kept_at[base]: 1.0, kept_at[one]: -1.0, at: -1.0})
        elif cost := costs.held(one, node):
            paid = program.column(cost)
            program.at_least(-1.0, {paid: 1.0, kept_at[one]: -1.0, at: -1.0})


def _order_rows(
    graph: EGraph, program: _ChoiceProgram, classes: list[ClassId], node_at: dict[Any, int]
) -> dict[ClassId, tuple[int, float]]:
    """Inside of circles of classes, a child stands before its parent."""
    circles = _circles(graph, classes)
    rank = {one: program.column() for circle in circles for one in circle}
    for circle in circles:
        step = 1.0 / len(circle)
        for one in circle:
            for node in graph.nodes[one]:
                for child in {graph.find(child) for child in node.children} & circle:
                    at = node_at[one, node]
                    if child == one:
                        program.rows.append((0.0, 0.0, {at: 1.0}))
                    else:  # rank[one] - rank[child] >= step where the node is taken
                        program.at_least(-1.0, {rank[one]: 1.0, rank[child]: -1.0, at: -1.0 - step})
    return {one: (rank[one], 1.0 / len(circle)) for circle in circles for one in circle}


def _circles(graph: EGraph, classes: list[ClassId]) -> list[set[ClassId]]:
    """List the strongly connected components with a circle (Tarjan 1972)."""
    import networkx

    pairs = [
        (one, graph.find(child)) for one in classes for node in graph.nodes[one] for child in node.children
    ]
    loops = {one for one, child in pairs if one == child}
    parts: list[set[ClassId]] = list(networkx.strongly_connected_components(networkx.DiGraph(pairs)))
    return [part for part in parts if len(part) > 1 or part & loops]


def _start(
    costs: FormCosts,
    program: _ChoiceProgram,
    given: Choice,
    node_at: dict[Any, int],
    rank: dict[ClassId, tuple[int, float]],
) -> list[float]:
    """Write down the form that came in, with every value kept and paid."""
    start = [0.0 if whole else 1.0 for whole in program.whole]
    ranked = (rank[one] for one in costs.needed(given) or [] if one in rank)
    for number, (at, step) in enumerate(ranked):
        start[at] = min(1.0, step * number)
    for one in costs.needed(given) or []:
        start[node_at[one, given[one]]] = 1.0
    return start
