"""Joint graphs of torch.compile as graphs of storages, and back to a forward and a backward.

Idea        torch.compile's partitioner hands over one graph of forward and backward. What is kept
            between the two is a set of storages; the backward makes the rest again, each value once,
            right before its first reader.
Guarantee   A random op, a collective and an op with effects never run twice: what they make is kept
            where the backward needs it, and the split is checked.
Complexity  Linear in the nodes.
Gaps        Static shapes only; a random op's mask is kept together with its result.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from msgspec.structs import replace
from torch.utils.checkpoint import CheckpointPolicy

from tightrope.capture import _torch
from tightrope.capture.build import build_program
from tightrope.capture.program import Program
from tightrope.core import CaptureError, Graph, Kind, Op, OpId, StorageId

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
        module: tidied in place.
        program: the way from storages to nodes.
        graph: of the program, with what torch's backward can make again: ops without replays.
        num_forward_outputs: as torch counts them.
        pointwise: ops that make one element from one element of each input.
        fusible: these, and reductions.
    """

    module: torch.fx.GraphModule
    program: Program
    graph: Graph
    num_forward_outputs: int
    pointwise: frozenset[OpId]
    fusible: frozenset[OpId]


def read_joint(module: torch.fx.GraphModule, *, num_forward_outputs: int) -> Joint:
    """Read a joint graph of forward and backward.

    Raises:
        CaptureError: dynamic shapes, or an op that is half a view.
    """
    kinds = {node.name: Kind.INPUT for node in module.graph.find_nodes(op="placeholder")}
    program = build_program(
        module,
        kinds,
        num_forward_outputs=num_forward_outputs,
        user_outputs=range(num_forward_outputs),
        name="joint graph",
    )
    pointwise = frozenset(op for op, call in program.calls.items() if call and _is_pointwise(call.target))
    fusible = pointwise | {
        op for op, call in program.calls.items() if call and _name(call.target) in _REDUCTIONS
    }
    return Joint(module, program, _without_replays(program.graph), num_forward_outputs, pointwise, fusible)


def _is_pointwise(target: object) -> bool:
    return torch.Tag.pointwise in getattr(target, "tags", ()) or _name(target) in _ALIKE


def _name(target: object) -> str:
    return str(target).split(".")[1] if str(target).count(".") > 1 else str(target)


def _without_replays(graph: Graph) -> Graph:
    return replace(graph, ops=tuple(replace(op, replay=-1) for op in graph.ops), replays=())


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
    outputs = joint.program.outputs[: joint.num_forward_outputs]
    there = {joint.program.storage_of[n] for n in outputs if n in joint.program.storage_of}
    passing = kept | there | must_keep(joint.graph)
    inputs = [node for node in joint.program.placeholders if not _is_tangent(node)]
    names = {id(node) for node in inputs}
    roots = [joint.program.roots[s] for s in sorted(passing) if s in joint.program.roots]
    forward_nodes = _forward_nodes(joint)
    saved = inputs + [node for node in roots if node in forward_nodes and id(node) not in names]
    forward, backward = _torch.split_joint(
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
        if storage in joint.program.roots:
            joint.program.roots[storage].meta["recompute"] = CheckpointPolicy.MUST_SAVE
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
