"""From a model to e-graphs of its parts, and back to a model.

Idea        `torch.export` writes a model down as ops of ATen, with the model's own parameters. What draws
            numbers, writes in place or returns no single tensor stays as it is: its inputs are roots of an
            e-graph and its results leaves. A long model is cut where one activation alone goes on, and parts
            that are alike are solved once.
Guarantee   Ops that stay run once each, in their order. A form that needs itself, or another order, is none.
Gaps        Sizes are those of the example. Models that do not export are refused.
"""

import operator
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import ClassId, EGraph, Facts, Spec, facts_of, frozen, spec_of, thawed
from tightrope_forms.rewrite.extract import Choice

aten: Final = torch.ops.aten
_LINES: Final = ("stack_trace", "nn_module_stack")
_STAYING: Final = ("dropout", "rand", "bernoulli", "normal")


@dataclass
class Section:
    """A part of a model as an e-graph."""

    inside: set[fx.Node]  # whose values are in the e-graph, and no leaves
    graph: EGraph = field(default_factory=EGraph)
    leaves: list[fx.Node] = field(default_factory=list)  # what comes from outside
    classes: dict[fx.Node, ClassId] = field(default_factory=dict)
    roots: list[fx.Node] = field(default_factory=list)  # needed outside
    kept: list[fx.Node] = field(default_factory=list)  # by an op outside, for its backward
    key: str = ""  # equal for parts that are alike


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    """Write a model down as ops, or say why torch.export does not."""
    try:
        made = torch.export.export(model, args, kwargs, strict=False).module(check_guards=False)
    except Exception as error:  # whatever a model or torch raises
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TightropeError(f"torch.export says {said[0]:.200}") from error
    assert isinstance(made, fx.GraphModule)
    checks = made.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)
    for node in checks:  # of what an example has anyway
        made.graph.erase_node(node)
    return made


class ExportedValues:
    """Specs of the nodes of an exported graph, and what its ops keep; ops that read ``fixed`` inputs stay.

    Ops in place give new values instead, where no view sees the old ones: a plan overwrites what is free.
    """

    def __init__(self, module: fx.GraphModule, fixed: Collection[int] = (), *, frozen: bool = False) -> None:
        self.held = ("get_attr", "placeholder")[: 1 if frozen else 2]  # cost nothing where they are kept
        inputs = module.graph.find_nodes(op="placeholder")
        self._fixed = {user for number in fixed for user in inputs[number].users}
        inner = (one for one in module.modules() if one is not module and isinstance(one, fx.GraphModule))
        self._inside = [node for one in inner for node in one.graph.nodes]  # such as parts without gradients
        self.of: dict[fx.Node, Any] = {}
        self.facts: dict[fx.Node, Facts] = {}
        for node in module.graph.nodes:
            self._undo_write(node)
            value = node.meta.get("val")
            if node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(module)
            self.of[node] = spec_of(value) if isinstance(value, Tensor) else None
            if frozen and (isinstance(value, nn.Parameter) or node.op == "placeholder") and self.of[node]:
                self.of[node] = self.of[node]._replace(grad=value.is_floating_point())
            if node.op == "call_function":
                with suppress(TightropeError):  # it stays as it is
                    self.facts[node] = self._facts(node.target, node)
                    self.of[node] = self.facts[node].value

    def _facts(self, op: Any, node: fx.Node) -> Facts:
        args, inputs = _frozen(node)
        specs = tuple(self.of[one] for one in inputs)
        if None in specs:
            raise TightropeError(f"{op} reads no tensor.")
        return facts_of(op, args, specs)

    def _undo_write(self, node: fx.Node) -> None:
        """Let an op give a new value for later ops, if no view sees the one that it writes over."""
        written = _written(node)
        if not written or node.args[:1] != (old := written[0],):
            return
        _, name, overload = str(node.target).split(".")
        new: Any = getattr(getattr(aten, name.removesuffix("_"), None), overload, None)
        earlier = [one for one in (old, *old.users) if one in self.of]
        if torch.Tag.pointwise not in getattr(new, "tags", ()) or not all(map(self._own, earlier)):
            return
        with suppress(TightropeError):  # it has no such form
            if self._facts(new, node).value[:3] == self.of[old][:3]:
                node.target = new
                old.replace_all_uses_with(node, lambda user: user is not node and user not in self.of)

    def _own(self, node: fx.Node) -> bool:
        """Tell whether an op was run without numbers, and gave a tensor that looks into no other."""
        return node in self.facts and self.facts[node].view is None

    def stays(self, node: fx.Node) -> bool:
        """Tell whether an op is left as it is."""
        if node not in self.facts or node in self._fixed:
            return True
        if node.target is operator.getitem:
            return self.stays(node.all_input_nodes[0])
        schema = getattr(node.target, "_schema", None)
        changes = schema is None or schema.is_mutable or _updates(node)
        return changes or any(word in str(node.target) for word in _STAYING)

    def refuse_writes(self) -> None:
        """Refuse writes in place, but into inputs that only ops read that stay, which run in their order."""
        wrote: set[fx.Node] = set()
        for node in (*self._inside, *self.of):
            for one in _written(node):
                into = one.op == "placeholder" or one in wrote
                if node not in self.of or not into or not all(map(self.stays, one.users)):
                    raise TightropeError(f"{node.target} writes in place.")
                wrote |= {node} if node.target._schema.is_mutable else set()


