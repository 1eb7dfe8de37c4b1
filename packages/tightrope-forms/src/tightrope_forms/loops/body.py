"""One iteration of a loop as a function of what it reads."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tightrope_forms.loops._torch import tree_unflatten
from tightrope_forms.loops.find import Carried, Fixed, Loop, Stepped
from tightrope_forms.loops.record import CallRecording, Ref, tensors_of

Spec = tuple[tuple[int, ...], torch.dtype]


class LoopInputs(NamedTuple):
    """What an iteration reads and gives."""

    stepped: list[Stepped]
    states: list[Carried]
    fixed: list[Ref]
    outputs: list[Ref]


def inputs_of(loop: Loop) -> LoopInputs:
    """List what an iteration reads: other elements in every step, states, and the rest."""
    found = LoopInputs([], [], [], [])
    for call in loop.body:
        for leaf in call.leaves:
            kinds: dict[Any, list[Any]] = {Stepped: found.stepped, Carried: found.states, Fixed: found.fixed}
            kind, one = kinds.get(type(leaf)), leaf.ref if isinstance(leaf, Fixed) else leaf
            if kind is not None and one not in kind:
                kind.append(one)
    found.outputs.extend(sorted({*(one.value for one in found.states), *loop.used}))
    return found


def specs_of(inputs: LoopInputs, recording: CallRecording, given: Callable[[Ref], Tensor]) -> list[Spec]:
    """Say shape and dtype of all inputs of one iteration."""

    def spec(ref: Ref) -> Spec:
        if ref.call < 0:
            return tuple(given(ref).shape), given(ref).dtype
        shape, dtype, _ = recording.calls[ref.call].shapes[ref.item]
        return shape, dtype

    def of_step(one: Stepped) -> Spec:
        if one.source is None:
            return spec(one.items[0])
        shape, dtype = spec(one.source)
        axis = one.axis % len(shape)
        return shape[:axis] + shape[axis + 1 :], dtype

    firsts = [one.first for one in inputs.states]
    return [*map(of_step, inputs.stepped), *map(spec, firsts), *map(spec, inputs.fixed)]


def body_of(loop: Loop, inputs: LoopInputs) -> Callable[..., tuple[Tensor, ...]]:
    """Write one iteration as a function of its inputs."""

    def body(*given: Tensor) -> tuple[Tensor, ...]:
        at = iter(given)
        of: dict[Any, Tensor] = {one: next(at) for one in inputs.stepped}
        of |= {one: next(at) for one in inputs.states}
        of |= {Fixed(one): next(at) for one in inputs.fixed}
        values: dict[tuple[int, int], Tensor] = {}
        for number, call in enumerate(loop.body):
            if call.function is operator.pos:  # read, and not computed
                values |= {(number, item): of[one] for item, one in enumerate(call.leaves)}
                continue
            leaves = [
                of[one] if isinstance(one, Stepped | Carried | Fixed)
                else values[one.call, one.item] if isinstance(one, Ref) else one
                for one in call.leaves
            ]  # fmt: skip
            args, kwargs = tree_unflatten(leaves, call.tree)
            for item, made in enumerate(tensors_of(call.function(*args, **kwargs))):
                values[number, item] = made
        return tuple(values[one.call, one.item] for one in inputs.outputs)

    return body


def whole(loop: Loop, inputs: LoopInputs, ref: Ref) -> bool:
    """Tell whether a value of every step is needed outside, and not that of the last alone."""
    used = loop.used.get(ref, ())
    return bool(used) and (used != (loop.steps - 1,) or all(one.value != ref for one in inputs.states))
