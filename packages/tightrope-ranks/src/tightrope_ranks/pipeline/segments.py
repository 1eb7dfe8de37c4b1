"""What the layers of any model take, told from one forward on shapes alone.

Idea        The longest list of layers, among those with many parameters, cuts a model: what runs before the
            first layer, each layer, and what runs after the last one are its segments. A forward without
            values shows every op with its arguments, and autograd shows what it keeps.
Guarantee   Parameters, kept tensors and what segments hand on are counted to the byte, each storage once per
            segment. Nothing is computed, and hardly any memory is taken.
Complexity  One forward.
Gaps        Times are those of `prices`, kernels those of `kernels`; a backward takes twice its forward.
            Code that asks whether its tensors have values goes the way that it has for traces: models of
            transformers then make masks that a run may leave out. Numbers that autograd keeps (64 bytes
            each) are not seen. Work space is told from the largest tensor and the parameters. Recurrent
            layers, products with vectors, Fourier transforms and ops from outside of torch have no count of
            operations; they are noted. A layer that is checkpointed counts as one that is not: its tensors
            are kept, and computed once. A second list of layers, such as that of an encoder with a
            decoder, is not cut: it counts as before, or after, the layers. All that a frozen segment leaves
            out is the gradients of its weights. A tensor that passes over several segments counts between
            each of them, a parameter of several segments in each, and the exchange of its gradients is not
            timed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.func import functional_call

from tightrope.capture._eager import ops_shown, tensors_in, with_tensors
from tightrope.capture._torch import shapes_only, storage_key
from tightrope.core import Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds, round_up
from tightrope_ranks.pipeline.kernels import autocast_to, kernels_of, twin
from tightrope_ranks.pipeline.measure import left_alone
from tightrope_ranks.pipeline.precision import AS_GIVEN, Precision
from tightrope_ranks.pipeline.prices import is_unpriced, matmul_rate, op_seconds
from tightrope_ranks.pipeline.together import InsideSeen, LayerInside
from tightrope_ranks.values.ranks import StageCost

_GIVEN: Final = -1
"""In place of a segment: what the caller holds."""
FORWARD_ALONE: Final = (
    "nothing here requires a gradient: this is a forward pass alone, without a backward. Times and bytes are "
    "those of a training step all the same."
)
_VALUES: Final = ("DataDependentOutputException", "DynamicOutputShapeException")
"""What torch raises where the shape of a result, or a branch, depends on values."""
LAYER_NAME: Final = re.compile(r"(?:.*\.)?(\d+)")
"""Of a layer: where it is in its list."""


@dataclass(frozen=True, slots=True)
class Segments:
    """A model cut into layers.

    Attributes:
        names: of the segments.
        costs: of one micro-batch.
        shared: names of parameters that several segments use.
        trained: bytes of parameters that get gradients, per segment.
        notes: on what is not as one would think.
        inside: of the segments.
    """

    names: tuple[str, ...]
    costs: tuple[StageCost, ...]
    shared: tuple[str, ...] = ()
    trained: tuple[Bytes, ...] = ()
    notes: tuple[str, ...] = ()
    inside: tuple[LayerInside, ...] = ()


@dataclass(slots=True)
class _Segment:
    """What one segment was seen to do: seconds, storages with their bytes, the largest tensor, ops."""

    seconds: float = 0.0
    used: dict[int, Bytes] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    largest: Bytes = 0
    ops: int = 0
    inside: InsideSeen = field(default_factory=InsideSeen)


def is_layer(name: str) -> bool:
    """Tell whether a part of a model is one of its list of layers.

    >>> is_layer("model.layers.3"), is_layer("before model.layers")
    (True, False)
    """
    return LAYER_NAME.fullmatch(name.removeprefix("layer ")) is not None


def list_of_layers(model: torch.nn.Module) -> tuple[str, list[torch.nn.Module]]:
    """Find the longest list of layers that holds at least half as many parameters as any.

    Raises:
        TightropeError: there is none with two layers or more.

    >>> list_of_layers(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3))))[0]
    ''
    """
    lists = {
        name: (sum(p.numel() for p in module.parameters()), list(module))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList) and len(module) > 1
    }
    most = max((held for held, _ in lists.values()), default=0)
    if not most:
        raise TightropeError(
            f"a model of class {type(model).__name__} is no sequence of layers and cannot be cut into "
            "stages. It has no Sequential or ModuleList of at least two with parameters: put its layers "
            "into one."
        )
    found = ((name, layers) for name, (held, layers) in lists.items() if 2 * held >= most)
    return max(found, key=lambda one: len(one[1]))


def segment_costs(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    machine: Machine,
    states: float = 0.0,
    precision: Precision = AS_GIVEN,
) -> Segments:
    r"""Tell what every layer of a model takes, from shapes alone.

    Args:
        model: on any device, or on meta; its forward is one micro-batch's.
        args: of one call.
        kwargs: likewise.
        machine: whose rates and memory bandwidth give times, and whose kind of device says which kernels run.
        states: what the optimizer keeps, in multiples of the parameters' bytes: 2 for Adam.
        precision: types that layers compute in, and of what is held.

    Raises:
        TightropeError: the machine has no rates, the model no list of layers, its forward needs values, or
            calls layers in another order.

    Example:
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(2)))
        >>> fast = Machine.parse('name="m"\nflops={matmul=1e12}\ntiers=[{name="ram",bytes=1024}]')
        >>> [one.output for one in segment_costs(net, (torch.ones(4, 8),), machine=fast).costs]
        [128, 0]
    """
    matmul_rate(machine, torch.float32)
    path, layers = list_of_layers(model)
    with left_alone(model), shapes_only() as fake, kernels_of(machine.device), ExitStack() as hooks:
        parameters = dict(model.named_parameters())
        named = {**parameters, **dict(model.named_buffers())}
        twins = {name: twin(one, fake, precision.computed(one)) for name, one in named.items()}
        given = (tuple(args), dict(kwargs or {}))
        inputs = with_tensors(given, lambda one: twin(one, fake, precision.computed(one)))
        watch = _Watch(machine, path, len(layers), twins, tensors_in(inputs))
        for name in parameters:
            watch.parameters.add(storage_key(twins[name]))
        for position, layer in enumerate(layers):
            for handle in (
                layer.register_forward_pre_hook(watch.entering(position)),
                layer.register_forward_hook(watch.leaving(position)),
            ):
                hooks.callback(handle.remove)
        try:
            keeping = torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda one: one)
            with ops_shown(watch.see), keeping, autocast_to(precision.autocast):
                output = functional_call(model, twins, *inputs)
        except TightropeError:
            raise
        except Exception as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise TightropeError(
                f"the forward of {type(model).__name__} fails on shapes alone: {said}. {_advice(error)}"
            ) from error
        alone = not any(one.requires_grad for one in tensors_in(output))
        found = watch.found(twins, states, precision, alone=alone)
        del output
    return found


def _advice(error: Exception) -> str:
    """Say what to do about a forward that fails on shapes alone."""
    kind = type(error).__name__
    if kind in _VALUES:
        return "Let it not branch on values, nor make shapes of them."
    if kind == "UnsupportedOperatorException":
        return "Register what this op returns on shapes alone: torch.library.register_fake."
    if "device" in str(error).lower():
        return "Keep its tensors in parameters, buffers or inputs, all on one device."
    return f"It raises {kind}: check the arguments, and that it runs on tensors without values."


def notes_on(unpriced: Iterable[str], *, alone: bool) -> tuple[str, ...]:
    """Say which ops take no time here, and whether there is no backward at all.

    >>> notes_on((), alone=False)
    ()
    """
    ops = ", ".join(sorted(unpriced))
    said = (
        f"no count of operations is known for {ops}: they are taken to move their bytes alone, so times are "
        "too low"
    )
    return ((FORWARD_ALONE,) if alone else ()) + ((said,) if ops else ())


class _Watch:
    """Sees ops and kept tensors, and whose they are."""

    def __init__(
        self,
        machine: Machine,
        path: str,
        num_layers: int,
        twins: Mapping[str, torch.Tensor],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        self.machine, self.path, self.now, self.next = machine, path, 0, 0
        self.segments = [_Segment() for _ in range(num_layers + 2)]
        self.alive: list[Any] = []  # storages, so that their keys stay theirs
        self.weights = {storage_key(one): one for one in twins.values()}  # and buffers
        self.parameters: set[int] = set()
        self.unpriced: set[str] = set()
        self.maker = dict.fromkeys(map(storage_key, inputs), _GIVEN)
        self.last: dict[int, int] = {}
        self.bytes: dict[int, Bytes] = {}

    def entering(self, position: int) -> Callable[[Any, Any], None]:
        def hook(module: Any, given: Any) -> None:
            del module, given
            if position != self.next:
                raise TightropeError(
                    f"layer {position} of {self.path or 'the model'!r} runs where layer {self.next} is due: "
                    "a pipeline takes layers once each, in order. Call each once, in the order of the list."
                )
            self.next, self.now = position + 1, position + 1

        return hook

    def leaving(self, position: int) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, given: Any, result: Any) -> None:
            del module, given, result
            if position + 3 == len(self.segments):
                self.now = position + 2

        return hook

    def see(self, op: Any, given: Any, result: Any) -> None:
        """Price an op, and note who reads what."""
        mine = self.segments[self.now]
        made = tensors_in(result)
        reads = {storage_key(one): one for one in tensors_in(given)}
        new = {key: one for one in made if (key := storage_key(one)) not in reads}
        for key, one in reads.items():
            if key in self.weights:
                mine.used[key] = _size(one)
            elif self.maker.get(key, _GIVEN) != _GIVEN:
                self.last[key] = self.now
        for key, one in new.items():
            if key not in self.weights and key not in self.maker:
                self.alive.append(one.untyped_storage())
                self.maker[key], self.bytes[key] = self.now, _size(one)
        if new or op._schema.is_mutable:  # not a view
            mine.ops += 1
            mine.largest = max([mine.largest, *map(_size, new.values())])
            seconds = op_seconds(self.machine, op, given, result)
            mine.seconds += seconds
            mine.inside.see(op, given, seconds)
            if is_unpriced(op):
                self.unpriced.add(str(op))

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd keeps."""
        key = storage_key(tensor)
        if key not in self.weights and self.maker.get(key, _GIVEN) != _GIVEN:
            self.segments[self.now].saved.add(key)
            rows = tensor.shape[0] if tensor.dim() else 0
            self.segments[self.now].inside.experts.keep(key, rows, self.bytes[key])
            self.last[key] = max(self.last.get(key, 0), self.now)
        return tensor

    def found(
        self, twins: Mapping[str, torch.Tensor], states: float, precision: Precision, *, alone: bool
    ) -> Segments:
        """Put together what was seen."""
        num = len(self.segments)
        if self.next + 2 != num:
            raise TightropeError(
                f"layer {self.next} of {self.path or 'the model'!r} does not run: take it out of the list."
            )
        handed = [0] * (num + 1)  # bytes into segment k
        for key, made in self.maker.items():
            for k in range(made + 1, self.last.get(key, made) + 1) if made != _GIVEN else ():
                handed[k] += self.bytes[key]
        runs = [k for k in range(num) if self.segments[k].ops or 0 < k < num - 1]
        handed[runs[0]] = handed[runs[-1] + 1] = 0
        label = f"{self.path}." if self.path else ""
        names = ["before the layers", *(f"{label}{k}" for k in range(num - 2)), "after the layers"]
        users: dict[int, int] = {}
        for key in (key for k in runs for key in self.segments[k].used):
            users[key] = users.get(key, 0) + 1
        shared = tuple(name for name, one in twins.items() if users.get(storage_key(one), 0) > 1)
        costs = tuple(self._cost(k, handed, states, precision) for k in runs)
        trained = tuple(self._trained(k, precision) for k in runs)
        notes = notes_on(self.unpriced, alone=alone)
        inside = tuple(self._inside(k) for k in runs)
        return Segments(tuple(names[k] for k in runs), costs, shared, trained, notes, inside)

    def _inside(self, k: int) -> LayerInside:
        mine = self.segments[k]
        return mine.inside.found((self.weights[key], mine.used[key]) for key in self._parameters(k))

    def _trained(self, k: int, precision: Precision) -> Bytes:
        return sum(precision.gradient_bytes(self.weights[key]) for key in self._parameters(k))

    def _parameters(self, k: int) -> list[int]:
        return [key for key in self.segments[k].used if key in self.parameters]

    def _cost(self, k: int, handed: Sequence[Bytes], states: float, precision: Precision) -> StageCost:
        mine = self.segments[k]
        saved = sum(
            self.bytes[key] for key in mine.saved if self.maker[key] == k and self.last.get(key, k) == k
        )
        ns: Nanoseconds = max(1, round(1e9 * mine.seconds))
        more = mine.inside.backward_more_ns
        held = sum(mine.used[key] for key in self._parameters(k))
        trained = self._trained(k, precision)
        state = sum(precision.state_bytes(self.weights[key], states) for key in self._parameters(k))
        return StageCost(
            forward=ns,
            backward=ns + more,
            weight=ns if trained or not held else 0,
            input=handed[k],
            output=handed[k + 1],
            saved=saved,
            half=saved,
            work=2 * mine.largest + trained,
            parameters=held,
            state=state + sum(mine.used.values()) - held,
            summed=sum(precision.summed_bytes(self.weights[key]) for key in self._parameters(k)),
        )


def _size(tensor: torch.Tensor) -> Bytes:
    return round_up(tensor.untyped_storage().nbytes())
