"""Many equal forms of one computation at once: classes of equal values, and the ops that make each.

Idea        An e-node is an op with its options, over classes. A rule adds e-nodes and unites classes. Nothing
            is taken away, so no order of rules matters. What an op keeps for its backward is in no table: the
            op runs on tensors without numbers, and what autograd saves is looked at.
Source      equality saturation (Tate et al., POPL 2009), egg (POPL 2021); tensors as in tensat (MLSys 2021)
Guarantee   Equal nodes are one node. A class holds values of one shape and type.
Complexity  A rebuild is linear in the nodes; rebuilds end when nothing is united any more.
"""

import math
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tightrope.core import Bytes, TightropeError
from tightrope_forms.rewrite._torch import FakeTensorMode, kept_tensors, tree_leaves

aten: Final = torch.ops.aten
GETITEM: Final = operator.getitem
_FLOPS, _STREAM, _START = 4e10, 8e9, 2e-6  # of one core: operations and bytes a second; seconds of any op


class ClassId(int):
    """The number of a class, told apart from other whole numbers."""


class Place(NamedTuple):
    """In the options of a node: where child ``at`` stands."""

    at: int


class Spec(NamedTuple):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    grad: bool = False

    @property
    def bytes(self) -> Bytes:
        """What its numbers take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        """Whether numbers lie row by row, without gaps."""
        return self.stride == torch.empty(self.shape, device="meta").stride()


Value: TypeAlias = Any
"""A `Spec`, or a tuple of them."""


class ENode(NamedTuple):
    """An op, its arguments with a `Place` for every tensor, and the classes of those."""

    op: Any
    args: Any
    children: tuple[ClassId, ...]


class Facts(NamedTuple):
    """What running an op means: its result, what it keeps for its backward, and its time."""

    value: Value
    keeps: tuple[int, ...] = ()  # children whose values are kept
    keeps_result: bool = False
    own: Bytes = 0  # further bytes that are kept
    view: int | None = None  # the child that the result looks into
    seconds: float = 0.0  # modelled, forward alone


def frozen(value: Any, children: list[ClassId]) -> Any:
    """Replace classes in arguments by places, lists by tuples; what stays can be hashed."""
    if isinstance(value, ClassId):
        children.append(value)
        return Place(len(children) - 1)
    if isinstance(value, list | tuple):
        return ("list", *(frozen(one, children) for one in value))
    if isinstance(value, dict):
        return ("dict", *((key, frozen(one, children)) for key, one in sorted(value.items())))
    return (type(value).__name__, value) if isinstance(value, bool | int | float) else value


def thawed(value: Any, children: Any) -> Any:
    """Put values in the places of arguments."""
    if isinstance(value, Place):
        return children[value.at]
    if isinstance(value, tuple) and value and value[0] == "list":
        return [thawed(one, children) for one in value[1:]]
    if isinstance(value, tuple) and value and value[0] == "dict":
        return {key: thawed(one, children) for key, one in value[1:]}
    return value[1] if isinstance(value, tuple) else value


@cache
def facts_of(op: Any, args: Any, given: tuple[Value, ...]) -> Facts:
    """Run an op without numbers; an error says that it does not run so, or returns no tensors."""
    with FakeTensorMode():
        inputs = [_made(one) for one in given]
        try:
            positional, named = thawed(args, inputs)
            with kept_tensors() as saved:
                made = op(*positional, **named)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise TightropeError(f"{op} does not run on such tensors.") from error
        several = isinstance(made, tuple | list)
        results = made if several else (made,)
        if not all(isinstance(one, Tensor) for one in results):
            raise TightropeError(f"{op} returns no tensors.")
        of_inputs, of_results = [_storages(one) for one in inputs], _storages(results)
        kept = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in saved}
        specs = tuple(map(spec_of, results))
        view = next((k for k, storages in enumerate(of_inputs) if storages & of_results), None)
        return Facts(
            value=specs if several else specs[0],
            keeps=tuple(k for k, storages in enumerate(of_inputs) if storages & kept.keys()),
            keeps_result=view is None and bool(of_results & kept.keys()),
            own=sum(size for one, size in kept.items() if one not in of_results.union(*of_inputs)),
            view=view,
            seconds=_START if view is not None else _seconds(op, given, specs),
        )


def _made(value: Value) -> Any:
    if isinstance(value, Spec):
        made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
        return made.requires_grad_() if value.grad else made
    return tuple(_made(one) for one in value)


def _storages(value: Any) -> set[int]:
    return {one.untyped_storage()._cdata for one in tree_leaves(value)}


def spec_of(tensor: Tensor) -> Spec:
    """Describe a tensor."""
    return Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


def _seconds(op: Any, given: tuple[Value, ...], made: tuple[Spec, ...]) -> float:
    """Model the time of one core: what is multiplied, and what is read and written."""
    specs = [one for value in given for one in (value if not isinstance(value, Spec) else (value,))]
    moved = sum(one.bytes for one in (*specs, *made))
    size, name, flops = math.prod(made[0].shape), str(op), 0.0
    if "conv" in name:
        flops = 2.0 * size * math.prod(specs[1].shape[1:])
    elif "dot_product" in name:
        flops = 4.0 * size * specs[1].shape[-2]
    elif any(word in name for word in ("linear", "matmul", ".mm.", "bmm", "addmm")):
        flops = 2.0 * size * specs[-1 if "addmm" in name else 0].shape[-1 if "addmm" not in name else 0]
    return _START + max(flops / _FLOPS, moved / _STREAM)


@dataclass
class EGraph:
    """Classes of equal values."""

    nodes: dict[ClassId, dict[ENode, None]] = field(default_factory=dict)  # the first: as it was given
    values: dict[ClassId, Value] = field(default_factory=dict)
    applied: list[tuple[tuple[ClassId, ENode], ...]] = field(default_factory=list)
    """Of every use of a rule: the classes that it united, and nodes that they may take."""
    why: dict[ENode, str] = field(default_factory=dict)  # the rule that added a node
    _parents: list[int] = field(default_factory=list)
    _known: dict[ENode, ClassId] = field(default_factory=dict)

    def find(self, one: int) -> ClassId:
        """Return the class that another one was united with."""
        while self._parents[one] != one:
            self._parents[one] = self._parents[self._parents[one]]
            one = self._parents[one]
        return ClassId(one)

    def leaf(self, spec: Value, *, held: bool = True) -> ClassId:
        """Add a value that comes from outside; ``held`` ones cost nothing where they are kept."""
        number = sum(node.op == "leaf" for node in self._known)
        return self._new(ENode("leaf", (number, held), ()), spec)

    def _new(self, node: ENode, value: Value) -> ClassId:
        made = ClassId(len(self._parents))
        self._parents.append(made)
        self._known[node] = made
        self.nodes[made], self.values[made] = {node: None}, value
        return made

    def make(self, op: Any, *given: Any, **named: Any) -> ClassId:
        """Add an op on classes and options; return the class of its result.

        Raises:
            TightropeError: the op does not run on such tensors.
        """
        children: list[ClassId] = []
        args = frozen([list(given), named], children)
        return self.add(ENode(op, args, tuple(children)))

    def add(self, node: ENode) -> ClassId:
        """Add a node; return its class; errors are those of `make`."""
        node = self.named(node)
        known = self._known.get(node)
        return self._new(node, self.facts(node).value) if known is None else self.find(known)

    def facts(self, node: ENode) -> Facts:
        """Say what running a node means."""
        if node.op == "leaf":
            return Facts(self.values[self.find(self._known[node])])
        return facts_of(node.op, node.args, tuple(self.values[self.find(one)] for one in node.children))

    def alike(self, one: ClassId, other: ClassId) -> bool:
        """Tell whether values have one shape and type; else a rule did not match."""
        first, second = self.values[one], self.values[other]
        return isinstance(first, Spec) and isinstance(second, Spec) and first[::2] == second[::2]

    def unite(self, pairs: list[tuple[ClassId, ClassId]], why: str) -> bool:
        """Say that classes are equal, as one use of a rule; return whether that is news."""
        moves = list[tuple[ClassId, ENode]]()
        for old, new in pairs:
            old, new = self.find(old), self.find(new)
            if old == new or not self.alike(old, new):
                continue
            first, second = min(old, new), max(old, new)  # what was there before stays in front
            for node in self.nodes[new]:
                moves.append((first, node))
                if new == second and why:
                    self.why.setdefault(node, why)
            self._parents[second] = first
            self.nodes[first] |= self.nodes.pop(second)
        if moves:
            self.applied.append(tuple(moves))
        return bool(moves)

    def rebuild(self) -> None:
        """Unite classes whose nodes became equal, until none does."""
        changed = True
        while changed:
            changed, self._known = False, {}
            for one in list(self.nodes):
                fresh = {self.named(node): node for node in self.nodes[one]}
                for node, before in fresh.items():
                    if before in self.why:
                        self.why.setdefault(node, self.why[before])
                    other = self.find(self._known.setdefault(node, one))
                    if other != self.find(one):
                        self._parents[one] = other
                        changed = True
                self.nodes[one] = dict.fromkeys(fresh)
                if self._parents[one] != one:
                    self.nodes[self.find(one)] |= self.nodes.pop(one)
        self.applied = [tuple((self.find(c), self.named(n)) for c, n in moves) for moves in self.applied]

    def named(self, node: ENode) -> ENode:
        """Return a node over classes as they are united now."""
        return node._replace(children=tuple(map(self.find, node.children)))

    def copied(self) -> "EGraph":
        """Return a graph of the same classes, which grows on its own."""
        return EGraph(
            dict(self.nodes),
            dict(self.values),
            why=dict(self.why),
            _parents=[*self._parents],
            _known={**self._known},
        )

    def redirected(self, into: dict[ClassId, ClassId]) -> "EGraph":
        """Return this graph where what reads some classes reads others instead."""
        return replace(self, _parents=[into.get(ClassId(at), one) for at, one in enumerate(self._parents)])

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return sum(map(len, self.nodes.values()))

    def by(self, one: int, *ops: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the arguments of the nodes of a class with one of some ops, and their named ones."""
        for node in list(self.nodes.get(self.find(one), ())):
            if node.op in ops:
                yield thawed(node.args, list(map(self.find, node.children)))

    def all_by(self, *ops: Any) -> Iterator[tuple[ClassId, Any, Any]]:
        """Yield every node with one of some ops: its class, its arguments, and its named ones."""
        for one in list(self.nodes):
            for given, named in self.by(one, *ops) if one in self.nodes else ():
                yield self.find(one), given, named


Rewrites: TypeAlias = Callable[[EGraph], Iterator[list[tuple[ClassId, ClassId]]]]


def saturate(
    graph: EGraph, rules: dict[str, Rewrites], *, most_nodes: int = 500, rounds: int = 6, end: float = 1e300
) -> bool:
    """Apply rules until nothing is new; return whether that is so, rather than a limit or an end in time."""
    for _ in range(rounds):
        news = False
        for name, rule in rules.items():
            for pairs in rule(graph):
                news |= graph.unite(pairs, name)
                if graph.num_nodes >= most_nodes or time.monotonic() > end:
                    graph.rebuild()
                    return False
            graph.rebuild()
        if not news:
            return True
    return False
