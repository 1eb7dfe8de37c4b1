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
from tightrope.capture.build import build_program, is_tangent
from tightrope.capture.clip import Clip, write_clipped
from tightrope.capture.program import Program
from tightrope.capture.typed import tensor_of
from tightrope.core import (
    Allocation,
    CaptureError,
    Flag,
    Kind,
    Nanoseconds,
    Op,
    OpId,
    Phase,
    StorageId,
    View,
)
from tightrope.core.total_norm import used_again
from tightrope.lower import with_writes
from tightrope.price.kernels import own_gradient


@dataclass(frozen=True, slots=True)
class Update:
    """How one parameter is updated; the kernel gets (parameter, gradient, *state, settings).

    Attributes:
        target: name of the kernel, which changes parameter and state in place and returns None.
        flags: settings that decide which tensors and temporaries it needs.
        label: name of the parameter, for people.
        ns: time of one run.
        allocations: temporaries of one run, in order.
    """

    target: str
    flags: tuple[bool, ...]
    label: str
    ns: Nanoseconds
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the update of a parameter needs besides its gradient: state tensors, and how many settings."""

    state: tuple[torch.Tensor, ...]
    num_settings: int


@dataclass(frozen=True, slots=True)
class Trained:
    """Positions of inputs and outputs around one update: what it changes, and what it reads."""

    parameter: int
    gradient: int
    state: tuple[int, ...]
    settings: int


@dataclass(frozen=True)
class Whole:
    """A step as one program, before its updates are in it.

    Attributes:
        program: computes the outputs, then the gradients in ``kept``, then the total norm where they are
            clipped by it, then the gradients in ``trained``, clipped; its inputs are the captured ones,
            then all state tensors, then all settings, then constants.
        trained: position of a parameter among the inputs -> positions around its update.
        kept: positions of the parameters whose gradients are returned.
        num_outputs: outputs before the gradients.
        num_returned: outputs before those that only updates read.
    """

    program: Program
    trained: dict[int, Trained]
    kept: tuple[int, ...]
    num_outputs: int
    num_returned: int


class _CapturedNodes:
    """The captured forward and backward as nodes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        graph = program.module.graph
        placeholders = graph.find_nodes(op="placeholder")
        self.inputs = [node for node in placeholders if not is_tangent(node)]
        self.tangents = [node for node in placeholders if is_tangent(node)]
        (output,) = graph.find_nodes(op="output")
        num = len(program.graph.parts[0].outputs)
        self.outputs, self.gradients = list(output.args[0])[:num], list(output.args[0])[num:]


def tangent_shapes(program: Program) -> list[tuple[int, ...]]:
    """List the shapes of the outputs whose gradients the backward starts from; one loss is ``[()]``."""
    if not program.has_backward:
        return []
    return [given.view.shape for given in program.graph.parts[1].inputs if given.view is not None]


def trained_positions(program: Program) -> tuple[int, ...]:
    """List the positions of the inputs that get a gradient.

    Raises:
        CaptureError: the loss is not a scalar, or something besides the loss has a gradient.
    """
    captured = _CapturedNodes(program)
    shapes = tangent_shapes(program)
    if len(shapes) != 1 or math.prod(shapes[0]) != 1:
        raise CaptureError(
            f"the backward of the step starts from gradients of shapes {shapes}. The function must return "
            "the loss first, a tensor with one element, and keep nothing else that depends on parameters."
        )
    if len(captured.gradients) != len(captured.inputs):
        raise CaptureError(
            f"{len(captured.gradients)} gradients for {len(captured.inputs)} inputs: this torch builds its "
            "graphs differently."
        )
    gradients = enumerate(captured.gradients)
    return tuple(position for position, node in gradients if isinstance(node, torch.fx.Node))


def whole_program(
    program: Program, wanted: Mapping[int, Wanted], clip: Clip | None = None, stacked: Sequence[int] = ()
) -> Whole:
    """Join a captured forward and backward into one part.

    Args:
        program: as captured, with its loss as the only output that has a gradient.
        wanted: position of a parameter among the inputs -> what its update needs, for every parameter
            that is updated; gradients of the others are returned.
        clip: how the gradients are clipped that updates use.
        stacked: positions of their parameters, in the order in which their norms are stacked.

    Raises:
        CaptureError: see `trained_positions`.
    """
    positions = trained_positions(program)
    join = _StepWriter(program)
    updated = {at: wanted[at] for at in positions if at in wanted}
    trained = join.placeholders(updated)
    join.copy_rest()
    captured = join.captured
    outputs = [join.copied(node) for node in captured.outputs]
    kept = tuple(at for at in positions if at not in wanted)
    taken = {key for node in outputs if (key := _key(node)) is not None}
    returned = [join.gradient(at, captured.gradients[at], taken) for at in kept]
    used = [join.gradient(at, captured.gradients[at], None) for at in trained]
    order = [list(trained).index(at) for at in stacked]
    used, total = write_clipped(join.graph, clip or Clip(), used, order)
    returned += [] if total is None else [total]
    join.graph.output((*outputs, *returned, *used))
    built = build_program(
        torch.fx.GraphModule(program.module, join.graph),
        join.kinds(),
        user_outputs=range(len(outputs) + len(returned)),
        name=f"{program.graph.name} (whole step)",
        environment=program.graph.environment,
    )
    first = len(outputs) + len(returned)
    placed = {at: replace(one, gradient=first + number) for number, (at, one) in enumerate(trained.items())}
    built = replace(built, changed=program.changed, unlike=program.unlike)
    return Whole(built, placed, kept, len(outputs), first)


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
    (part,) = graph.parts
    ready = _ready_after(program, whole)
    due: dict[OpId, list[int]] = {}
    for at in whole.trained:
        due.setdefault(ready[at], []).append(at)
    ops: list[Op] = []
    more = len(updates)

    def append(op: Op) -> None:
        variant = op.variant + more if op.variant >= 0 else -1
        ops.append(structs.replace(op, id=len(ops), variant=variant))

    for done in range(-1, len(graph.ops)):
        if done >= 0:
            append(graph.ops[done])
        for at in due.get(done, ()):
            append(_update(program, whole.trained[at], updates[at]))
    again = tuple(structs.replace(op, id=op.id + more) for op in graph.variants)
    whole_part = structs.replace(part, end=len(ops), outputs=part.outputs[: whole.num_returned])
    made = structs.replace(graph, ops=tuple(ops), variants=again, parts=(whole_part,))
    return replace(program, graph=with_writes(made))


