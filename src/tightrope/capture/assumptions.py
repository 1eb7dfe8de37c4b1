"""What a captured graph assumes of the calls that it serves, and who notices a call that differs.

Idea        Dynamo guards most of what it read: `GUARDED` lists it. It does not guard how inputs share memory,
            where they begin in it, and which kernels attention may use. These are the *key* of a call, and
            each key has a capture of its own.
Guarantee   A call never runs a graph that was captured under another key. Where torch cannot trace the key
            of a call, the call runs as it is, without a plan, and a warning says so.
Complexity  One address per input and call, and only where the graph writes an input.
Gaps        Python code that reads ``is_leaf``, ``_base`` or ``_version`` of an input is traced once.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final

import torch
import torch.fx
from torch.backends import cuda

from tightrope.capture._guards import overlapping
from tightrope.capture._sizes import sizes_in
from tightrope.core import CaptureError

GUARDED: Final[dict[str, str]] = {
    "shape": "Dynamo",
    "strides": "Dynamo",
    "dtype": "Dynamo",
    "device": "Dynamo",
    "conjugate and negative bits": "Dynamo",
    "class of a tensor": "Dynamo",
    "the same tensor twice": "Dynamo",
    "gradient of an input": "Dynamo",
    "gradient of a parameter": "Dynamo",
    "values of Python": "Dynamo",
    "training mode": "Dynamo",
    "module hooks": "Dynamo",
    "grad mode": "Dynamo",
    "inference mode": "Dynamo",
    "autocast": "Dynamo",
    "dtype of autocast": "Dynamo",
    "cache of autocast": "Dynamo",
    "deterministic algorithms": "Dynamo",
    "number of threads": "Dynamo",
    "default dtype": "Dynamo",
    "default device": "Dynamo",
    "memory of parameters and buffers": "read in every call",
    "shared memory": "key",
    "storage offset": "key",
    "computed inputs": "gradients per use",
    "kernels of attention": "key",
}
"""Assumption -> who notices a call that breaks it."""

Run = Callable[..., Any]
_STRIDED: Final = ("as_strided", "as_strided_", "set_", "untyped_storage", "storage")
"""Calls that say where in memory they look."""


class Key:
    """Tells calls apart that one captured graph cannot serve.

    Args:
        module: what Dynamo captured.
        given: the inputs of the captured call.
        written: numbers of inputs that the graph writes.
    """

    def __init__(self, module: torch.fx.GraphModule, given: Sequence[Any], written: frozenset[int]) -> None:
        tensors = [number for number, one in enumerate(given) if isinstance(one, torch.Tensor)]
        self._written, self._memory = written, [n for n in tensors if written and _has_memory(given[n])]
        fixed = _fixed(module)
        self._fixed = [number for number in self._memory if number in fixed]
        self._varying = [number for number in self._memory if number not in fixed]
        self._offsets = tensors if _looks_into_memory(module) else []
        self._attends = _attends(module)
        self._known: tuple[list[int], Counter[int]] = ([], Counter())

    @property
    def varies(self) -> bool:
        """Whether calls may have other keys than the captured one."""
        return bool(self._memory or self._offsets or self._attends)

    def of(self, args: Sequence[Any]) -> Hashable:
        """The key of a call."""
        return (
            self._sharing(args) if self._memory else (),
            tuple([args[number].storage_offset() for number in self._offsets]) if self._offsets else (),
            _kernels_of_attention() if self._attends else (),
        )

    def _sharing(self, args: Sequence[Any]) -> Hashable:
        """How inputs share memory with those that are written."""
        places = [args[number].data_ptr() for number in self._fixed]
        if self._known[0] != places or not places:
            self._known = places, Counter(_memory(args[number]) for number in self._fixed)
        memories = [_memory(args[number]) for number in self._varying]
        every = self._known[1] + Counter(memories)
        if len(every) == len(self._memory):
            return ()
        groups: dict[int, list[int]] = {}
        for number in self._memory:
            groups.setdefault(_memory(args[number]), []).append(number)
        shared = [group for group in groups.values() if len(group) > 1 and self._written.intersection(group)]
        return tuple(_pattern([args[number] for number in group], group) for group in shared)


def _pattern(tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> Hashable:
    """How inputs share one memory: where they overlap, AOTAutograd passes what they are views of."""
    start = min(tensor.data_ptr() for tensor in tensors)
    where = tuple((number, one.data_ptr() - start) for number, one in zip(numbers, tensors, strict=True))
    if not overlapping(tensors):
        return where
    return where, tensors[0].untyped_storage().nbytes(), tuple(map(_geometry, tensors))


def inputs_of(joint: torch.fx.GraphModule, given: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a traced graph: in place of overlapping ones that are written stands what they look into.

    Args:
        joint: as AOTAutograd traced it.
        given: the inputs of the call, which are returned where the graph has the same.
    """
    placeholders = joint.graph.find_nodes(op="placeholder")
    described = [
        node.meta.get("desc") for node in placeholders if not str(node.target).startswith("tangents")
    ]
    kinds = {type(what).__name__ for what in described}
    if not kinds <= {"PlainAOTInput", "SyntheticBaseAOTInput", "ViewBaseAOTInput"}:  # parts of subclasses
        return given
    based = [(getattr(what, "base_of", what).idx, hasattr(what, "base_of")) for what in described]
    if based == [(number, False) for number in range(len(given))]:
        return given
    return [_base_of(given[number]) if is_base else given[number] for number, is_base in based]


