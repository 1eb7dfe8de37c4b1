"""Models that ``fully_shard`` divided: forwards are planned inside of its hooks.

Idea        It gathers the parameters of a module in a hook before its forward and frees them in one behind,
            and again around its backward. Torch's tracing does not enter those hooks. So they run as they
            are, and what they stand around is captured: the forward of each divided module, and of the whole.
Guarantee   Gathers, reductions and casts are those of ``fully_shard``. A backward is refused where a shard
            has changed since its forward: what is computed again would read other values.
Complexity  Linear in modules and their parameters, per call.
Gaps        Gathered parameters and gradients that are being summed are limited, not planned. Equal modules
            are planned together where torch's guards let them share a graph.

    hooks     | gather 0 |           | free 0, gather 1 |           | gather 1 |            | reduce 1 |
    planned              [ forward 0 ]                  [ forward 1 ]          [ backward 1 ]
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tightrope.core import Bytes, TightropeError

_Call: TypeAlias = Callable[..., Any]
SHARD_OF: Final[WeakIdKeyDictionary] = WeakIdKeyDictionary()
"""The shard that each gathered parameter was seen to be made of, held weakly."""
WHY: Final = "fully_shard divides it, and its hooks run between the graphs."


def divided(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of a model that ``fully_shard`` was called with; the model itself may be one."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def refuse_divided(model: torch.nn.Module, asked: str, instead: str) -> None:
    """Refuse what needs a model whose parameters are there between its calls.

    Raises:
        TightropeError: ``fully_shard`` divides the model; says what to do ``instead`` of what was ``asked``.
    """
    if found := divided(model):
        raise TightropeError(
            f"{asked}: fully_shard divides this {type(model).__name__} ({len(found)} modules), and gathers "
            f"parameters only while they are called. {instead}"
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor: its shard, where it is divided."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is None or not isinstance(tensor, kind):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Bytes that this process holds of a tensor."""
    return local_part(tensor).untyped_storage().nbytes()


def shard_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The shard of a gathered parameter, whose memory comes and goes; None for every other tensor."""
    found = SHARD_OF.get(tensor) if SHARD_OF.data else None  # type: ignore[no-untyped-call]
    return None if found is None else found()


def version_of(tensor: Any) -> tuple[int, int]:
    """The version of a tensor, which rises with every change in place, and where its memory is.

    The memory of a gathered parameter comes and goes: instead, the version of the shard that it is made of.
    """
    if not isinstance(tensor, torch.Tensor):
        return 0, 0
    shard = shard_of(tensor)
    return int(tensor._version), tensor.data_ptr() if shard is None else int(shard._version)


class InsideHooks:
    """Calls a divided model so that forwards run inside of its hooks, by ``run(forward, ...)``.

    Until it is released, divided parts of the model run so in every call: a checkpoint calls them again in
    its backward.

    Args:
        model: with modules that ``fully_shard`` was called with.
        run: captures and runs a forward.
    """

    def __init__(self, model: torch.nn.Module, run: _Call) -> None:
        parts = [module for module in divided(model) if module is not model]
        self._parts = [module for module in parts if module._compiled_call_impl is None]  # else it is planned
        self._run = run
        self._shards = [_Shards(module) for module in (model, *self._parts)]
        self._call, *others = map(self._around, self._shards)
        for module, other in zip(self._parts, others, strict=True):
            module._compiled_call_impl = torch.compiler.disable(other)  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        for shards in self._shards:
            shards.look()
        return self._call(*args, **kwargs)

    def release(self) -> None:
        """Let the parts of the model run as they are."""
        for module in self._parts:
            module._compiled_call_impl = None
        self._parts = []

    def _around(self, shards: "_Shards") -> _Call:
        """Make what calls a module with its hooks, and by ``run`` its forward."""
        module = shards.module
        forward = module.forward

        def planned(*args: Any, **kwargs: Any) -> Any:
            shards.note_gathered()
            return self._run(forward, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            before = module.__dict__.get("forward")
            module.__dict__["forward"] = planned
            try:
                return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
            finally:
                del module.__dict__["forward"]
                if before is not None:
                    module.__dict__["forward"] = before

        return call


class _Shards:
    """The parameters of a module, divided and gathered."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._divided: dict[str, weakref.ref[torch.Tensor]] = {}

    def look(self) -> None:
        """Note those that are divided now."""
        for name, parameter in self.module.named_parameters():
            if local_part(parameter) is not parameter:
                self._divided[name] = weakref.ref(parameter)

    def note_gathered(self) -> None:
        """Note of those that are gathered now what they were made of."""
        for name, parameter in self.module.named_parameters():
            shard = self._divided.get(name)
            if shard is not None and local_part(parameter) is parameter:
                SHARD_OF[parameter] = shard
