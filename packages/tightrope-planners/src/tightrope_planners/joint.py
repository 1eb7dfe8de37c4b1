"""Joint graphs of torch.compile as graphs of storages, and back to a forward and a backward.

Idea        torch.compile's partitioner hands over one graph of forward and backward. What is kept
            between the two is a set of storages; the backward makes the rest again, each value once,
            right before its first reader.
Guarantee   A random op, a collective and an op with effects never run twice: what they make is kept
            where the backward needs it, and the split is checked.
Complexity  Linear in the nodes.
Gaps        Static shapes only; a random op's mask is kept together with its result.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from msgspec.structs import replace
from torch.utils.checkpoint import CheckpointPolicy

from tightrope.capture import _torch
from tightrope.capture.build import build_program
from tightrope.capture.program import Program
from tightrope.capture.typed import tensor_of
from tightrope.capture.variants import members
from tightrope.core import CaptureError, Graph, Kind, Op, OpId, StorageId
from tightrope_planners import _torch as cut

_ALIKE = frozenset(
    ("full", "full_like", "inductor_random", "inductor_lookup_seed", "iota", "convert_element_type", "where")
)
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "var_mean", "var", "any", "all", "max", "min", "argmax", "argmin", "prod")
)


@dataclass(frozen=True)
class Joint:
    """A joint graph and its storages.

    Attributes:
        module: as torch handed it over.
        graph: its storages, with what torch's backward can make again: ops without variants.
        storage_of: tensor node -> storage.
        roots: storage -> the node that is its root tensor.
        outputs: nodes that the forward returns.
        num_forward_outputs: as torch counts them.
        pointwise: ops that make one element from one element of each input.
        fusible: these, and reductions.
    """

    module: torch.fx.GraphModule
    graph: Graph
    storage_of: Mapping[torch.fx.Node, StorageId]
    roots: Mapping[StorageId, torch.fx.Node]
    outputs: tuple[torch.fx.Node, ...]
    num_forward_outputs: int
    pointwise: frozenset[OpId]
    fusible: frozenset[OpId]


def read_joint(module: torch.fx.GraphModule, *, num_forward_outputs: int) -> Joint:
    """Read a joint graph of forward and backward.

    Raises:
        CaptureError: dynamic shapes, or an op that is half a view.
    """
    copy, original, written = _without_writes(module)
    kinds = {node.name: Kind.INPUT for node in copy.graph.find_nodes(op="placeholder")}
    program = build_program(
        copy,
        kinds,
        num_forward_outputs=num_forward_outputs,
        user_outputs=range(num_forward_outputs),
        written=written,
        name="joint graph",
        states=False,
    )
    named = {node.name: node for node in copy.graph.nodes}
    calls = {op.id: named[op.name].target for op in program.graph.ops if op.name in named}
    pointwise = frozenset(op for op, target in calls.items() if _is_pointwise(target))
    (output,) = copy.graph.find_nodes(op="output")
    returned = [node for node in output.args[0][:num_forward_outputs] if isinstance(node, torch.fx.Node)]
    return Joint(
        module,
        _without_variants(program.graph),
        {original[node]: s for node, s in _storages(copy, program) if node in original},
        {s: original[node] for s, node in _roots(named, program.graph) if node in original},
        tuple(original[node] for node in returned),
        num_forward_outputs,
        pointwise,
        pointwise | {op for op, target in calls.items() if _name(target) in _REDUCTIONS},
    )


def _storages(module: torch.fx.GraphModule, program: Program) -> Iterator[tuple[torch.fx.Node, StorageId]]:
    for node in module.graph.nodes:
        value = tensor_of(node)
        first = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(first, torch.Tensor) and (key := _torch.storage_key(first)) in program.keys:
            yield node, program.keys[key]


def _roots(named: Mapping[str, torch.fx.Node], graph: Graph) -> Iterator[tuple[StorageId, torch.fx.Node]]:
    """The node whose value is each storage's first tensor."""
    inputs = {given.name: given.view for part in graph.parts for given in part.inputs}
    for name, view in reversed(inputs.items()):
        if view is not None:
            yield view.base, named[name]
    for op in graph.ops:
        picked = members(named[op.name]) if op.name in named else {}
        for result in op.results:
            if result.position < 0:
                yield result.view.base, named[op.name]
            elif result.position in picked:
                yield result.view.base, picked[result.position]


