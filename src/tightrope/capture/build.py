"""From a captured ATen graph to a graph of storages.

Idea        Every node whose results all look into storages that exist already is a view and costs
            nothing; every other node is an op that creates storages. Views collapse onto their
            root, so that planners see allocations, not tensors.
Guarantee   Storage sizes are those that torch's own shape functions compute; they are compared
            with the real allocations when ops are measured.
Complexity  Linear in nodes and edges.
Gaps        Static shapes only; an op that returns a new tensor and a view of an old one at once is
            refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch, replays
from tightrope.capture.attribution import module_paths, source_line, target_name
from tightrope.capture.program import Call, Program, tensor_of
from tightrope.core import CaptureError, Flag, Graph, Kind, Op, OpId, Phase, Storage, StorageId

_COLLECTIVE = ("_c10d_functional", "c10d", "c10d_functional")
_KNOWN = ("aten", "prims", "prim", "_c10d_functional")


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
) -> Program:
    """Turn a functional ATen graph into a `Program`.

    Args:
        module: graph of ATen overloads with fake values in ``meta["val"]``.
        kinds: what each placeholder is, by name (parameter, buffer, input ...).
        num_forward_outputs: number of leading outputs returned before the backward, None = all.
        user_outputs: which of those the user keeps.
        written: placeholders that get new values when the forward returns (running statistics).
        name: for people.
        environment: device, threads, versions: part of the fingerprint.
        phase_of: the phase of a node; default: torch's own forward and backward tags.

    Raises:
        CaptureError: dynamic shapes, data-dependent values, or an op that is half a view.
    """
    builder = _Builder(module, kinds, phase_of or _phase)
    builder.walk(num_forward_outputs, frozenset(user_outputs), frozenset(written))
    return builder.finish(name, tuple(environment))


def _phase(node: torch.fx.Node) -> Phase:
    backward = node.meta.get("partitioner_tag") == "is_backward" or node.meta.get("autograd_backward")
    return Phase.BACKWARD if backward else Phase.FORWARD


def _tensors(value: Any) -> list[tuple[int | None, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(None, value)]
    if isinstance(value, tuple | list):
        return [(position, item) for position, item in enumerate(value) if isinstance(item, torch.Tensor)]
    return []


class _Builder:
    """Mutable state of one conversion; lives for one call of `build_program`."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        kinds: Mapping[str, Kind],
        phase_of: Callable[[torch.fx.Node], Phase],
    ) -> None:
        self.module, self.kinds, self.phase_of = module, kinds, phase_of
        self.paths = module_paths(module.graph, phase_of)
        self.storages: list[Storage] = []
        self.by_key: dict[int, StorageId] = {}
        self.storage_of: dict[torch.fx.Node, StorageId] = {}
        self.roots: dict[StorageId, torch.fx.Node] = {}
        self.views: dict[torch.fx.Node, Call] = {}
        self.ops: list[Op] = []
        self.calls: dict[OpId, Call | None] = {}
        self.replays: list[tuple[OpId, replays.Replay]] = []
        self.split = -1

    def walk(
        self, num_forward_outputs: int | None, user_outputs: frozenset[int], written: frozenset[str]
    ) -> None:
        nodes = list(self.module.graph.nodes)
        self.written = [node for node in nodes if node.op == "placeholder" and node.name in written]
        self.outputs = tuple(_flat_outputs(nodes[-1]))
        self.num_forward = len(self.outputs) if num_forward_outputs is None else num_forward_outputs
        self.user_outputs = user_outputs
        needed = _needed(nodes, self.outputs)
        boundary = self._boundary(nodes, needed)
        for position, node in enumerate(nodes):
            if position == boundary and self.num_forward < len(self.outputs):
                self._return_to_user()
            if node.op in ("placeholder", "get_attr"):
                self._external(node)
            elif node.op == "call_function" and node in needed:
                self._call(node)
        self._mark_outputs()

    def _boundary(self, nodes: list[torch.fx.Node], needed: set[torch.fx.Node]) -> int:
        """Position in the node list at which every forward output exists and no backward op ran."""
        inside = _needed(nodes, self.outputs[: self.num_forward])
        last = -1
        for position, node in enumerate(nodes):
            forward = node in inside or (node in needed and node.meta.get("partitioner_tag") == "is_forward")
            if node.op == "call_function" and forward:
                last = position
        return last + 1

    def _external(self, node: torch.fx.Node) -> None:
        value = self.module_constant(node) if node.op == "get_attr" else tensor_of(node)
        if not isinstance(value, torch.Tensor):
            if node.users:
                raise CaptureError(
                    f"input {node.name!r} is a {type(value).__name__}: shapes must be static to be planned."
                )
            return
        kind = Kind.CONSTANT if node.op == "get_attr" else self.kinds.get(node.name, Kind.INPUT)
        key = _torch.storage_key(value)
        if key not in self.by_key:
            self._add_storage(node, value, kind, external=True)
        self.storage_of[node] = self.by_key[key]

    def module_constant(self, node: torch.fx.Node) -> Any:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value

    def _add_storage(
        self, node: torch.fx.Node, value: torch.Tensor, kind: Kind, *, external: bool = False
    ) -> StorageId:
        storage = len(self.storages)
        shape = "x".join(map(str, value.shape)) or "scalar"
        label = f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
        bytes_ = int(value.untyped_storage().nbytes())
        module = "" if external else self.paths[node]
        self.storages.append(Storage(storage, bytes_, kind, external=external, label=label, module=module))
        self.by_key[_torch.storage_key(value)] = storage
        if external:
            self.roots[storage] = node
        return storage

    def _call(self, node: torch.fx.Node) -> None:
        if node.target.__class__.__name__ == "builtin_function_or_method" and "getitem" in str(node.target):
            return
        results = _tensors(tensor_of(node))
        if not results:
            raise CaptureError(
                f"{node.target} at {source_line(node)} gives no tensor: "
                "data-dependent values cannot be planned."
            )
        members = {user.args[1]: user for user in node.users if "getitem" in str(user.target)}
        named: dict[int | None, torch.fx.Node] = {k: v for k, v in members.items() if isinstance(k, int)}
        if isinstance(tensor_of(node), torch.Tensor):
            named = {None: node}
        assert callable(node.target)
        call = Call(node.target, tuple(node.args), dict(node.kwargs), named)
        new = [value for _, value in results if _torch.storage_key(value) not in self.by_key]
        if not new and not _is_mutable(node):
            self._view(node, call, results)
            return
        if len({_torch.storage_key(value) for value in new}) < len(results):
            raise CaptureError(
                f"{node.target} at {source_line(node)} returns a new tensor together with a view of another "
                "one: it cannot be planned."
            )
        self._op(node, call, results)

    def _view(self, node: torch.fx.Node, call: Call, results: list[tuple[int | None, torch.Tensor]]) -> None:
        self.views[node] = call
        for position, value in results:
            storage = self.by_key[_torch.storage_key(value)]
            self.storage_of.setdefault(node, storage)
            if position in call.results:
                self.storage_of[call.results[position]] = storage

    def _op(self, node: torch.fx.Node, call: Call, results: list[tuple[int | None, torch.Tensor]]) -> None:
        drawn = _torch.is_random(node.target) and replays.draws(node)
        saved = replays.state_before(node) if drawn and not replays.has_mask(node) else None
        state = self._save_state(node, saved) if saved is not None else -1
        created = []
        for position, value in results:
            if value.untyped_storage().nbytes() == 0:
                continue
            storage = self._add_storage(node, value, Kind.ACTIVATION)
            created.append(storage)
            if position in call.results:
                self.storage_of[call.results[position]] = storage
                self.roots[storage] = call.results[position]
        reads = self._reads(call)
        op = len(self.ops)
        replay = (
            replays.replay_of(node, call, state, saved) if drawn else replays.without_statistics(node, call)
        )
        flags = _flags(node, drawn)
        if replay is not None:
            flags |= Flag.NEVER_RECOMPUTE  # its replay runs instead
            self.replays.append((op, replay))
        self.ops.append(
            Op(
                op, node.name, target_name(node.target), reads, tuple(created),
                flags=flags, phase=self.phase_of(node),
                module=self.paths[node], source=source_line(node),
            )
        )  # fmt: skip
        self.calls[op] = call

    def _save_state(self, node: torch.fx.Node, call: Call) -> StorageId:
        """Add the op that saves the generator's state just before a random op."""
        op, storage = len(self.ops), len(self.storages)
        self.storages.append(
            Storage(storage, replays.STATE_BYTES, Kind.RANDOM_STATE, label="generator state")
        )
        (root,) = call.results.values()
        self.storage_of[root], self.roots[storage] = storage, root
        flags = Flag.RANDOM | Flag.NEVER_RECOMPUTE
        self.ops.append(
            Op(
                op,
                root.name,
                "tightrope.save_state",
                (),
                (storage,),
                flags=flags,
                phase=self.phase_of(node),
                module=self.paths[node],
            )
        )
        self.calls[op] = call
        return storage

    def _reads(self, call: Call) -> tuple[StorageId, ...]:
        found: set[StorageId] = set()
        for node in input_nodes(call):
            if node not in self.storage_of:
                value = tensor_of(node)
                if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() == 0:
                    continue
                raise CaptureError(f"{call.target} reads {node.name!r}, which is not a tensor of this graph.")
            found.add(self.storage_of[node])
        return tuple(sorted(found))

    def _return_to_user(self) -> None:
        nodes = [node for node in self.outputs[: self.num_forward] if isinstance(node, torch.fx.Node)]
        reads = {self.storage_of[node] for node in nodes if node in self.storage_of}
        written = {self.storage_of[node] for node in self.written if node in self.storage_of}
        op = len(self.ops)
        flags = Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE
        self.ops.append(
            Op(
                op,
                "return_to_user",
                "tightrope.return",
                tuple(sorted(reads | written)),
                mutates=tuple(sorted(written)),
                flags=flags,
            )
        )
        self.calls[op] = None
        self.split = op + 1

    def _mark_outputs(self) -> None:
        """Storages handed to the user stay to the end; those of the forward lie outside the arena."""
        for position, node in enumerate(self.outputs):
            storage = self.storage_of.get(node) if isinstance(node, torch.fx.Node) else None
            if storage is None or self.storages[storage].external:
                continue
            old = self.storages[storage]
            forward = position < self.num_forward
            if forward and position not in self.user_outputs:
                continue
            self.storages[storage] = Storage(
                old.id, old.bytes,
                Kind.OUTPUT if forward else Kind.GRADIENT,
                resident_at_end=True, outside=old.outside or forward, label=old.label, module=old.module,
            )  # fmt: skip

    def finish(self, name: str, environment: tuple[tuple[str, str], ...]) -> Program:
        again: list[Op] = []
        for op, replay in self.replays:
            base = self.ops[op]
            if not all(node in self.storage_of for node in input_nodes(replay.call)):
                continue
            created = tuple(
                sorted(self.storage_of[n] for n in replay.call.results.values() if n in self.storage_of)
            )
            if not created:
                continue
            number = len(self.ops) + len(again)
            again.append(
                Op(
                    number, f"{base.name}_again", replay.name, self._reads(replay.call), created,
                    phase=base.phase, module=base.module, source=base.source,
                )
            )  # fmt: skip
            self.calls[number] = replay.call
            self.ops[op] = _with_replay(base, number)
        graph = Graph(
            tuple(self.ops),
            tuple(self.storages),
            tuple(again),
            split=self.split,
            name=name,
            environment=environment,
        )
        placeholders = tuple(self.module.graph.find_nodes(op="placeholder"))
        return Program(
            graph, self.module, self.calls, self.views, self.storage_of, self.roots,
            placeholders, self.outputs, self.num_forward, self.user_outputs,
        )  # fmt: skip


def input_nodes(call: Call) -> list[torch.fx.Node]:
    """List the tensor nodes among the arguments of a call, in order, with repeats."""
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg((call.args, call.kwargs), lambda node: found.append(node))
    return found


def _with_replay(op: Op, replay: OpId) -> Op:
    return Op(
        op.id, op.name, op.target, op.reads, op.creates, op.mutates, op.ns, op.allocations,
        op.flags, op.phase, op.module, op.source, replay,
    )  # fmt: skip


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


def _flags(node: torch.fx.Node, drawn: bool) -> Flag:
    flags = Flag.RANDOM if drawn else Flag.NONE
    namespace = getattr(node.target, "namespace", "")
    if namespace in _COLLECTIVE:
        flags |= Flag.COLLECTIVE
    elif namespace not in _KNOWN:
        flags |= Flag.OPAQUE | Flag.NEVER_RECOMPUTE
    if _is_mutable(node):
        flags |= Flag.IN_PLACE
    return flags
