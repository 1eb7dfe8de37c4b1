"""From a model to e-graphs of its parts, and back to a model.

Idea        `torch.export` writes a model down as ops of ATen, with the model's own parameters. What draws
            numbers, writes in place or returns no single tensor stays as it is: its inputs are roots of an
            e-graph and its results leaves. A long model is cut where one activation alone goes on, and parts
            that are alike are solved once.
Guarantee   Ops that stay run once each, in their order. A part whose form would need itself stays as it was.
Gaps        Sizes are those of the example. Models that do not export are refused.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import (
    ClassId,
    EGraph,
    Facts,
    Spec,
    facts_of,
    frozen,
    spec_of,
    thawed,
)
from tightrope_forms.rewrite.extract import Choice

_SHORTEST: Final = 6
_STAYING: Final = ("batch_norm", "dropout", "rand", "bernoulli", "normal", "instance_norm")


@dataclass
class Section:
    """A part of a model as an e-graph.

    Attributes:
        nodes: of the exported graph.
        graph: the e-graph.
        leaves: what comes from outside, in the order of the e-graph's leaves.
        classes: of nodes.
        roots: nodes whose values are needed outside.
        kept: those that an op outside keeps for its backward.
        inside: nodes whose values are in the e-graph, and no leaves.
        key: equal for parts that are alike.
    """

    nodes: list[fx.Node]
    graph: EGraph = field(default_factory=EGraph)
    leaves: list[fx.Node] = field(default_factory=list)
    classes: dict[fx.Node, ClassId] = field(default_factory=dict)
    roots: list[fx.Node] = field(default_factory=list)
    kept: list[fx.Node] = field(default_factory=list)
    inside: set[fx.Node] = field(default_factory=set)
    key: str = ""


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    """Write a model down as ops.

    Raises:
        TightropeError: it does not export.
    """
    try:
        made = torch.export.export(model, args, kwargs, strict=False).module(check_guards=False)
    except Exception as error:  # whatever a model or torch raises
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TightropeError(f"{type(model).__name__} cannot be exported: {said[0]:.200}") from error
    assert isinstance(made, fx.GraphModule)
    for node in list(made.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:  # what an example has anyway
            made.graph.erase_node(node)
    return made


def _attribute(module: nn.Module, path: str) -> Any:
    return operator.attrgetter(path)(module)


class ExportedValues:
    """Specs of the nodes of an exported graph, and what its ops keep."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.of: dict[fx.Node, Any] = {}
        self.facts: dict[fx.Node, Facts] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":
                value = _attribute(module, str(node.target))
                self.of[node] = spec_of(value) if isinstance(value, Tensor) else None
            elif node.op == "placeholder":
                value = node.meta.get("val")
                self.of[node] = spec_of(value) if isinstance(value, Tensor) else None
            elif node.op == "call_function":
                self._run(node)

    def _run(self, node: fx.Node) -> None:
        inputs: list[fx.Node] = []
        args = _frozen([list(node.args), dict(node.kwargs)], inputs)
        specs = tuple(self.of.get(one) for one in inputs)
        try:
            if any(one is None for one in specs):
                raise TightropeError("an input is no tensor")
            self.facts[node] = facts_of(node.target, args, specs)
            self.of[node] = self.facts[node].value
        except TightropeError:  # it stays as it is
            value = node.meta.get("val")
            self.of[node] = spec_of(value) if isinstance(value, Tensor) else None

    def stays(self, node: fx.Node) -> bool:
        """Tell whether an op is left as it is."""
        if node.op != "call_function" or node not in self.facts:
            return True
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self.stays(source)
        schema = getattr(node.target, "_schema", None)
        name = str(node.target)
        return schema is None or schema.is_mutable or any(word in name for word in _STAYING)


def _frozen(value: Any, inputs: list[fx.Node]) -> Any:
    classes: list[ClassId] = []

    def replaced(one: Any) -> Any:
        if isinstance(one, fx.Node):
            inputs.append(one)
            return ClassId(len(inputs) - 1)
        if isinstance(one, list | tuple):
            return [replaced(part) for part in one]
        if isinstance(one, dict):
            return {key: replaced(part) for key, part in one.items()}
        return one

    return frozen(replaced(value), classes)


