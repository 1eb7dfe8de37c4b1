"""From a captured ATen graph to a graph of storages.

Idea        Every node whose results all look into storages that exist already is a view and costs
            nothing; every other node is an op that creates storages. Views collapse onto their
            root, so that planners see allocations, not tensors; arguments remember how each looks.
Guarantee   Storage sizes and layouts are those that torch's own shape functions compute; they are
            compared with the real ones when ops are measured.
Complexity  Linear in nodes and edges.
Gaps        Static shapes only; an op that returns a new tensor and a view of an old one at once is
            refused.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.fx
from msgspec.structs import replace

from tightrope.capture import _torch, variants
from tightrope.capture.attribution import module_paths, source_line, source_lines, target_name
from tightrope.capture.program import Program
from tightrope.capture.typed import Writer, label, tensor_of, view_of
from tightrope.core import (
    CaptureError,
    Flag,
    Graph,
    Input,
    Kind,
    Name,
    Op,
    OpId,
    Part,
    Phase,
    Result,
    Storage,
    StorageId,
    View,
)
from tightrope.core.graph import RETURN
from tightrope.core.values import views
from tightrope.price.device import alignment_on, device_named, state_bytes

_COLLECTIVE = ("_c10d_functional", "c10d", "c10d_functional", "tightrope_ranks")
_KNOWN = ("aten", "prims", "prim", "_c10d_functional")
_REPEATABLE = ("tightrope_forms",)  # libraries whose ops give the same bits again, and change nothing


def build_program(
    module: torch.fx.GraphModule,
    kinds: Mapping[str, Kind],
    *,
    num_forward_outputs: int | None = None,
    user_outputs: Iterable[int] = (),
    written: Iterable[str] = (),
    name: str = "",
    environment: Sequence[tuple[str, str]] = (),
    phase_of: Callable[[torch.fx.Node], Phase] | None = None,
    states: bool = True,
) -> Program:
    """Turn a functional ATen graph into a `Program`.

    Args:
        module: graph of ATen overloads with fake values in ``meta["val"]``.
        kinds: what each placeholder is, by name (parameter, buffer, input ...).
        num_forward_outputs: number of leading outputs returned before the backward, None = all.
        user_outputs: which of those the user keeps.
        written: placeholders that get new values when the forward returns (running statistics).
        name: for people.
        environment: device, processor, threads, versions: part of the fingerprint.
        phase_of: the phase of a node; default: torch's own forward and backward tags.
        states: save the generator's state before random ops, so that they can run again alike.

    Raises:
        CaptureError: dynamic shapes, data-dependent values, an op that is half a view, or an argument
            that cannot be written down.
    """
    builder = _GraphBuilder(module, kinds, phase_of or _phase, num_forward_outputs, states)
    user_outputs, written = frozenset(user_outputs), frozenset(written)
    try:
        builder.walk(user_outputs, written)
        program = builder.finish(name, tuple(environment))
    except _torch.unplannable_errors() as error:
        said = str(error).strip().splitlines()
        raise CaptureError(
            "a size depends on values, or a tensor is sparse: its bytes are not known before it runs "
            f"({said[0] if said else type(error).__name__})."
        ) from None
    return dataclasses.replace(
        program,
        rebuild=lambda module: build_program(
            module, kinds, num_forward_outputs=num_forward_outputs, user_outputs=user_outputs,
            written=written, name=name, environment=environment, phase_of=phase_of, states=states,
        ),
    )  # fmt: skip


def _phase(node: torch.fx.Node) -> Phase:
    backward = node.meta.get("partitioner_tag") == "is_backward" or node.meta.get("autograd_backward")
    return Phase.BACKWARD if backward else Phase.FORWARD


def is_tangent(node: torch.fx.Node) -> bool:
    """Tell whether a node is the gradient of an output, handed over by the caller."""
    return node.op == "placeholder" and str(node.target).startswith("tangents")


def _tensors(value: Any) -> list[tuple[int, torch.Tensor]]:
    """The tensors in a result by position; -1 where the result is the tensor."""
    if isinstance(value, torch.Tensor):
        return [(-1, value)]
    if isinstance(value, tuple | list):
        return [(position, item) for position, item in enumerate(value) if isinstance(item, torch.Tensor)]
    return []


class _GraphBuilder:
    """Mutable state of one conversion; lives for one call of `build_program`."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        kinds: Mapping[str, Kind],
        phase_of: Callable[[torch.fx.Node], Phase],
        num_forward_outputs: int | None,
        states: bool,
    ) -> None:
        self.module, self.kinds, self.phase_of, self.states = module, kinds, phase_of, states
        self.paths = module_paths(module.graph, phase_of)
        self.storages: list[Storage] = []
        self.by_key: dict[int, StorageId] = {}
        self.origin: dict[torch.fx.Node, int] = {}
        self.writer = Writer(self.by_key, self.origin)
        self.ops: list[Op] = []
        self.again: list[tuple[OpId, variants.Variant]] = []
        self.parts: list[Part] = []
        self.nodes = list(module.graph.nodes)
        self.outputs = _flat_outputs(self.nodes[-1])
        self.num_forward = len(self.outputs) if num_forward_outputs is None else num_forward_outputs
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.constants = [node for node in self.nodes if node.op == "get_attr" and node.users]
        self.given = [node for node in placeholders if not is_tangent(node)] + self.constants
        self.tangents = [node for node in placeholders if is_tangent(node)]
        if self.num_forward == len(self.outputs):
            self.given, self.tangents = [*placeholders, *self.constants], []

    def walk(self, user_outputs: frozenset[int], written: frozenset[str]) -> None:
        for number, node in enumerate((*self.given, *self.tangents)):
            if node.users or node not in self.tangents:
                self._external(node, number)
        self.written = [node for node in self.given if node.name in written]
        self.user_outputs = user_outputs
        needed = _needed(self.nodes, self.outputs)
        boundary = self._split(needed)
        for position, node in enumerate(self.nodes):
            if position == boundary and self.num_forward < len(self.outputs):
                self._return_to_caller()
            if node.op == "call_function" and node in needed:
                self._call(node)
        self._mark_outputs()
        inputs = self.tangents if self.parts else self.given
        outputs = self.outputs[self.num_forward :] if self.parts else self.outputs
        self._part(inputs, outputs)

    def _split(self, needed: set[torch.fx.Node]) -> int:
        """Put every forward op before all that comes of the caller's gradients; give the position between.

        What is returned as a view of a value changed in place is traced anew, behind the backward.
        """
        inside = _needed(self.nodes, self.outputs[: self.num_forward])
        late = set(self.tangents)
        for node in self.nodes:
            if not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        first = next(
            (at for at, node in enumerate(self.nodes) if node in late - {*self.tangents}), len(self.nodes)
        )
        forward = [
            at
            for at, node in enumerate(self.nodes)
            if node.op == "call_function" and node not in late
            if node in inside or (node in needed and node.meta.get("partitioner_tag") == "is_forward")
        ]
        end = 1 + max((at for at in forward if at < first), default=-1)
        moved = [self.nodes[at] for at in forward if at >= end]
        others = [node for node in self.nodes[end:] if node not in set(moved)]
        self.nodes[end:] = moved + others
        return end + len(moved)

    def _external(self, node: torch.fx.Node, number: int) -> None:
        value = self._constant(node) if node.op == "get_attr" else tensor_of(node)
        if not isinstance(value, torch.Tensor):
            if node.users:
                raise CaptureError(
                    f"input {node.name!r} is a {type(value).__name__}: shapes must be static to be planned."
                )
            return
        if node.op == "get_attr":
            node.meta.setdefault("val", value)
        self.origin[node] = number
        kind = Kind.CONSTANT if node.op == "get_attr" else self.kinds.get(node.name, Kind.INPUT)
        for seen in (value, tensor_of(node)):  # a constant may stand behind a fake of its own
            if _torch.storage_key(seen) not in self.by_key:
                if seen is value:
                    self._add_storage(value, kind, external=True)
                else:
                    self.by_key[_torch.storage_key(seen)] = self.by_key[_torch.storage_key(value)]

    def _constant(self, node: torch.fx.Node) -> Any:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value

    def _add_storage(
        self, value: torch.Tensor, kind: Kind, *, external: bool = False, module: str = ""
    ) -> StorageId:
        storage = len(self.storages)
        bytes_ = int(value.untyped_storage().nbytes())
        self.storages.append(
            Storage(storage, bytes_, kind, external=external, label=label(value), module=module)
        )
        self.by_key[_torch.storage_key(value)] = storage
        return storage

    def _call(self, node: torch.fx.Node) -> None:
        if node.target.__class__.__name__ == "builtin_function_or_method" and "getitem" in str(node.target):
            self._pass_on(node, node.args[0])
            return
        results = _tensors(tensor_of(node))
        if not results:
            raise CaptureError(
                f"{node.target} at {source_line(node)} gives no tensor: "
                "data-dependent values cannot be planned."
            )
        if not isinstance(node.target, FunctionType) and not hasattr(node.target, "_schema"):
            raise CaptureError(
                f"{node.target} at {source_line(node)} is no op of its own: it cannot be planned."
            )
        new = [value for _, value in results if _torch.storage_key(value) not in self.by_key]
        mutates = self._mutates(node)
        if not new and not mutates:
            self._pass_on(node, next(iter(node.all_input_nodes), None))
            return
        if new and len({_torch.storage_key(value) for value in new}) < len(results):
            raise CaptureError(
                f"{node.target} at {source_line(node)} returns a new tensor together with a view of another "
                "one: it cannot be planned."
            )
        self._op(node, results if new else [], mutates)

    def _pass_on(self, node: torch.fx.Node, source: Any) -> None:
        """Let a view of the caller's memory remember the input that it comes from."""
        if source in self.origin:
            self.origin[node] = self.origin[source]

    def _mutates(self, node: torch.fx.Node) -> tuple[StorageId, ...]:
        """Storages that a call changes in place, by its schema."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return ()
        found: set[StorageId] = set()
        for position, argument in enumerate(schema.arguments):
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            if argument.is_write and given is not None:
                found.update(view.base for view in views(self.writer.argument(given)))
        if not found:
            raise CaptureError(
                f"{node.target} at {source_line(node)} changes a tensor in place, and its schema does not "
                "say which: it cannot be planned."
            )
        return tuple(sorted(found))

    def _op(
        self, node: torch.fx.Node, results: list[tuple[int, torch.Tensor]], mutates: tuple[StorageId, ...]
    ) -> None:
        drawn = _torch.is_random(node.target) and variants.draws(node)
        masked = drawn and variants.has_mask(node)
        state = self._save_state(node) if drawn and self.states and not masked else None
        made: list[Result] = []
        for position, value in results:
            if value.untyped_storage().nbytes() > 0:
                storage = self._add_storage(value, Kind.ACTIVATION, module=self.paths[node])
                made.append(Result(position, view_of(value, storage)))
        arguments, keywords = self.writer.arguments(node.args), self.writer.keywords(dict(node.kwargs))
        variant: variants.Variant | None = None
        if state is not None:
            variant = variants.from_state(node, state, [result.position for result in made])
        elif masked:
            variant = variants.from_mask(node)
        elif not drawn:
            variant = variants.without_statistics(node)
        flags = _flags(node, drawn=drawn, in_place=bool(mutates))
        if variant is not None:
            flags |= Flag.NEVER_RECOMPUTE  # its variant runs instead
            self.again.append((len(self.ops), variant))
        source, *callers = source_lines(node) or ("",)
        self.ops.append(
            Op(
                len(self.ops), node.name, target_name(variants.called(node)), _bases(arguments, keywords),
                tuple(result.view.base for result in made), mutates, flags=flags, phase=self.phase_of(node),
                module=self.paths[node], source=source, callers=tuple(callers),
                arguments=arguments, keywords=keywords, results=tuple(made),
            )
        )  # fmt: skip

    def _save_state(self, node: torch.fx.Node) -> torch.fx.Node:
        """Add the op that saves the generator's state just before a random op; return its result."""
        root = torch.fx.Node(node.graph, f"{node.name}_state", "call_function", _never, (), {})
        value = tensor_of(node)
        like = value if isinstance(value, torch.Tensor) else value[0]
        device = like.device
        made = like.new_empty(state_bytes(device), dtype=torch.uint8)
        root.meta["val"] = made
        storage = self._add_storage(made, Kind.RANDOM_STATE, module=self.paths[node])
        self.storages[storage] = replace(self.storages[storage], label="generator state")
        self.ops.append(
            Op(
                len(self.ops), root.name, "tightrope.save_state", (), (storage,),
                arguments=() if device.type == "cpu" else (Name("device", str(device)),),
                flags=Flag.RANDOM | Flag.NEVER_RECOMPUTE, phase=self.phase_of(node), module=self.paths[node],
                results=(Result(-1, view_of(made, storage)),),
            )
        )  # fmt: skip
        return root

    def _return_to_caller(self) -> None:
        outputs = self.outputs[: self.num_forward]
        arguments = self.writer.arguments(tuple(outputs))
        reads = {view.base for value in arguments for view in views(value)} - {-1}
        written = {self.by_key[_torch.storage_key(tensor_of(node))] for node in self.written}
        self.ops.append(
            Op(
                len(self.ops), "return_to_caller", RETURN, tuple(sorted(reads | written)),
                mutates=tuple(sorted(written)), flags=Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE,
            )
        )  # fmt: skip
        self._part(self.given, outputs)

    def _part(self, inputs: Sequence[torch.fx.Node], outputs: Sequence[Any]) -> None:
        self.parts.append(
            Part(
                len(self.ops),
                tuple(Input(node.name, self._input(node)) for node in inputs),
                self.writer.arguments(tuple(outputs)),
            )
        )

    def _input(self, node: torch.fx.Node) -> View | None:
        unread = node in self.tangents and not node.users
        return self.writer.view(node) if isinstance(tensor_of(node), torch.Tensor) and not unread else None

    def _mark_outputs(self) -> None:
        """Storages handed to the caller stay to the end; those of the forward lie outside the arena."""
        for position, node in enumerate(self.outputs):
            value = tensor_of(node) if isinstance(node, torch.fx.Node) else None
            storage = self.by_key.get(_torch.storage_key(value)) if isinstance(value, torch.Tensor) else None
            if value is None or storage is None or self.storages[storage].external:
                continue
            old = self.storages[storage]
            forward = position < self.num_forward
            if forward and position not in self.user_outputs:
                continue
            self.storages[storage] = replace(
                old,
                kind=Kind.OUTPUT if forward else Kind.GRADIENT,
                resident_at_end=True,
                outside=old.outside or forward or value.device.type == "cuda",
            )

    def finish(self, name: str, environment: tuple[tuple[str, str], ...]) -> Program:
        again: list[Op] = []
        for number, variant in self.again:
            base = self.ops[number]
            made = {result.position: result.view for result in base.results}
            results = tuple(Result(p, made[q]) for p, q in sorted(variant.results.items()) if q in made)
            if not results:
                continue
            try:
                arguments = self.writer.arguments(variant.args)
                keywords = self.writer.keywords(variant.kwargs)
            except CaptureError:  # it reads what no op of the graph needed
                continue
            created = tuple(sorted(result.view.base for result in results))
            reads = _bases(arguments, keywords)
            if set(reads) & set(created):
                continue
            identity = len(self.ops) + len(again)
            again.append(
                Op(
                    identity, f"{base.name}_again", variant.target, reads, created, phase=base.phase,
                    module=base.module, source=base.source, callers=base.callers,
                    arguments=arguments, keywords=keywords, results=results,
                )
            )  # fmt: skip
            self.ops[number] = replace(base, variant=identity)
        alignment = alignment_on(device_named(environment))
        storages = tuple(replace(storage, alignment=alignment) for storage in self.storages)
        graph = Graph(
            tuple(self.ops), storages, tuple(again), tuple(self.parts), name, environment, alignment=alignment
        )
        constants = tuple(self._constant(node) for node in self.constants)
        return Program(graph, self.module, constants, self.by_key)