def _views(program: Program, nodes: Trained) -> tuple[View, View, tuple[View, ...], View]:
    (part,) = program.graph.parts
    found = [part.inputs[at].view for at in (nodes.parameter, *nodes.state, nodes.settings)]
    gradient = part.outputs[nodes.gradient]
    assert isinstance(gradient, View)
    parameter, *state, settings = [view for view in found if view is not None]
    return parameter, gradient, tuple(state), settings


def _update(program: Program, nodes: Trained, update: Update) -> Op:
    parameter, gradient, state, settings = _views(program, nodes)
    changed = {view.base for view in (parameter, *state)}
    module, _, _ = update.label.rpartition(".")
    return Op(
        0, f"update_{nodes.parameter}", update.target,
        tuple(sorted({*changed, gradient.base, settings.base})),
        mutates=tuple(sorted(changed)), ns=update.ns, allocations=update.allocations,
        flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE, phase=Phase.OPTIMIZER, module=module,
        arguments=(parameter, gradient, *state, settings, *update.flags),
    )  # fmt: skip


def _ready_after(program: Program, whole: Whole) -> dict[int, OpId]:
    """The op after which each update may run: its gradient is made, the old values were read."""
    last: dict[StorageId, OpId] = {}
    again = used_again(program.graph)
    for op in program.graph.ops:
        for storage in (*op.reads, *op.creates):
            last[storage] = max(op.id, again.get(op.id, -1), last.get(storage, -1))
    made = {storage: op.id for op in program.graph.ops for storage in (*op.creates, *op.mutates)}
    found = {}
    for at, nodes in whole.trained.items():
        parameter, gradient, state, _ = _views(program, nodes)
        changed = (last.get(view.base, -1) for view in (parameter, *state))
        found[at] = max(made.get(gradient.base, -1), *changed)
    return found


class _StepWriter:
    """The new graph while it is written; lives for one call of `whole_program`."""

    def __init__(self, program: Program) -> None:
        self.captured = _CapturedNodes(program)
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.state: list[torch.fx.Node] = []

    def copied(self, node: Any) -> Any:
        return self.copies[node] if isinstance(node, torch.fx.Node) else node

    def placeholders(self, wanted: Mapping[int, Wanted]) -> dict[int, Trained]:
        """Write the captured inputs, then a placeholder per state tensor, then one per settings."""
        inputs = self.captured.inputs
        for node in inputs:
            self.copies[node] = self.graph.node_copy(node)
        count = len(inputs)
        state: dict[int, tuple[int, ...]] = {}
        for at, needs in wanted.items():
            like = tensor_of(inputs[at])
            for number, tensor in enumerate(needs.state):
                made = like.new_empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                self.state.append(self._placeholder(f"state_{at}_{number}", made))
            state[at] = tuple(range(count, count + len(needs.state)))
            count += len(needs.state)
        found = {}
        for number, (at, needs) in enumerate(wanted.items()):
            made = tensor_of(inputs[at]).new_empty(needs.num_settings, dtype=torch.float64)
            self._placeholder(f"settings_{at}", made)
            found[at] = Trained(at, -1, state[at], count + number)
        return found

    def _placeholder(self, name: str, value: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def copy_rest(self) -> None:
        """Copy everything else; the tangent becomes a one just before its first reader."""
        for node in self.captured.program.module.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            for source in node.all_input_nodes:
                if source not in self.copies and is_tangent(source):
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
        parameter = tensor_of(self.captured.inputs[at])
        value = tensor_of(source)
        key = _key(source)
        assert key is not None
        given = {_key(placeholder) for placeholder in self.captured.inputs}
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
        program = self.captured.program
        known = {}
        for node in self.captured.inputs:
            key = _key(node)
            if key is not None and key in program.keys:
                known[self.copies[node].name] = program.graph.storages[program.keys[key]].kind
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
