"""The place that knows torch's private names, with the other modules of this room that begin with ``_``.

Everything above asks this module and never imports ``torch._*`` itself.
"""

import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias
from unittest.mock import ANY, patch

import torch
import torch.fx

from tightrope.capture._probes import blamed
from tightrope.core import CaptureError, TightropeError

_PACKAGE: Final = f"{Path(__file__).parent.parent}{os.sep}"
NOT_A_LEAF: Final = "The .grad attribute of a Tensor that is not a leaf"
"""How the warning begins that torch gives where anybody asks a computed tensor for its gradient."""
_CachedFunction: Final = type(lru_cache(len))
Layouts: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""(Number of an output, strides of its gradient)."""


def storage_key(tensor: torch.Tensor) -> int:
    """Identify the storage that a (fake) tensor looks into."""
    return int(tensor.untyped_storage()._cdata)


def watch_storage(tensor: torch.Tensor) -> Callable[[], bool]:
    """Return a function that tells whether the storage of ``tensor`` is gone, without keeping it."""
    from torch.multiprocessing.reductions import StorageWeakRef

    reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    expired: Any = partial(torch.UntypedStorage._expired, reference.cdata)
    vars(expired)["reference"] = reference  # it frees what the number stands for
    return expired  # type: ignore[no-any-return]


def storage_at(address: int) -> torch.UntypedStorage:
    """Wrap a storage that is alive, by what `storage_key` says of it."""
    found: torch.UntypedStorage = torch.UntypedStorage._new_with_weak_ptr(address)
    return found


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Run what `torch.compile` made as it is inside a ``with`` block, on any thread.

    Where Dynamo is not loaded yet, nothing was made by it.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def keeps_graph() -> bool:
    """Tell whether the running backward was asked to keep its graph (``retain_graph=True``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def num_that_run(by_group: object) -> int:
    """Count the nodes right behind the running one that have ``by_group`` and are to run, too."""
    node = torch._C._current_autograd_node()
    nodes = {before for before, _ in node.next_functions if before is not None}
    mine = [before for before in nodes if getattr(before, "by_group", None) is by_group]
    return sum(torch._C._will_engine_execute_node(one) for one in mine)


@contextmanager
def real_tensors() -> Iterator[None]:
    """Leave fake mode and every dispatch mode, to run real ops while a graph is being captured."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        yield


@contextmanager
def without_leaf_warnings() -> Iterator[None]:
    """Keep torch from warning where it looks for the gradients of tensors that are no leaves."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NOT_A_LEAF)
        yield


def without_values(tensors: Sequence[Any]) -> list[Any]:
    """Stand-ins that have the shapes of tensors and share memory as they do, without bytes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    with without_leaf_warnings():
        return [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in tensors]


@contextmanager
def shapes_only() -> Iterator[Callable[[Any], Any]]:
    """Run ops on shapes alone; gives the function that takes the values out of tensors, nested ones too."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield lambda tree: tree_map_only(torch.Tensor, mode.from_tensor, tree)


@contextmanager
def copied_without_values(tree: Any) -> Iterator[Any]:
    """Copy modules, tensors and what holds them, and run ops on the copy: on shapes alone.

    What `functools.lru_cache` keeps of it is dropped: else the modules themselves would find shapes there.
    """
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    log = logging.getLogger(FakeTensorMode.__module__)
    with patch.object(log, "disabled", True), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        with FakeCopyMode(mode):
            copied = deepcopy(tree)
        try:
            yield copied
        finally:
            for one in gc.get_objects():
                if type(one) is _CachedFunction and one.cache_info().currsize and _keeps_shapes(one):
                    one.cache_clear()


def _keeps_shapes(cached: Any) -> bool:
    """Tell whether a cached function keeps a result without values."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_leaves

    kept = gc.get_referents(cached)  # a bounded cache has results here, another one a dict of them
    results = [*kept, *(value for one in kept if isinstance(one, dict) for value in one.values())]
    return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(results))


def is_overload(value: object) -> bool:
    """Tell whether a callable is one overload of an ATen (or custom) op."""
    return isinstance(value, torch._ops.OpOverload)


def is_random(target: Any) -> bool:
    """Tell whether an op overload draws from the generator."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def aot_backend(
    partition: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
) -> Callable[..., Any]:
    """Wrap three compilers and a partitioner into a Dynamo backend."""
    from torch._dynamo.backends.common import aot_autograd

    backend: Callable[..., Any] = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference, partition_fn=partition
    )
    return backend


def unsupported_errors() -> tuple[type[BaseException], ...]:
    """List the errors by which Dynamo says that it cannot trace something as one graph."""
    import torch._dynamo.exc as exc
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    names = (
        *("Unsupported", "TorchRuntimeError", "UserError", "InternalTorchDynamoError"),
        *("FailOnRecompileLimitHit", "RecompileLimitExceeded"),
    )
    found = [getattr(exc, name) for name in names if hasattr(exc, name)]
    return (*found, GuardOnDataDependentSymNode)


