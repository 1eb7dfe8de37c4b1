"""One iteration of a loop as a function of what it reads."""

import operator
from collections.abc import Callable

import torch
from torch import Tensor

from tightrope_forms.loops.find import KINDS, Carried, Fixed, Loop, Stepped, outside_of
from tightrope_forms.loops.record import CallRecording, Ref, facts_of

Spec = tuple[tuple[int, ...], torch.dtype]


def specs_of(loop: Loop, recording: CallRecording, given: Callable[[Ref], Tensor]) -> list[Spec]:
    """Say shape and dtype of all inputs of one iteration."""
    found = []
    for one, ref in ((one, outside_of(one)[0]) for one in loop.inputs.values()):
        facts = facts_of(given(ref)) if ref.call < 0 else recording.calls[ref.call].shapes[ref.item]
        shape = list(facts[0])
        if isinstance(one, Stepped) and one.source is not None:
            del shape[one.axis]
        found.append((tuple(shape), facts[1]))
    return found


def body_of(loop: Loop) -> Callable[..., tuple[Tensor, ...]]:
    """Write one iteration as a function of its inputs."""

    def body(*given: Tensor) -> tuple[Tensor, ...]:
        of = dict(zip(loop.inputs.values(), given, strict=True))
        values: dict[Ref, Tensor] = {}

        def value(one: Ref | Stepped | Carried | Fixed) -> Tensor:
            return values[one] if isinstance(one, Ref) else of[one]

        for at, call in enumerate(loop.body):
            taken = call.function is operator.pos  # read, and not computed
            made = list(map(value, call.leaves)) if taken else call.run(value, (Ref, *KINDS))
            values |= {Ref(at, item): one for item, one in enumerate(made)}
        return tuple(values[one] for one in loop.outputs)

    return body