def _base_of(view: torch.Tensor) -> torch.Tensor:
    if view._base is not None:
        return view._base
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())


def written_of(changed: Sequence[Any], given: Sequence[Any]) -> frozenset[int]:
    """Numbers of the inputs that are changed, or share their memory with what is.

    Args:
        changed: inputs of the traced graph.
        given: inputs of the call.
    """
    ids = {id(one) for one in changed}
    found = {number for number, one in enumerate(given) if id(one) in ids}
    if len(found) == len(ids):
        return frozenset(found)
    memories = {_memory(one) for one in changed if _has_memory(one)}
    return frozenset(n for n, one in enumerate(given) if _has_memory(one) and _memory(one) in memories)


def shares_memory(written: Collection[int], given: Sequence[Any]) -> bool:
    """Tell whether an input that is written shares its memory with another one."""
    memories = Counter(_memory(one) for one in given if _has_memory(one)) if written else Counter()
    return any(memories[_memory(given[number])] > 1 for number in written if _has_memory(given[number]))


def say_dtypes(graph: torch.fx.Graph) -> None:
    """Write the dtype of new tensors down where the default dtype is not float32: a plan knows ops alone."""
    if torch.get_default_dtype() is torch.float32:
        return
    for node in graph.nodes:
        known = {
            argument.name for argument in getattr(getattr(node.target, "_schema", None), "arguments", ())
        }
        if "dtype" in known and not node.all_input_nodes and isinstance(node.meta.get("val"), torch.Tensor):
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}


def _fixed(module: torch.fx.GraphModule) -> set[int]:
    """Numbers of inputs that the model holds."""
    placeholders = module.graph.find_nodes(op="placeholder")
    known = (node.meta.get("tensor_dict") or {} for node in placeholders)
    return {number for number, one in enumerate(known) if one.get("_dynamo_static_input_type")}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _has_memory(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout is torch.strided
    )


def _geometry(tensor: torch.Tensor) -> Hashable:
    """Where a tensor looks into the memory that it shares, and how the tensor looks that it is a view of."""
    base = tensor._base
    if base is None:
        return tensor.storage_offset()
    return tensor.storage_offset(), base.shape, base.stride(), base.storage_offset(), base.dtype


def _kernels_of_attention() -> Hashable:
    enabled: tuple[Any, ...] = (
        cuda.flash_sdp_enabled, cuda.math_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.cudnn_sdp_enabled
    )  # fmt: skip
    return tuple(one() for one in enabled)


def _names(module: torch.fx.GraphModule) -> set[str]:
    """Names of everything that a graph, and graphs inside of it, call."""
    graphs = [one.graph for one in module.modules() if isinstance(one, torch.fx.GraphModule)]
    return {
        node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        for graph in graphs
        for node in graph.nodes
        if node.op.startswith("call_")
    }


def _attends(module: torch.fx.GraphModule) -> bool:
    return any("attention" in name or "multi_head" in name for name in _names(module))


def _looks_into_memory(module: torch.fx.GraphModule) -> bool:
    return not _names(module).isdisjoint(_STRIDED)


def serving_all(
    module: torch.fx.GraphModule, key: Key, first: Hashable, run: Run, again: Callable[[Sequence[Any]], Run]
) -> Run:
    """Serve every call by the capture of its key.

    Args:
        module: what Dynamo captured.
        key: see `Key`.
        first: key of the captured call.
        run: what serves it.
        again: captures a call.
    """
    if not key.varies:
        return run
    runs: dict[Hashable, Run] = {}

    def call(*args: Any) -> Any:
        found = key.of(args)
        if found == first:
            return run(*args)
        found = found, sizes_in(args)
        if found not in runs:
            runs[found] = _captured(module, args, again)
        return runs[found](*args)

    return call


def _captured(
    module: torch.fx.GraphModule, args: Sequence[Any], again: Callable[[Sequence[Any]], Run]
) -> Run:
    try:
        return again(args)
    except CaptureError as error:
        warnings.warn(
            "tightrope: calls whose inputs share memory as those of this one run as they are, under the "
            f"limit and without a plan: {error}",
            stacklevel=2,
        )
        return torch.compiler.disable(module)  # type: ignore[no-any-return, no-untyped-call]
