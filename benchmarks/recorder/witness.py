"""A witness of an eager training step: which module made which bits.

Forward ops belong to the innermost module whose hook is open. Backward ops belong to the module in
whose forward their autograd node was made, as seen when each torch function returned; the sum of two
gradients to the module around both. Optimizer ops belong to the owners of the parameter whose values,
gradient or state they read, directly or through what was made from them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks._measure import digest
from benchmarks.recorder.nets import Net

Key = tuple[str, str]
"""Name of an op without what only says how it writes, and a digest of the first tensor it made."""


COPIES = frozenset({"clone", "copy", "_to_copy"})
"""Ops that make the bits that they read."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One op that eager ran.

    Attributes:
        key: what it is found by.
        owners: paths of its module; several where they share a parameter.
        view: it made no bits of its own, it looks at them or repeats them.
    """

    key: Key
    owners: frozenset[str]
    view: bool


def bare_name(target: str) -> str:
    """The name of an op whether or not it writes in place.

    Example:
        >>> bare_name("aten.add_.Tensor"), bare_name("aten._unsafe_view.default")
        ('add', 'view')
    """
    name = target.split(".")[1] if target.count(".") else target
    return {"_unsafe_view": "view", "_reshape_alias": "view"}.get(name, name).removesuffix("_")


def tensors_in(value: object) -> list[torch.Tensor]:
    """Tensors of a result or of arguments, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@dataclass
class State:
    """Who is at work."""

    open_now: list[str] = field(default_factory=lambda: [""])
    node: frozenset[str] | None = frozenset({""})
    phase: str = "forward"
    nodes: dict[Any, str] = field(default_factory=dict)
    owner_at: dict[int, frozenset[str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)


class Nodes(TorchFunctionMode):
    """Notes in which module every autograd node was made."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        waiting = [leaf.grad_fn for leaf in tensors_in(result)]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self.state.nodes:
                self.state.nodes[node] = self.state.open_now[-1]
                waiting += [following for following, _ in node.next_functions]
        return result


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every op that makes a tensor, its bits and its owners."""

    def __init__(self, state: State) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state = state

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        read = tensors_in((args, kwargs))
        read_owners = [
            owners for leaf in read if (owners := self.state.owner_at.get(leaf.untyped_storage().data_ptr()))
        ]
        result = func(*args, **(kwargs or {}))
        made = tensors_in(result)
        if made:
            owners = self._owners(read_owners)
            name = str(func)
            looks = not func._schema.is_mutable and any(_same_bytes(made[0], leaf) for leaf in read)
            view = looks or bare_name(name) in COPIES
            for leaf in made:
                self.state.owner_at[leaf.untyped_storage().data_ptr()] = owners
            self.state.seen.append(Seen((bare_name(name), digest([made[0]])), owners, view))
        return result

    def _owners(self, read: list[frozenset[str]]) -> frozenset[str]:
        if self.state.phase == "forward":
            return frozenset({self.state.open_now[-1]})
        if self.state.phase == "optimizer":
            return next(iter(read), frozenset())
        if self.state.node is not None:  # before the first node, who called backward: the root
            return self.state.node
        return frozenset({_around(read)})


def _around(read: list[frozenset[str]]) -> str:
    """The innermost module around the first owner of each."""
    parts = [sorted(owners)[0].split(".") for owners in read if owners]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


@contextmanager
def hooked(model: nn.Module, enter: Callable[[str], object], leave: Callable[[], object]) -> Iterator[None]:
    """Call back with the path when a module begins, and when it ends."""

    def entering(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            enter(path)

        return hook

    def leaving(*_: object) -> None:
        leave()

    handles: list[Any] = []
    for path, module in model.named_modules():
        handles += [
            module.register_forward_pre_hook(entering(path)),
            module.register_forward_hook(leaving),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch(net: Net) -> list[Seen]:
    """Run forward, backward and update once, eagerly, and list the ops in order."""
    state = State()
    net.optimizer.zero_grad()
    with _Ops(state):
        with hooked(net.model, state.open_now.append, state.open_now.pop), Nodes(state):
            loss = net.model(*net.inputs)
        state.phase = "backward"
        for node, path in state.nodes.items():
            _follow(node, path, state)
        loss.backward()
        state.phase = "optimizer"
        state.owner_at = owners_of_parameters(net)
        net.optimizer.step()
    return state.seen


def _follow(node: Any, path: str, state: State) -> None:
    def before(*_: object) -> None:
        state.node = frozenset({path})

    def after(*_: object) -> None:
        state.node = None

    node.register_prehook(before)
    node.register_hook(after)


def owners_of_parameters(net: Net) -> dict[int, frozenset[str]]:
    """List paths of modules by the addresses of their parameters, of the gradients and of the state."""
    owners: dict[nn.Parameter, set[str]] = {}
    for path, module in net.model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, set()).add(path)
    found: dict[int, frozenset[str]] = {}
    for parameter, paths in owners.items():
        values = [parameter, parameter.grad, *net.optimizer.state.get(parameter, {}).values()]
        for value in values:
            if isinstance(value, torch.Tensor):
                found[value.untyped_storage().data_ptr()] = frozenset(paths)
    return found
