"""Record what a module calls while it runs once, as calls that can be run again.

Idea        Calls of torch are seen as Python makes them: a cell of an LSTM is one call. So a loop of 512
            steps is a list of a few thousand calls, and recording costs little more than running.
Guarantee   Whatever decides by values, writes in place, draws numbers, changes modes or brings tensors of its
            own is refused by name.
Gaps        Python's own side effects, such as counters, are not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tightrope_forms.loops._torch import tree_flatten, tree_unflatten

_METADATA: Final = frozenset({
    "dim", "size", "__get__", "stride", "numel", "nelement", "ndimension", "is_contiguous", "__len__",
    "element_size", "storage_offset", "is_floating_point", "is_complex", "get_device", "__hash__",
    "is_grad_enabled", "is_same_size",
})  # fmt: skip
"""Calls that give no tensor and say nothing about values."""


class Ref(NamedTuple):
    """A value: a result of a call, or what comes from outside where ``call`` is negative."""

    call: int  # -1 = an argument, -2 = a parameter or buffer
    item: int  # place among the tensors of a result or of the arguments
    name: str = ""  # of a parameter or buffer


class Call(NamedTuple):
    """A call; its leaves are references, and all else."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any  # of (args, kwargs)
    shapes: tuple[Any, ...]  # of the tensors of its result

    def refs(self) -> list[Ref]:
        """List the leaves that are references."""
        return [one for one in self.leaves if isinstance(one, Ref)]

    def run(self, value: Callable[[Any], Any], kinds: tuple[type, ...] = (Ref,)) -> list[Any]:
        """Call it again, with values for the leaves of some kinds; return the tensors of its result."""
        leaves = [value(one) if isinstance(one, kinds) else one for one in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.tree)
        return tensors_of(self.function(*args, **kwargs))


class CallRecording(NamedTuple):
    """All calls of one run."""

    calls: list[Call]
    leaves: list[Any]  # of what the module returned: references, and all else
    tree: Any
    result: Any


def tensors_of(result: Any) -> list[Any]:
    """List the tensors of a result, in order."""
    return [one for one in tree_flatten(result)[0] if isinstance(one, Tensor)]


def facts_of(one: Tensor) -> tuple[Any, ...]:
    """Say shape, dtype and device of a tensor."""
    return tuple(one.shape), one.dtype, one.device.type


class _Recorder(TorchFunctionMode):
    """Records until something cannot be recorded; the module runs on, as nothing may run twice."""

    def __init__(self, known: Mapping[int, Ref]) -> None:
        super().__init__()
        self.known, self.calls, self.held, self.said = dict(known), list[Call](), list[Any](), ""

    def leaf(self, one: Any, where: str) -> Any:
        if isinstance(one, Tensor) and id(one) not in self.known:
            said = f"{where} takes a tensor that is no parameter, buffer, argument or result"
            self.said = self.said or said
        return self.known.get(id(one)) if isinstance(one, Tensor) else one

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.said:
            return func(*args, **(kwargs or {}))
        given, tree = tree_flatten((tuple(args), dict(kwargs or {})))
        tensors = [one for one in given if isinstance(one, Tensor) and not one.is_inference()]
        versions = [one._version for one in tensors]
        result = func(*args, **(kwargs or {}))
        made, name = tensors_of(result), getattr(func, "__name__", str(func))
        if [one._version for one in tensors] != versions:
            self.said = f"{name} writes in place"
        elif not made and name not in _METADATA:
            self.said = f"{name} is called, whose result or effect is no tensor"
        elif made:
            facts = tuple(map(facts_of, made))
            call = Call(func, tuple(self.leaf(one, name) for one in given), tree, facts)
            self.held.append((result, made, given))  # so that no number stands for two tensors
            self.known |= {id(one): Ref(len(self.calls), at) for at, one in enumerate(made)}
            self.calls.append(call)
        return result


def record(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[CallRecording, str]:
    """Run a module and record it; say why the recording cannot be run again, or nothing."""
    given = tensors_of((tuple(args), dict(kwargs)))
    known = {id(one): Ref(-2, 0, name) for name, one in named(module).items()}
    known |= {id(one): Ref(-1, at) for at, one in enumerate(given)}
    state, own = torch.get_rng_state(), _own(module)
    recorder = _Recorder(known)
    with recorder:
        result = module(*args, **kwargs)
    leaves, tree = tree_flatten(result)
    found = CallRecording(recorder.calls, [recorder.leaf(one, "the result") for one in leaves], tree, result)
    random = "" if torch.equal(state, torch.get_rng_state()) else "it draws random numbers"
    changed = "" if _own(module) == own else "it changes attributes of its own"
    return found, random or changed or recorder.said


def _own(module: nn.Module) -> list[Any]:
    """List what modules hold, by identity, and how many things are in containers."""
    return [
        (name, id(value), len(value) if isinstance(value, list | dict | set) else 0)
        for one in module.modules()
        for name, value in (*vars(one).items(), *one._buffers.items(), *one._parameters.items())
    ]


def settings(module: nn.Module) -> tuple[Any, ...]:
    """List what decides, beside arguments, which calls a module makes: its modes and plain attributes."""
    plain = (bool, int, float, str, type(None))
    return tuple(
        (name, repr(value))
        for one in module.modules()
        for name, value in vars(one).items()
        if all(isinstance(x, plain) for x in (value if isinstance(value, list | tuple) else [value]))
    )


def hooks(module: nn.Module) -> bool:
    """Tell whether a module has hooks, which no recording calls."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(one, kind) for one in module.modules() for kind in kinds)


def named(module: nn.Module) -> dict[str, Tensor]:
    """Name the parameters and buffers of a module; shared ones by their first name."""
    return dict([*module.named_parameters(), *module.named_buffers()])