def _without_writes(
    module: torch.fx.GraphModule,
) -> tuple[torch.fx.GraphModule, dict[torch.fx.Node, torch.fx.Node], list[str]]:
    """Copy a joint graph without the writes to inputs at its end; name the inputs that they change."""
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    results = graph.graph_copy(module.graph, copies)
    end = graph.output(results)
    (old,) = module.graph.find_nodes(op="output")
    end.meta = dict(old.meta)
    writes = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    changed = [node for node in writes if not node.users and node.args[0].op == "placeholder"]
    names = [str(node.args[0].name) for node in changed]
    for node in changed:
        graph.erase_node(node)
    gone = set(changed)
    original = {new: node for node, new in copies.items() if new not in gone}
    return torch.fx.GraphModule(module, graph), original, names


def _is_pointwise(target: object) -> bool:
    return torch.Tag.pointwise in getattr(target, "tags", ()) or _name(target) in _ALIKE


def _name(target: object) -> str:
    return str(target).split(".")[1] if str(target).count(".") > 1 else str(target)


def _without_variants(graph: Graph) -> Graph:
    return replace(graph, ops=tuple(replace(op, variant=-1) for op in graph.ops), variants=())


def must_keep(graph: Graph) -> frozenset[StorageId]:
    """List what ops make that must not run twice."""
    return frozenset(storage for op in graph.ops if not op.recomputable for storage in op.creates)


def split_joint(
    joint: Joint, kept: Set[StorageId], *, static: Sequence[int] = ()
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cut a joint graph so that ``kept`` (and what must not be made again) passes to the backward.

    Args:
        joint: as read.
        kept: forward storages; inputs and outputs of the forward pass anyway.
        static: positions of inputs that live as long as the model, as torch says.

    Raises:
        CaptureError: the backward would run an op again that must not run twice.
    """
    there = {joint.storage_of[node] for node in joint.outputs if node in joint.storage_of}
    passing = kept | there | must_keep(joint.graph)
    inputs = [n for n in joint.module.graph.find_nodes(op="placeholder") if not _is_tangent(n)]
    early = _forward_nodes(joint).difference(inputs)
    saved = inputs + [joint.roots[s] for s in sorted(passing) if joint.roots.get(s) in early]
    forward, backward = cut.split_joint(
        joint.module, saved, num_forward_outputs=joint.num_forward_outputs, static=static
    )
    _check_split(joint.graph, forward, backward)
    return forward, backward


def _is_tangent(node: torch.fx.Node) -> bool:
    return str(node.target).startswith("tangents")


def _forward_nodes(joint: Joint) -> set[torch.fx.Node]:
    """Nodes that depend on no gradient."""
    late: set[torch.fx.Node] = set()
    found: set[torch.fx.Node] = set()
    for node in joint.module.graph.nodes:
        if (node.op == "placeholder" and _is_tangent(node)) or any(n in late for n in node.all_input_nodes):
            late.add(node)
        else:
            found.add(node)
    return found


def _check_split(graph: Graph, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    once: dict[str, Op] = {op.name: op for op in graph.ops if not op.recomputable}
    first = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    for node in backward.graph.nodes:
        if node.op == "call_function" and node.name in first and node.name in once:
            raise CaptureError(
                f"the backward would run {once[node.name].describe()} again, which must not run twice: "
                "this torch splits its graphs differently. Use tightrope.compile instead."
            )


def mark_nodes(joint: Joint, kept: Set[StorageId], again: Iterable[str]) -> None:
    """Mark nodes as checkpoint policies do, so that torch's own cut comes out as chosen.

    Args:
        joint: as read; its nodes' ``meta`` is changed.
        kept: forward storages to be saved.
        again: names of the ops to be run again.
    """
    for storage in kept | must_keep(joint.graph):
        if storage in joint.roots:
            joint.roots[storage].meta["recompute"] = CheckpointPolicy.MUST_SAVE
    named = {node.name: node for node in joint.module.graph.nodes}
    for name in again:
        for node in (named[name], *named[name].users):
            if node is named[name] or "getitem" in str(node.target):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def joint_of(graph: Any) -> torch.fx.GraphModule:
    """Find the module of a joint graph that torch hands over without it."""
    module = graph.owning_module
    if not isinstance(module, torch.fx.GraphModule):
        raise CaptureError("torch handed over a joint graph without its module: use the partitioner instead.")
    return module