def _never(*_: Any) -> Any:
    raise CaptureError("a node that only names a value was run.")


def _bases(*groups: Any) -> tuple[StorageId, ...]:
    """Storages that arguments look into, ascending."""
    values = [value[1] if isinstance(value, tuple) else value for group in groups for value in group]
    return tuple(sorted({view.base for value in values for view in views(value)} - {-1}))


def _flat_outputs(output: torch.fx.Node) -> list[Any]:
    result = output.args[0]
    return list(result) if isinstance(result, tuple | list) else [result]


def _is_mutable(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _needed(nodes: list[torch.fx.Node], outputs: Sequence[Any]) -> set[torch.fx.Node]:
    """Nodes that an output depends on, and every node with an effect (random draws included)."""
    needed: set[torch.fx.Node] = {node for node in outputs if isinstance(node, torch.fx.Node)}
    for node in reversed(nodes):
        if node.op == "call_function" and (_torch.is_random(node.target) or _is_mutable(node)):
            needed.add(node)
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def _flags(node: torch.fx.Node, *, drawn: bool, in_place: bool) -> Flag:
    flags = Flag.RANDOM if drawn else Flag.NONE
    namespace = getattr(node.target, "namespace", "")
    if namespace in _COLLECTIVE:
        flags |= Flag.COLLECTIVE
    elif namespace not in _KNOWN:
        flags |= Flag.OPAQUE
        flags |= Flag.NONE if namespace in _REPEATABLE else Flag.NEVER_RECOMPUTE
    return flags | Flag.IN_PLACE if in_place else flags
