"""One training step as one graph: loss, gradients and updates, with no return to the user in between.

Idea        In the joint graph of forward and backward a constant one takes the place of the loss's
            tangent. Each gradient that an optimizer wants is read by one op that changes the
            parameter and its state in place, right after the last op that reads the old parameter.
            The gradient dies there, and the new value costs no bytes.
Source      Optimizer-in-backward; here the planner sees it as ops like any other.
Guarantee   An update comes after every op of the base order that reads what it changes, so the base
            order gives the values of "all gradients first, then all updates"; what an update
            changes is in its ``mutates``, so that no plan recomputes from the new value.
Complexity  Linear in nodes.
Gaps        An update stands in one place; a plan does not move it.

    compile                                     step
    bytes ^          +---+---+---+              bytes ^
          |      +---+ gradients |                    |      +-+ +-+ +-+
          |  +---+---+---+---+---+                    |  +---+-+-+-+-+-+
          +--+--backward-----+ update -> time         +--+-backward----+ -> time
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from msgspec import structs

from tightrope.capture import _torch
from tightrope.capture.build import build_program
from tightrope.capture.program import Call, Program, tensor_of
from tightrope.core import Allocation, CaptureError, Flag, Kind, Nanoseconds, Op, OpId, Phase, StorageId


@dataclass(frozen=True, slots=True)
class Update:
    """How one parameter is updated; the target gets (parameter, gradient, *state, settings).

    Attributes:
        name: of the op, e.g. ``tightrope.adam_``.
        target: changes parameter and state in place and returns None.
        label: name of the parameter, for people.
        ns: time of one run.
        allocations: temporaries of one run, in order.
    """

    name: str
    target: Callable[..., None]
    label: str
    ns: Nanoseconds
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """Nodes around one update: what it changes, and what it reads."""

    parameter: torch.fx.Node
    gradient: torch.fx.Node
    state: tuple[torch.fx.Node, ...]
    settings: torch.fx.Node


@dataclass(frozen=True)
class Whole:
    """A step as one program, before its updates are in it.

    Attributes:
        program: computes the outputs, then the gradients in ``kept``, then those in ``trained``; its
            placeholders are the captured ones, then all state tensors, then all settings.
        trained: position of a parameter's placeholder -> nodes around its update.
        kept: positions of the parameters whose gradients are returned.
        num_outputs: outputs before the gradients.
    """

    program: Program
    trained: dict[int, Trained]
    kept: tuple[int, ...]
    num_outputs: int


def tangent_shapes(program: Program) -> list[tuple[int, ...]]:
    """List the shapes of the outputs whose gradients the backward starts from; one loss is ``[()]``."""
    return [tuple(tensor_of(node).shape) for node in program.placeholders if _is_tangent(node)]


def trained_positions(program: Program) -> tuple[int, ...]:
    """List the positions of the placeholders that get a gradient.

    Raises:
        CaptureError: the loss is not a scalar, or something besides the loss has a gradient.
    """
    inputs = [node for node in program.placeholders if not _is_tangent(node)]
    shapes = tangent_shapes(program)
    gradients = program.outputs[program.num_forward_outputs :]
    if len(shapes) != 1 or math.prod(shapes[0]) != 1:
        raise CaptureError(
            f"the step has gradients to start from in shapes {shapes}: the function must return the loss, "
            "a tensor with one element, first, and nothing else that depends on the parameters may be kept."
        )
    if len(gradients) != len(inputs):
        raise CaptureError(
            f"{len(gradients)} gradients for {len(inputs)} inputs: this torch builds its graphs differently."
        )
    return tuple(position for position, node in enumerate(gradients) if isinstance(node, torch.fx.Node))


def whole_program(program: Program, states: Mapping[int, Sequence[torch.Tensor]]) -> Whole:
    """Join a captured forward and backward into one part.

    Args:
        program: as captured, with its loss as the only output that has a gradient.
        states: position of a parameter's placeholder -> its optimizer state, possibly empty, for
            every parameter that is updated; gradients of the others are returned.

    Raises:
        CaptureError: see `trained_positions`.
    """
    positions = trained_positions(program)
    join = _Join(program)
    trained = join.placeholders({at: states[at] for at in positions if at in states})
    join.copy_rest()
    outputs = [join.copied(node) for node in program.outputs[: program.num_forward_outputs]]
    gradients = program.outputs[program.num_forward_outputs :]
    kept = tuple(at for at in positions if at not in states)
    taken = {key for node in outputs if (key := _key(node)) is not None}
    returned = [join.gradient(at, gradients[at], taken) for at in kept]
    used = {at: join.gradient(at, gradients[at], None) for at in trained}
    join.graph.output((*outputs, *returned, *used.values()))
    built = build_program(
        torch.fx.GraphModule(program.module, join.graph),
        join.kinds(),
        user_outputs=range(len(outputs) + len(returned)),
        name=f"{program.graph.name} (whole step)",
        environment=program.graph.environment,
    )
    nodes = {at: replace(trained[at], gradient=used[at]) for at in trained}
    return Whole(built, nodes, kept, len(outputs))


def own_gradient(gradient: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Copy a gradient into memory of its own, laid out like its parameter, as autograd would."""
    return gradient.new_empty_strided(gradient.shape, stride).copy_(gradient)


