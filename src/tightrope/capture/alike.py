"""A model with many equal layers, captured by a few of them.

Idea        Tracing takes time per layer, and equal layers give equal ops. The model is called once on shapes
            alone, which takes a hundredth of a trace, with all its layers and once more without most of
            them. Where every layer between two others does the same ops to the same of its own, of the layer
            before and of what all layers share, and all else is as it was, the short model is captured, and
            its graph is made longer (``lower/lengthen.py``).
Source      solving one of many equal blocks as in Rockmate (ICML 2023), here for what is traced
Guarantee   Layers count as equal by what they did: code that looks at its number, its depth or anything else
            shows in the ops. Where anything differs, all is captured. Nothing that the user has is changed.
Complexity  Two calls on shapes alone, beside the capture of at most `KEPT` equal layers and all others.
Gaps        One container of layers, each called once, in order, outside of others. The backward is taken to
            follow from the forward's ops, as in autograd it does, and is not compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any, Final, NamedTuple

import torch

from tightrope.capture._eager import meta_as_cpu, ops_shown, tensors_in, uncompiled, without_shared_hooks
from tightrope.capture._torch import copied_without_values, real_tensors, storage_key
from tightrope.capture.api import capture_program
from tightrope.capture.program import Program
from tightrope.lower.lengthen import Gone

KEPT: Final = 3
"""Equal layers that stand."""
_LEAST: Final = 6
"""Equal layers from which on it pays."""
_CONSTANT: Final = "aten.lift_fresh.default"
"""What an op calls that makes a tensor of numbers, such as the cache of keys that a layer begins with."""


class ShortProgram(NamedTuple):
    """A captured call.

    Attributes:
        program: as captured.
        real: tensors behind its placeholders.
        gone: layers that its graph lacks, None = it is whole.
    """

    program: Program
    real: list[Any]
    gone: Gone | None


class _Container(NamedTuple):
    """A module that holds layers by number."""

    path: str
    layers: list[torch.nn.Module]


class _Seen(NamedTuple):
    """What a call did: before the first layer, in every one with what led to it, and behind the last."""

    head: tuple[Any, ...]
    layers: tuple[Any, ...]
    tail: tuple[Any, ...]


def capture_short(
    model: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> ShortProgram:
    """Capture one call of a model and its backward, by a few layers where many are equal.

    Raises:
        CaptureError: the call is not one graph; the message has Dynamo's reason.
    """
    given = dict(kwargs or {})
    found = _equal_layers(model, args, given)
    if found is not None:
        container, first, count = found
        with _without(model, container.path, first, count):
            program, real = capture_program(model, args, given)
        if program.has_backward and not program.terms:
            return ShortProgram(program, real, Gone(container.path, count))
    return ShortProgram(*capture_program(model, args, given), None)


def _equal_layers(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[_Container, int, int] | None:
    """Find the container, the first layer that can be left out, and how many."""
    container = _container(model)
    if container is None:
        return None
    looks = [_look(layer) for layer in container.layers]
    random = torch.default_generator.get_state()
    try:
        with meta_as_cpu(), copied_without_values((model, tuple(args), dict(kwargs))) as (twin, *call):
            without_shared_hooks(twin)
            whole = _seen(twin, call, container.path, looks)
            first, count = _longest(whole.layers)
            if count < _LEAST:
                return None
            first, gone = first + KEPT - 1, count - KEPT
            with _without(twin, container.path, first, gone):
                short = _seen(twin, call, container.path, looks[:first] + looks[first + gone :])
    except Exception:  # whatever code of the user raises where values or layers are missing
        return None
    finally:
        torch.default_generator.set_state(random)
    rest = _Seen(whole.head, whole.layers[:first] + whole.layers[first + gone :], whole.tail)
    return (container, first, gone) if short == rest else None


def _container(model: torch.nn.Module) -> _Container | None:
    """Find the module that holds most parameters in layers that look the same."""
    best, most = None, 0
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        layers = list(module)
        _, count = _longest([_look(layer) for layer in layers])
        size = count * sum(p.numel() for p in layers[len(layers) // 2].parameters()) if layers else 0
        if count >= _LEAST and size > most and len(set(map(id, layers))) == len(layers):
            best, most = _Container(path, layers), size
    return best


def _look(module: torch.nn.Module) -> object:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    hooks = (
        one
        for each in module.modules()
        for one in (each._forward_hooks, each._forward_pre_hooks, each._backward_hooks)
    )
    return (
        type(module),
        module.training,
        tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors),
        tuple(id(hook) for known in hooks for hook in known.values()),
    )


def _longest(values: Sequence[object]) -> tuple[int, int]:
    """Find where most equal values stand on end: (first, how many)."""
    best, start = (0, 0), 0
    for _, group in groupby(values):
        count = len(list(group))
        best, start = max(best, (start, count), key=lambda one: one[1]), start + count
    return best


@contextmanager
def _without(model: torch.nn.Module, path: str, first: int, count: int) -> Iterator[None]:
    """Leave out layers of a container for a while."""
    module = model.get_submodule(path)
    kept: dict[str, Any] = dict(module._modules)
    left = [layer for number, layer in enumerate(kept.values()) if not first <= number < first + count]
    try:
        module._modules = {str(number): layer for number, layer in enumerate(left)}
        yield
    finally:
        module._modules = kept


def _seen(twin: torch.nn.Module, call: Sequence[Any], path: str, looks: Sequence[object]) -> _Seen:
    """Call a copy of a model, on shapes alone, and note what it does."""
    args, kwargs = call
    notes = _Notes(twin, list(twin.get_submodule(path).children()), looks)
    with notes.watching(), uncompiled(twin), ops_shown(notes.see):
        return notes.all(tensors_in(twin(*args, **kwargs)))


def _constant(made: torch.Tensor) -> tuple[Any, ...]:
    """Describe a tensor that Python has just made of numbers: by its values."""
    with real_tensors():
        return tuple(made.shape), str(made.dtype), made.tolist()


class _Notes:
    """Notes the ops of a call: what each does, and where what it reads comes from."""

    def __init__(
        self, model: torch.nn.Module, layers: list[torch.nn.Module], looks: Sequence[object]
    ) -> None:
        self._num, self._called, self._looks = len(layers), 0, looks
        self._inside = False
        self._segment = 0
        """0 = before the first layer, number + 1 = in a layer or on the way to it, then the rest."""
        self._rows: list[list[Any]] = [[]]
        self._at: dict[int, tuple[int, int, int]] = {}
        self._alive: list[torch.Tensor] = []
        self._owner: dict[int, tuple[Any, ...]] = {}
        self._layers = layers
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._owner.setdefault(storage_key(tensor), ("held", name))
        for number, layer in enumerate(layers):
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                known = self._owner[storage_key(tensor)]
                self._owner[storage_key(tensor)] = known if known[0] == "layer" else ("layer", number, name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be told when each layer begins and ends."""
        with ExitStack() as hooks:
            for number, layer in enumerate(self._layers):
                for hook in (
                    layer.register_forward_pre_hook(self._begin(number), with_kwargs=True),
                    layer.register_forward_hook(self._end),
                ):
                    hooks.callback(hook.remove)
            yield

    def _begin(self, number: int) -> Any:
        def begin(module: Any, args: Any, kwargs: Any) -> None:
            del module
            if self._inside or number != self._called:
                raise ValueError("layers are not called one after another")
            self._inside = True
            if number == 0:
                self._next()
            given = tensors_in((args, kwargs))
            self._rows[-1].append(
                (self._looks[number], [(*self._whence(one), one.requires_grad) for one in given])
            )

        return begin

    def _end(self, *_: Any) -> None:
        self._inside, self._called = False, self._called + 1
        self._next()

    def _next(self) -> None:
        self._segment += 1
        self._rows.append([])

    def see(self, op: Any, given: Any, result: Any) -> None:
        """Note an op."""
        if op.namespace == "prim":  # where a tensor is, and the like
            return
        what = _constant(given[0][0]) if str(op) == _CONSTANT else self._described(given)
        for number, tensor in enumerate(tensors_in(result)):
            key = storage_key(tensor)
            if key not in self._at and key not in self._owner:
                self._at[key] = (self._segment, len(self._rows[-1]), number)
                self._alive.append(tensor)  # so that no other storage gets its key
        self._rows[-1].append((str(op), what))

    def _described(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._whence(value)
        if isinstance(value, tuple | list):
            return [self._described(item) for item in value]
        if isinstance(value, dict):
            return [(name, self._described(item)) for name, item in value.items()]
        return repr(value)

    def _whence(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Say how a tensor looks, and what it looks into: by name, or by the op that made it."""
        look = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), str(tensor.dtype)
        key = storage_key(tensor)
        if key not in self._at and key not in self._owner:
            self._owner[key] = ("given", len(self._alive))
            self._alive.append(tensor)
        owner = self._owner.get(key, ())
        if owner and owner[0] == "layer":
            owner = ("layer", self._segment - 1 - owner[1], *owner[2:])
        if key not in self._at:
            return (*look, owner)
        segment, *at = self._at[key]
        outside = {0: "before", self._num + 1: "behind"}
        return (*look, outside.get(segment, self._segment - segment), *at)

    def all(self, results: Sequence[torch.Tensor]) -> _Seen:
        """Give all notes of a call that is over, with what it returned.

        Raises:
            ValueError: not every layer was called.
        """
        if self._called != self._num or self._num + 2 != len(self._rows):
            raise ValueError("not every layer was called")
        self._rows[-1].append(("returns", [(*self._whence(one), one.requires_grad) for one in results]))
        head, *layers, tail = (repr(row) for row in self._rows)
        return _Seen((head,), tuple(layers), (tail,))