def _updates(node: fx.Node) -> bool:
    """Tell whether an op is a norm that writes over its statistics."""
    evaluated = node.target is aten.batch_norm.default and not node.args[5]
    return not evaluated and any(word in str(node.target) for word in ("batch_norm", "instance_norm"))


def _written(node: fx.Node) -> list[fx.Node]:
    """List what an op writes over: as its schema says, or running statistics, of which none does."""
    if (schema := getattr(node.target, "_schema", None)) is None:
        return []
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
    names = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    if _updates(node):
        names += ["running_mean", "running_var"]
    found: list[fx.Node] = []
    fx.map_arg([given.get(name) for name in names], found.append)
    return found


def _frozen(node: fx.Node) -> tuple[Any, list[fx.Node]]:
    """Return the arguments of a node with places for nodes, and these."""
    inputs: list[fx.Node] = []

    def place(one: fx.Node) -> Any:
        inputs.append(one)
        return ClassId(len(inputs) - 1)

    return frozen(fx.map_arg((node.args, node.kwargs), place), []), inputs


def sections(module: fx.GraphModule, values: ExportedValues, *, shortest: int = 6) -> list[Section]:
    """Cut an exported graph into parts where one activation with a gradient goes on.

    Parts have ``shortest`` ops or more. Where weights are frozen, inputs and what they make count as such.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    place = {node: at for at, node in enumerate(nodes)}
    live = {node for node in module.graph.nodes if node.op == "placeholder" and node.op not in values.held}
    last = {
        node: max((place.get(user, len(nodes)) for user in node.users), default=-1)
        for node in (*live, *nodes)
    }
    parts: list[list[fx.Node]] = [[]]
    for at, node in enumerate(nodes):
        parts[-1].append(node)
        live = {one for one in (*live, node) if last[one] > at and _has_grad(values.of.get(one))}
        if len(live) == 1 and len(parts[-1]) >= shortest:
            parts.append([])
    return [_section(part, values) for part in parts if part]


def _has_grad(value: Any) -> bool:
    return value.grad if isinstance(value, Spec) else isinstance(value, tuple) and any(map(_has_grad, value))


def _section(nodes: list[fx.Node], values: ExportedValues) -> Section:
    made = Section({node for node in nodes if not values.stays(node)})
    key: list[Any] = []
    for node in filter(made.inside.__contains__, nodes):
        args, inputs = _frozen(node)
        for one in inputs:
            if one not in made.classes:
                held = one.op in values.held
                made.classes[one] = made.graph.leaf(values.of[one], held=held)
                made.leaves.append(one)
                key.append((values.of[one], held))
        classes = tuple(made.classes[one] for one in inputs)
        given, named = thawed(args, classes)
        made.classes[node] = made.graph.make(node.target, *given, **named)
        key.append((node.target, args, classes))
    for node in nodes:
        outside = [user for user in node.users if user not in made.inside]
        if node in made.inside and outside:
            made.roots.append(node)
            read = ((values.facts.get(user), _frozen(user)[1]) for user in outside)
            if any(facts and any(inputs[k] is node for k in facts.keeps) for facts, inputs in read):
                made.kept.append(node)
    made.key = repr((key, [made.classes[one] for one in (*made.roots, *made.kept)]))
    return made


def emitted(
    module: fx.GraphModule, parts: Sequence[Section], choices: Sequence[tuple[EGraph, Choice] | None]
) -> fx.GraphModule | None:
    """Write a model with forms of its parts; None where there are none, or one needs what comes later."""
    if not any(choices):
        return None
    graph, known, open_ = fx.Graph(), dict[Any, Any](), set[Any]()
    graph.set_codegen(module.graph._codegen)
    chosen = [(part, choice) for part, choice in zip(parts, choices, strict=True) if choice]
    of_part = {node: pair for pair in chosen for node in pair[0].roots}

    def value_of(node: fx.Node) -> Any:
        if node not in known:
            if (pair := of_part.get(node)) is None:
                known[node] = graph.node_copy(node, value_of)
            else:
                known[node] = class_of(*pair, pair[0].classes[node], node)
        return known[node]

    def class_of(part: Section, form: tuple[EGraph, Choice], one: ClassId, source: fx.Node) -> Any:
        one = form[0].find(one)
        source = next((node for node, at in part.classes.items() if form[0].find(at) == one), source)
        at = (id(part), one)
        if at in open_:
            raise RecursionError("a form needs itself")
        if at not in known:
            open_.add(at)
            node = form[1][one]
            if node.op == "leaf":
                known[at] = value_of(part.leaves[node.args[0]])
            else:
                children = [class_of(part, form, child, source) for child in node.children]
                given, named = thawed(node.args, children)
                known[at] = graph.call_function(node.op, tuple(given), named)
                known[at].meta = {key: source.meta[key] for key in _LINES if key in source.meta}
            open_.remove(at)
        return known[at]

    inside = {node for part in parts for node in part.inside}
    try:
        for node in module.graph.nodes:
            if node not in inside or node in of_part:
                value_of(node)
    except RecursionError:
        return None
    place = {node: at for at, node in enumerate(graph.nodes)}
    stayed = [place[known[node]] for node in module.graph.nodes if node not in inside and node.args]
    (before,), (after,) = (one.find_nodes(op="output") for one in (module.graph, graph))
    if stayed != sorted(stayed) or len(set(before.args[0])) != len(set(after.args[0])):
        return None  # random numbers would be drawn in another order; results would be one tensor
    return fx.GraphModule(module, graph).train(module.training)