def with_updates(whole: Whole, program: Program, updates: Mapping[int, Update]) -> Program:
    """Put the updates into the base order.

    Args:
        whole: the step.
        program: ``whole.program``, priced.
        updates: one per position in ``whole.trained``.

    Returns:
        A program of one part that returns the outputs and the kept gradients.
    """
    graph = program.graph
    ready = _ready_after(program, whole)
    due: dict[OpId, list[int]] = {}
    for at in whole.trained:
        due.setdefault(ready[at], []).append(at)
    ops: list[Op] = []
    calls: dict[OpId, Call | None] = {}
    more = len(updates)

    def append(op: Op, call: Call | None) -> None:
        calls[len(ops)] = call
        ops.append(structs.replace(op, id=len(ops), replay=op.replay + more if op.replay >= 0 else -1))

    for done in range(-1, len(graph.ops)):
        if done >= 0:
            append(graph.ops[done], program.calls[done])
        for at in due.get(done, ()):
            append(*_update(program, whole.trained[at], updates[at]))
    again = tuple(structs.replace(op, id=op.id + more) for op in graph.replays)
    calls.update({op.id + more: program.calls[op.id] for op in graph.replays})
    outputs = program.outputs[: whole.num_outputs + len(whole.kept)]
    return replace(
        program,
        graph=structs.replace(graph, ops=tuple(ops), replays=again),
        calls=calls,
        outputs=outputs,
        num_forward_outputs=len(outputs),
        user_outputs=frozenset(range(len(outputs))),
    )


def with_summaries(whole: Whole, summarize: Callable[[torch.Tensor], Any]) -> torch.fx.GraphModule:
    """Return the graph without updates, with a summary in the place of each gradient that they use.

    A summary is taken as soon as its gradient is there, so that the gradient need not be kept.
    """
    module = whole.program.module
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    summaries: dict[torch.fx.Node, torch.fx.Node] = {}
    gradients = {trained.gradient for trained in whole.trained.values()}
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in gradients:
            summaries[node] = graph.call_function(summarize, (copies[node],))
    returned = whole.program.outputs[: whole.num_outputs + len(whole.kept)]
    results = [copies[node] if isinstance(node, torch.fx.Node) else node for node in returned]
    results += [summaries[trained.gradient] for trained in whole.trained.values()]
    graph.output(tuple(results))
    return torch.fx.GraphModule(module, graph)


def _update(program: Program, nodes: Trained, update: Update) -> tuple[Op, Call]:
    changed = {program.storage_of[node] for node in (nodes.parameter, *nodes.state)}
    reads = changed | {program.storage_of[nodes.gradient]}
    module, _, _ = update.label.rpartition(".")
    op = Op(
        0, f"update_{nodes.parameter.name}", update.name, tuple(sorted(reads)),
        mutates=tuple(sorted(changed)), ns=update.ns, allocations=update.allocations,
        flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE, phase=Phase.OPTIMIZER, module=module,
    )  # fmt: skip
    return op, Call(update.target, (nodes.parameter, nodes.gradient, *nodes.state, nodes.settings), {}, {})


