"""Compare a graph that was rewritten with the one that it was made from, on values.

Idea        Each graph is run as it is written, op by op in base order, by an interpreter of its own: a
            storage is a block of bytes, a view a look into it. Both get the same made-up inputs.
Guarantee   Both take and give the same things, in the same layouts; every result and every input that is
            changed is equal, integers to the bit, fractions within a share of the largest magnitude.
Complexity  One run of each; nothing is freed, so this is for graphs of small sizes.
Gaps        What one set of values shows. Ops of a library need their kernels.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tightrope.core import Argument, Graph, Items, JudgeError, Name, StorageId, View
from tightrope.core.graph import RETURN
from tightrope.core.values import EMPTY

Kernels = Mapping[str, Callable[..., Any]]
Values = Mapping[str, torch.Tensor]

TOLERANCE: Final = 1e-4


def compare_values(
    whole: Graph,
    split: Graph,
    *,
    given: Values | None = None,
    seed: int = 0,
    kernels: Kernels | None = None,
    tolerance: float = TOLERANCE,
) -> list[str]:
    """List how the results of a rewritten graph differ from those of the graph that it was made from.

    Args:
        whole: the graph as it was.
        split: rewritten.
        given: inputs by name, for those that cannot be made up; integers are 0 or 1 otherwise.
        seed: of the made-up values.
        kernels: of targets that torch does not know.
        tolerance: of fractions, as a share of the largest magnitude.

    Raises:
        JudgeError: an op is not known.
    """
    if [one.inputs for one in whole.parts] != [one.inputs for one in split.parts]:
        return ["the rewritten graph takes other inputs"]
    if len(whole.parts) != 1:
        return ["a graph of several parts cannot be compared"]
    before, after = (_results(graph, given or {}, seed, kernels or {}) for graph in (whole, split))
    if len(before) != len(after):
        return [f"the rewritten graph gives {len(after)} results, not {len(before)}"]
    pairs = enumerate(zip(before, after, strict=True))
    return [f"result {k}: {said}" for k, (one, two) in pairs if (said := _apart(one, two, tolerance))]


def _results(graph: Graph, given: Values, seed: int, kernels: Kernels) -> list[Any]:
    """Outputs, then inputs that were changed."""
    generator = torch.Generator().manual_seed(seed)
    held: dict[StorageId, torch.UntypedStorage] = {}
    (part,) = graph.parts
    inputs = [(one.name, one.view) for one in part.inputs if one.view is not None]
    for name, view in inputs:
        if view.base != EMPTY and view.base not in held:
            value = given[name] if name in given else _made_up(graph, view, generator)
            held[view.base] = value.clone().untyped_storage()
    with torch.no_grad():
        for op in graph.ops:
            if op.target != RETURN:
                found = _kernel(op.target, kernels)(
                    *(_value(one, held) for one in op.arguments),
                    **{name: _value(one, held) for name, one in op.keywords},
                )
                for result in op.results:
                    one = found if result.position < 0 else found[result.position]
                    held[result.view.base] = one.untyped_storage()
    changed = {storage for op in graph.ops for storage in op.mutates}
    outputs = [_value(one, held) for one in part.outputs]
    return outputs + [_value(view, held) for _, view in inputs if view.base in changed]


def _made_up(graph: Graph, view: View, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, view.dtype)
    num = graph.storages[view.base].bytes // dtype.itemsize
    if dtype.is_floating_point:
        return torch.randn(num, generator=generator).to(dtype)
    return torch.randint(2, (num,), generator=generator).to(dtype)


def _kernel(target: str, kernels: Kernels) -> Callable[..., Any]:
    if target in kernels:
        return kernels[target]
    library, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload, None) if library == "aten" else None
    if not callable(found):
        raise JudgeError(f"{target} cannot be run on values: its kernel is not known.")
    kernel: Callable[..., Any] = found
    return kernel


def _value(argument: Argument, held: Mapping[StorageId, torch.UntypedStorage]) -> Any:
    match argument:
        case View():
            dtype: torch.dtype = getattr(torch, argument.dtype)
            if argument.base == EMPTY:
                return torch.empty_strided(argument.shape, argument.strides, dtype=dtype)
            if argument.bits:
                raise JudgeError("a lazily conjugated tensor cannot be compared.")
            made = torch.empty(0, dtype=dtype)
            return made.set_(held[argument.base], argument.offset, argument.shape, argument.strides)
        case Items():
            return [_value(item, held) for item in argument.items]
        case Name(kind="device"):
            return torch.device(argument.text)
        case Name(kind="number"):
            return int(argument.text) if argument.text.lstrip("-").isdigit() else float(argument.text)
        case Name():
            return getattr(torch, argument.text)
    return argument


def _apart(one: Any, two: Any, tolerance: float) -> str:
    """Say how far two results are apart; nothing where they are equal."""
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return "" if one is two or one == two else f"{two!r}, not {one!r}"
    if (one.dtype, one.shape, one.stride()) != (two.dtype, two.shape, two.stride()):
        return f"{two.dtype}{tuple(two.shape)}, not {one.dtype}{tuple(one.shape)}, or laid out otherwise"
    if not one.dtype.is_floating_point:
        return "" if torch.equal(one, two) else "other integers"
    if not one.numel():
        return ""
    largest = float(one.abs().max())
    apart = float((one.double() - two.double()).abs().max())
    return "" if apart <= tolerance * largest else f"{apart:.3g} apart, where the largest is {largest:.3g}"
