"""Choose the cheapest form out of an e-graph: an integer program, proved optimal.

Idea        One node for every class that is needed. Each is paid once, so sharing counts, and so does a value
            that several ops keep for their backwards. FormCosts are time, and bytes kept times a weight.
Source      tensat (MLSys 2021), which found tree costs and greedy choices to return the input
Guarantee   `Extracted.status` is "optimal" where HiGHS proved it. A choice has no circle, and is never worse
            than the input.
Complexity  Exponential at worst; a second for hundreds of nodes. Circles are forbidden as they occur.
Gaps        Ops are priced on the layouts that came in, also where another form gives its own.
            A view that is kept counts as what it looks into; bytes in flight are left to the planner.
"""

import copy
import math
import time
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from tightrope.core import Bytes
from tightrope_forms.rewrite.egraph import ClassId, EGraph, ENode, Facts, Spec

Choice: TypeAlias = dict[ClassId, ENode]
Columns = dict[ClassId, dict[ENode, Any]]
"""Of nodes, by class: whether each is taken."""
_MS: Final = 1e3
_MIB: Final = 2.0**20
_NEW: Final = 1e-6  # of a node that a rule made: of forms that cost the same, the one that came in


class CostWeights(NamedTuple):
    """What a second of modelled time, and a MiB that is kept for the backward, cost."""

    seconds: float = 1.0
    mib: float = 0.0


class Extracted(NamedTuple):
    """A form of a graph."""

    choice: Choice  # a node of every class that is needed
    cost: float
    status: str  # "optimal", "time_limit" or "searched"


class FormCosts:
    """The price of choices, of the classes that ``roots`` need; ops outside of the graph keep ``kept``.

    Where weights are ``frozen``, what held leaves alone make is computed once, and free.
    """

    def __init__(
        self, graph: EGraph, roots: Iterable[ClassId], kept: Iterable[ClassId], weights: CostWeights,
        *, frozen: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.weights, self.frozen = graph, weights, frozen
        self.roots, self.kept = [graph.find(one) for one in roots], {graph.find(one) for one in kept}
        self.facts: dict[ENode, Facts] = {n: graph.facts(n) for nodes in graph.nodes.values() for n in nodes}
        self.once: set[ClassId] = set()  # classes that are computed once and cost nothing: where weights stay
        while frozen and (fresh := {at for at in graph.nodes if at not in self.once and self._constant(at)}):
            self.once |= fresh

    def redirected(self, into: dict[ClassId, ClassId]) -> "FormCosts":
        """Price a graph in which what reads some classes reads others instead."""
        made = copy.copy(self)
        made.graph = self.graph.redirected(into)
        made.roots, made.kept = [into.get(x, x) for x in self.roots], {into.get(x, x) for x in self.kept}
        return made

    def _constant(self, one: ClassId) -> bool:
        return any(
            node.args[1] if node.op == "leaf" else all(self.graph.find(x) in self.once for x in node.children)
            for node in self.graph.nodes[one]
        )

    def own(self, one: ClassId, node: ENode) -> float:
        """What running a node of a class costs, and what it keeps besides its inputs and its result."""
        facts, new = self.facts[node], _NEW if node in self.graph.why else 0.0
        if one in self.once:
            return new
        return new + self.weights.seconds * facts.seconds * _MS + self.weights.mib * facts.own / _MIB

    def held(self, one: ClassId, node: ENode) -> Bytes:
        """What keeping the value of a class takes, where a node makes it; views and leaves may be free."""
        value = self.graph.values[one]
        free = self.facts[node].view is not None or (node.op == "leaf" and node.args[1])
        return 0 if free or not isinstance(value, Spec) else value.bytes

    def given(self) -> Choice:
        """The form that came in: of every class the first node that does not need the class itself."""
        choice: Choice = {}
        while left := [one for one in self.graph.nodes if one not in choice]:
            made = [
                (at, one, node) for one in left for at, node in enumerate(self.graph.nodes[one])
                if all(self.graph.find(child) in choice for child in node.children)
            ]  # fmt: skip
            firsts = [one for one in made if not one[0]]
            choice |= {one: node for _, one, node in reversed(firsts or made[:1])}
        return choice

    def needed(self, choice: Choice) -> list[ClassId] | None:
        """List the classes that a choice needs, children first; None where it goes in a circle."""
        done, path, stack = dict[ClassId, None](), set[ClassId](), self.roots[::-1]
        while stack:
            if (one := stack[-1]) in path or one in done:
                done[stack.pop()] = None
                path.discard(one)
                continue
            path.add(one)
            below = [at for child in choice[one].children if (at := self.graph.find(child)) not in done]
            if not path.isdisjoint(below):
                return None
            stack += reversed(below)
        return list(done)

    def of(self, choice: Choice) -> float:
        """Price a choice; infinite where it goes in a circle."""
        return math.inf if (order := self.needed(choice)) is None else self.of_order(choice, order)

    def of_order(self, choice: Choice, order: list[ClassId]) -> float:
        """Price a choice that needs some classes."""
        find, kept, bases = self.graph.find, set(self.kept) & set(order), set()
        for one in order if self.weights.mib else ():
            facts = self.facts[choice[one]]
            kept |= {find(choice[one].children[k]) for k in facts.keeps}
            kept |= {one} if facts.keeps_result else set()
        for one in kept:  # each once, views resolved
            while (view := self.facts[choice[one]].view) is not None:
                one = find(choice[one].children[view])
            bases.add(one)
        held = sum(self.held(one, choice[one]) for one in bases)
        return self.weights.mib * held / _MIB + sum(self.own(one, choice[one]) for one in order)


def extract(costs: FormCosts, *, seconds: float = 5.0) -> Extracted:
    """Find the cheapest choice in some seconds; that of the input where nothing better was found."""
    import highspy

    graph, given, end = costs.graph, costs.given(), time.monotonic() + seconds
    best, cost = given, costs.of(given)
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-7)):
        highs.setOptionValue(name, value)
    of, stack = Columns(), list(costs.roots)
    while stack:
        if (one := stack.pop()) not in of:
            of[one] = {node: highs.addBinary(costs.own(one, node)) for node in graph.nodes[one]}
            stack += [graph.find(child) for node in of[one] for child in node.children]
    _choose_rows(costs, highs, of)
    _keep_rows(costs, highs, of)
    while (left := end - time.monotonic()) > 0:
        highs.setOptionValue("time_limit", highs.getRunTime() + left)
        highs.run()
        if highs.getInfo().primal_solution_status != highspy.kSolutionStatusFeasible:
            break
        values = highs.getSolution().col_value
        pairs = ((one, node, column) for one, nodes in of.items() for node, column in nodes.items())
        choice = given | {one: node for one, node, column in pairs if values[column.index] > 0.5}
        if (found := costs.of(choice)) < cost:
            best, cost = choice, found
        if found < math.inf:
            proved = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
            return Extracted(best, cost, "optimal" if proved else "time_limit")
        _forbid_circle(costs, highs, of, choice)
    return Extracted(best, cost, "time_limit")


