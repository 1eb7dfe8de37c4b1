"""What Python and torch do around kernels, in time: measured here.

Idea        The price of an op is that of its kernel alone. Modules of few and of many tiny ops, plain,
            checkpointed and under a policy, tell what torch's own work takes. Forwards of the model that
            hold nothing tell what its Python takes per op, which runs again with a module.
Guarantee   None: times are the fastest of some runs.
Complexity  About 0.5 s, and `FORWARDS` forwards of the model.
Gaps        Python is spread evenly over the ops of a forward.
"""

import operator
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tightrope.core import Phase
from tightrope_export.peak import CheckpointCosts
from tightrope_export.record import forward_ns
from tightrope_export.values.tape import StepTape

FORWARDS: Final = 4
_FEW, _MANY, _RUNS = 2, 34, 50


def measured_costs(
    tape: StepTape, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> CheckpointCosts:
    """Measure them, in nanoseconds of thread-CPU time; the model is left as it was."""
    kernels = [op.ns for op in tape.graph.ops if op.phase is Phase.FORWARD]
    spent = forward_ns(model, args, kwargs or {}, FORWARDS)
    return _of_torch()._replace(python=max(spent - sum(kernels), 0) // max(len(kernels), 1))


@cache
def _of_torch() -> CheckpointCosts:
    again: Any = partial(checkpoint, use_reentrant=False)
    with torch.random.fork_rng(devices=[]):
        kept_none = partial(create_selective_checkpoint_contexts, [])
        ways = (operator.call, again, partial(again, context_fn=kept_none))
        plain, whole, kept = ((_fastest(_FEW, way), _fastest(_MANY, way)) for way in ways)
    each = [(many - few) // (_MANY - _FEW) for few, many in (plain, whole, kept)]
    more = max(each[1] - each[0], 0)
    return CheckpointCosts(
        region=max(whole[0] - plain[0] - _FEW * more, 0),
        save=max(more - each[0] // 2, 0) // 2,  # a product saves two tensors
        policy=max(each[2] - each[1], 0),
        op=each[0],
    )


def _fastest(num: int, way: Callable[..., torch.Tensor]) -> int:
    weight, start = nn.Parameter(torch.ones(8)), torch.ones(8, requires_grad=True)
    products = partial(reduce, operator.mul, [weight] * num)

    def step() -> None:
        torch.autograd.backward(way(products, start).sum())

    return int(min(timeit.repeat(step, timer=time.thread_time_ns, repeat=_RUNS, number=1)))
