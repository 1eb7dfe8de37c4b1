"""Graphs that are reached by one use of a rule after another, as TASO and X-RLflow walk.

Idea        A form is an e-graph of one node a class. Every match of a rule in it is an edit: what reads the
            class that matched reads its equal instead. An edit is priced with all that it shares, before it
            is made. So a form may cost more than the one before it, where a later edit pays that back.
Source      TASO (SOSP 2019), X-RLflow (MLSys 2023)
Guarantee   Forms are equal as far as rules are. Forms that are the same graph have the same key.
Complexity  Rules times nodes for all matches, and the size of the form for the price of each.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import ClassId, EGraph, ENode
from tightrope_forms.rewrite.extract import Choice, Extracted, FormCosts
from tightrope_forms.rewrite.rules import RULES

Pairs = Sequence[tuple[ClassId, ClassId]]
"""Classes, and what equals them."""


class Edit(NamedTuple):
    """One use of a rule on a form."""

    rule: str
    cost: float  # of the form that it makes
    sites: tuple[ClassId, ...]  # that are read no more
    added: Sequence[tuple[ClassId, ENode]]
    removed: Sequence[tuple[ClassId, ENode]]
    costs: FormCosts  # of both forms at once


class GraphForm:
    """A graph, and the rules that led to it."""

    def __init__(self, costs: FormCosts, choice: Choice, rules: tuple[str, ...] = ()) -> None:
        """Write down a choice alone.

        Raises:
            TightropeError: an op does not run on what it reads now, such as a view of another layout.
        """
        self.rules, self.graph = rules, EGraph()
        old, made = costs.graph, dict[ClassId, ClassId]()
        for _, held, one in sorted(
            (*n.args, at) for at, some in old.nodes.items() for n in some if n.op == "leaf"
        ):
            made[one] = self.graph.leaf(old.values[one], held=held)  # numbers stay
        order = costs.needed(choice)
        assert order is not None
        for one in order:
            node = choice[one]
            if node.op != "leaf":
                fresh = node._replace(children=tuple(made[old.find(child)] for child in node.children))
                made[one] = self.graph.add(fresh)
                if node in old.why:
                    self.graph.why[fresh] = old.why[node]
        roots, kept = [made[one] for one in costs.roots], {made[one] for one in costs.kept if one in made}
        self.costs = FormCosts(self.graph, roots, kept, costs.weights, frozen=costs.frozen)
        self.choice = _firsts(self.graph)
        self.order = self.costs.needed(self.choice) or []
        self.cost = self.costs.of_order(self.choice, self.order)
        self.key = (*roots, *self.choice.values())

    @cached_property
    def edits(self) -> list[Edit]:
        """List what one use of a rule makes."""
        view, uses, every = self.graph.copied(), list[tuple[str, Pairs]](), dict(self.graph.nodes)
        for name, rule in RULES.items():
            uses += ((name, pairs) for pairs in rule(view))
            every |= view.nodes
            view.nodes = dict(self.graph.nodes)  # a rule finds nothing in what another one made
        view.nodes = every
        own = self.costs
        costs = FormCosts(view, own.roots, own.kept, own.weights, frozen=own.frozen)
        choice = _firsts(view)
        return [edit for name, pairs in uses if (edit := self._edit(costs, choice, name, pairs)) is not None]

    def _edit(self, costs: FormCosts, choice: Choice, rule: str, pairs: Pairs) -> Edit | None:
        into = {one: new for one, new in pairs if one != new and costs.graph.alike(one, new)}
        after, before = costs.redirected(into), set(self.order)
        order = after.needed(choice)
        if not into or order is None:  # nothing new, or in a circle
            return None
        for new in into.values():
            if new not in before:
                costs.graph.why.setdefault(choice[new], rule)
        added = tuple((one, choice[one]) for one in order if one not in before)
        removed = tuple((one, choice[one]) for one in before.difference(order))
        return Edit(rule, after.of_order(choice, order), tuple(into), added, removed, after)

    def edited(self, edit: Edit) -> "GraphForm | None":
        """Make an edit; None where an op does not run on what it would read."""
        try:
            return GraphForm(edit.costs, _firsts(edit.costs.graph), (*self.rules, edit.rule))
        except TightropeError:
            return None

    def within(self, graph: EGraph, roots: Sequence[ClassId]) -> Choice:
        """Enter this form into the e-graph that it came from; return its nodes there."""
        leaves = {node: one for one, nodes in graph.nodes.items() for node in nodes if node.op == "leaf"}
        made = dict[ClassId, ClassId]()
        for one, node in self._nodes(made):
            made[one] = leaves[node] if node.op == "leaf" else graph.add(node)
            if self.choice[one] in self.graph.why:
                graph.why.setdefault(node, self.graph.why[self.choice[one]])
        graph.unite(list(zip(roots, (made[one] for one in self.costs.roots), strict=True)), "")
        graph.rebuild()
        return {graph.find(made[one]): graph.named(node) for one, node in self._nodes(made)}

    def _nodes(self, into: dict[ClassId, ClassId]) -> Iterator[tuple[ClassId, ENode]]:
        """Yield nodes over other classes, children first."""
        for one in self.order:
            node = self.choice[one]
            yield one, node._replace(children=tuple(into[child] for child in node.children))


def searched(costs: FormCosts, walk: Callable[[GraphForm], GraphForm]) -> tuple[FormCosts, Extracted]:
    """Search from the form that came in; return what was found, and the price of all forms with it."""
    form = GraphForm(costs, costs.given())
    choice = (walk(form) if form.edits else form).within(costs.graph, costs.roots)
    both = FormCosts(costs.graph, costs.roots, costs.kept, costs.weights, frozen=costs.frozen)
    given = both.given()
    best = min(given, given | choice, key=both.of)
    return both, Extracted(best, both.of(best), "searched")


def _firsts(graph: EGraph) -> Choice:
    return {one: next(iter(nodes)) for one, nodes in graph.nodes.items()}