@contextmanager
def gradients_from(
    choose: Callable[[dict[int, torch.Tensor]], Collection[int]],
    count: Callable[[dict[int, torch.Tensor], Sequence[torch.Tensor], Sequence[Any]], None],
    layouts: Layouts = (),
) -> Iterator[None]:
    """Let AOTAutograd trace the backward from some outputs alone: what eager runs where no others are read.

    When it runs, gradients arrive as they are laid out; AOTAutograd would copy them to the layouts of their
    outputs.

    Args:
        choose: numbers of these, given all outputs that can have gradients, by number.
        count: called with the traced inputs that have gradients, by number, these outputs, and all outputs.
        layouts: of gradients that are laid out otherwise than their outputs.
    """
    from torch._functorch._aot_autograd import graph_capture, graph_capture_wrappers, graph_compile
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, PlainTensorMeta

    grad, trace = torch.autograd.grad, graph_capture.aot_dispatch_autograd_graph

    def as_they_come(*args: Any, fw_metadata: Any, **options: Any) -> Any:
        tangents = fw_metadata.traced_tangents
        for number, strides in layouts:
            tangents[number] = tangents[number].new_empty_strided(tangents[number].shape, strides)
        for known in fw_metadata.subclass_tangent_meta:
            if isinstance(known, PlainTensorMeta):
                known.memory_format = MemoryFormatMeta(size=ANY, stride=ANY)
        return trace(*args, fw_metadata=fw_metadata, **options)

    def from_some(outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_globals is graph_capture_wrappers.__dict__:
            numbers = {id(tangent): number for number, tangent in enumerate(caller.f_locals["tangents"])}
            ends = {
                numbers[id(given)]: (out, given) for out, given in zip(outputs, grad_outputs, strict=True)
            }
            wanted = {id(given) for given in inputs}
            primals, every = enumerate(caller.f_locals["primals"]), caller.f_locals["outs"]
            count({number: given for number, given in primals if id(given) in wanted}, outputs, every)
            chosen = sorted(choose({number: output for number, (output, _) in ends.items()}))
            outputs, grad_outputs = zip(*(ends[number] for number in chosen), strict=True)
        return grad(outputs, inputs, grad_outputs, **options)

    with (
        patch.object(torch.autograd, "grad", from_some),
        patch.object(graph_compile, "aot_dispatch_autograd_graph", as_they_come),
    ):
        yield


def own_code(function: Callable[..., Any]) -> Callable[[], None]:
    """Give a function a code object of its own; return what makes Dynamo forget it.

    Dynamo keeps what it compiled on the code object, and counts there against its limit. Shared by
    all closures of one line, or left to the garbage collector (what was compiled refers back to the
    code in a way that it cannot see), it would never be released.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__ = function.__code__.replace()

    def forget() -> None:
        if not sys.is_finalizing():
            from torch._C._dynamo.eval_frame import reset_code

            reset_code(code)

    return forget


def traced_code() -> tuple[CodeType, ...]:
    """List the code of every function that the trace that runs has looked into."""
    return tuple(torch._guards.TracingContext.get_traced_code() or ())


def reset_dynamo() -> None:
    """Forget every graph that Dynamo has compiled in this process."""
    import torch._dynamo

    torch._dynamo.reset()


def cause_in_backend(error: BaseException) -> BaseException | None:
    """The error of ours inside Dynamo's wrapper, or one of an adapter that this torch breaks; else None."""
    inner = getattr(error, "inner_exception", None)
    seen = inner if isinstance(inner, BaseException) else error.__cause__
    if isinstance(seen, TightropeError | torch.OutOfMemoryError):
        return seen
    broken = blamed(seen or error)
    return CaptureError(f"{broken}.") if broken else None


def refused_by_tracing(error: BaseException) -> bool:
    """Tell whether torch's tracing of a joint graph raised an error, and nothing that it called back."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = next((at for at, file in enumerate(files) if f"{os.sep}_functorch{os.sep}" in file), len(files))
    ours = {file for file in files[inside:] if file.startswith(_PACKAGE)}  # this file stands around calls
    return inside < len(files) and ours <= {__file__} and files[-1] != __file__


def unplannable_errors() -> tuple[type[BaseException], ...]:
    """What is raised where a size depends on values, or a tensor has no storage (sparse ones)."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return GuardOnDataDependentSymNode, NotImplementedError


def run_tiny_backward() -> None:
    """Make autograd let go of what a backward held that raised inside a kernel: the next one frees it."""
    with torch.enable_grad():
        torch.ones((), requires_grad=True).neg().backward()  # type: ignore[no-untyped-call]