def _ready_after(program: Program, whole: Whole) -> dict[int, OpId]:
    """The op after which each update may run: its gradient is made, the old values were read."""
    last: dict[StorageId, OpId] = {}
    for op in program.graph.ops:
        for storage in (*op.reads, *op.creates):
            last[storage] = op.id
    made = {storage: op.id for op in program.graph.ops for storage in op.creates}
    return {
        at: max(
            made.get(program.storage_of[nodes.gradient], -1),
            *(last.get(program.storage_of[node], -1) for node in (nodes.parameter, *nodes.state)),
        )
        for at, nodes in whole.trained.items()
    }


class _Join:
    """The new graph while it is written; lives for one call of `whole_program`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.inputs = [node for node in program.placeholders if not _is_tangent(node)]
        self.state: list[torch.fx.Node] = []

    def copied(self, node: Any) -> Any:
        return self.copies[node] if isinstance(node, torch.fx.Node) else node

    def placeholders(self, states: Mapping[int, Sequence[torch.Tensor]]) -> dict[int, Trained]:
        """Write the captured inputs, then a placeholder per state tensor, then one per settings."""
        for node in self.inputs:
            self.copies[node] = self.graph.node_copy(node)
        found: dict[int, tuple[torch.fx.Node, ...]] = {}
        for at, tensors in states.items():
            like = tensor_of(self.inputs[at])
            found[at] = tuple(self._state(at, k, like, tensor) for k, tensor in enumerate(tensors))
        settings = {at: self.graph.placeholder(f"settings_{at}") for at in states}
        return {
            at: Trained(self.copies[self.inputs[at]], self.copies[self.inputs[at]], found[at], settings[at])
            for at in states
        }

    def _state(self, at: int, number: int, like: torch.Tensor, tensor: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(f"state_{at}_{number}")
        node.meta["val"] = like.new_empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        self.state.append(node)
        return node

    def copy_rest(self) -> None:
        """Copy everything else; the tangent becomes a one just before its first reader."""
        for node in self.program.module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            for source in node.all_input_nodes:
                if source not in self.copies and _is_tangent(source):
                    self.copies[source] = self._one(source)
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)

    def _one(self, tangent: torch.fx.Node) -> torch.fx.Node:
        value = tensor_of(tangent)
        options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        return self._call(torch.ops.aten.full.default, (list(value.shape), 1), options, value)

    def _call(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor
    ) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(val=value, partitioner_tag="is_backward")
        return node

    def gradient(self, at: int, node: torch.fx.Node, taken: set[int] | None) -> torch.fx.Node:
        """The node of a gradient, copied where it is not laid out as autograd would hand it over.

        Args:
            at: position of the parameter.
            node: the captured gradient.
            taken: storages that are handed out already; None when the gradient is only read.
        """
        source: torch.fx.Node = self.copied(node)
        parameter = tensor_of(self.inputs[at])
        value = tensor_of(source)
        key = _key(source)
        assert key is not None
        given = {_key(placeholder) for placeholder in self.inputs}
        plain = _same_layout(value, parameter) and key not in given
        if taken is not None:
            whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
            plain = plain and whole and key not in taken
            taken.add(key)
        if plain:
            return source
        stride = tuple(parameter.stride())
        late = nullcontext() if source.op == "placeholder" else self.graph.inserting_after(source)
        with late:
            made = value.new_empty_strided(value.shape, stride)
            return self._call(own_gradient, (source, stride), {}, made)

    def kinds(self) -> dict[str, Kind]:
        graph, storage_of = self.program.graph, self.program.storage_of
        known = {
            self.copies[node].name: graph.storages[storage_of[node]].kind
            for node in self.inputs
            if node in storage_of
        }
        return known | {node.name: Kind.OPTIMIZER_STATE for node in self.state}


def _key(node: Any) -> int | None:
    value = tensor_of(node) if isinstance(node, torch.fx.Node) else None
    return _torch.storage_key(value) if isinstance(value, torch.Tensor) else None


def _same_layout(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Tell whether strides agree where they matter."""
    return all(
        size == 1 or mine == yours
        for size, mine, yours in zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    )


def _is_tangent(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" and str(node.target).startswith("tangents")