def _choose_rows(costs: FormCosts, highs: Any, of: Columns) -> None:
    """Roots have a node; a child of a node that is taken has one."""
    for one in dict.fromkeys(costs.roots):
        highs.addConstr(highs.qsum(of[one].values()) >= 1)
    for one, nodes in of.items():
        for node, taken in nodes.items():
            for child in dict.fromkeys(map(costs.graph.find, node.children)):
                highs.addConstr(taken <= 0 if child == one else highs.qsum(of[child].values()) >= taken)


def _keep_rows(costs: FormCosts, highs: Any, of: Columns) -> None:
    """A value that a node keeps is kept, or what it looks into; who makes it decides what it costs."""
    find = costs.graph.find
    kept = {one: highs.addVariable(0, 1) for one in of}
    for one in costs.kept & set(of):
        highs.addConstr(kept[one] >= 1)
    for one, nodes in of.items():
        for node, taken in nodes.items():
            facts = costs.facts[node]
            own = {one} if facts.keeps_result else set()
            for child in own | {find(node.children[k]) for k in facts.keeps}:
                highs.addConstr(kept[child] >= taken)
            if facts.view is not None:
                if (base := find(node.children[facts.view])) != one:
                    highs.addConstr(kept[base] >= kept[one] + taken - 1)
            elif cost := costs.weights.mib * costs.held(one, node) / _MIB:
                highs.addConstr(highs.addVariable(0, 1, cost) >= kept[one] + taken - 1)


def _forbid_circle(costs: FormCosts, highs: Any, of: Columns, choice: Choice) -> None:
    """Find a circle of a choice; of the classes on it, one must take a node that leaves it."""
    find, below, stack = costs.graph.find, dict[ClassId, list[ClassId]](), list(costs.roots)
    while stack:
        if (one := stack.pop()) not in below:
            below[one] = [find(child) for child in choice[one].children]
            stack += below[one]
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        circle = list(pairwise(error.args[1]))  # children first
        on = [x for child, one in circle for n, x in of[one].items() if child in map(find, n.children)]
        highs.addConstr(highs.qsum(on) <= len(circle) - 1)