def sections(module: fx.GraphModule, values: ExportedValues) -> list[Section]:
    """Cut an exported graph into parts where one activation with a gradient goes on."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    place = {node: at for at, node in enumerate(nodes)}
    last = {node: max((place.get(user, len(nodes)) for user in node.users), default=-1) for node in nodes}
    parts: list[list[fx.Node]] = [[]]
    live: set[fx.Node] = set()
    for at, node in enumerate(nodes):
        parts[-1].append(node)
        live = {one for one in (*live, node) if last[one] > at and _has_grad(values.of.get(one))}
        if len(live) == 1 and len(parts[-1]) >= _SHORTEST:
            parts.append([])
    return [_section(part, values) for part in parts if part]


def _has_grad(value: Any) -> bool:
    return value.grad if isinstance(value, Spec) else isinstance(value, tuple) and any(map(_has_grad, value))


def _section(nodes: list[fx.Node], values: ExportedValues) -> Section:
    inside = {node for node in nodes if not values.stays(node)}
    made = Section(nodes, inside=inside)
    held = {"get_attr", "placeholder"}
    key: list[Any] = []
    for node in nodes:
        if node not in inside:
            continue
        inputs: list[fx.Node] = []
        args = _frozen([list(node.args), dict(node.kwargs)], inputs)
        for one in inputs:
            if one not in made.classes:
                made.classes[one] = made.graph.leaf(values.of[one], held=one.op in held)
                made.leaves.append(one)
                key.append((values.of[one], one.op in held))
        given, named = thawed(args, [made.classes[one] for one in inputs])
        made.classes[node] = made.graph.make(node.target, *given, **named)
        key.append((node.target, args, tuple(made.classes[one] for one in inputs)))
    for node in nodes:
        outside = [user for user in node.users if user not in inside]
        if node in inside and outside:
            made.roots.append(node)
            if any(_keeps(user, node, values) for user in outside):
                made.kept.append(node)
    key.append([made.classes[one] for one in (*made.roots, *made.kept)])
    made.key = repr(key)
    return made


def _keeps(user: fx.Node, node: fx.Node, values: ExportedValues) -> bool:
    facts, inputs = values.facts.get(user), list[fx.Node]()
    _frozen([list(user.args), dict(user.kwargs)], inputs)
    return facts is not None and any(inputs[k] is node for k in facts.keeps)


def emitted(
    module: fx.GraphModule, parts: Sequence[Section], choices: Sequence[tuple[EGraph, Choice] | None]
) -> fx.GraphModule:
    """Write a model down again, with a chosen form of every part; None = as it was."""
    graph, known = fx.Graph(), dict[fx.Node, Any]()
    graph.set_codegen(module.graph._codegen)
    of_part = {
        node: (part, choice) for part, choice in zip(parts, choices, strict=True) for node in part.roots
    }
    known_classes: dict[int, dict[ClassId, Any]] = {}

    def value_of(node: fx.Node) -> Any:
        if node not in known:
            part, choice = of_part.get(node, (None, None))
            if part is None or choice is None:
                known[node] = graph.node_copy(node, value_of)
            else:
                cache = known_classes.setdefault(id(part), {})
                known[node] = class_of(part, choice, part.classes[node], cache, set())
        return known[node]

    def class_of(
        part: Section,
        form: tuple[EGraph, Choice],
        one: ClassId,
        cache: dict[ClassId, Any],
        open_: set[ClassId],
    ) -> Any:
        chosen, choice = form
        one = chosen.find(one)
        if one in open_:
            raise RecursionError("a form needs itself")
        if one not in cache:
            node, open_ = choice[one], open_ | {one}
            if node.op == "leaf":
                cache[one] = value_of(part.leaves[node.args[0]])
            else:
                children = [class_of(part, form, child, cache, open_) for child in node.children]
                given, named = thawed(node.args, children)
                cache[one] = graph.call_function(node.op, tuple(given), named)
        return cache[one]

    inside = {node for part in parts for node in part.nodes if node in part.inside}
    for node in module.graph.nodes:
        if node not in inside or node in of_part:
            value_of(node)
    made = fx.GraphModule(module, graph)
    made.train(module.training)
    return made
