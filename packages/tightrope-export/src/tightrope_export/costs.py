"""What Python and torch do around kernels, in time: measured here.

Idea        The price of an op is that of its kernel alone. Modules of few and of many tiny ops, plain,
            checkpointed and under a policy, tell what torch's own work takes. A forward of the model that holds
            nothing tells what its Python takes per op, which runs again with a module.
Guarantee   None: times are the fastest of some runs.
Complexity  About 0.5 s, and `FORWARDS` forwards of the model.
Gaps        Python is spread evenly over the ops of a forward.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tightrope.core import Phase
from tightrope_export.peak import Costs
from tightrope_export.record import forward_ns
from tightrope_export.values.tape import StepTape

FORWARDS: Final = 4
_FEW, _MANY, _RUNS = 2, 34, 50
_SAVES: Final = 2
"""Of an op of `_Tiny`."""


class _Tiny(nn.Module):
    def __init__(self, num: int) -> None:
        super().__init__()
        self.num = num
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.num):
            x = x * self.weight
        return x


def _recompute(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    del context, op, args, kwargs
    return CheckpointPolicy.MUST_RECOMPUTE


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_recompute)


def measured_costs(
    tape: StepTape, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Costs:
    """Measure them, in nanoseconds of thread-CPU time; the model is left as it was."""
    ops = [op for op in tape.graph.ops if op.phase is Phase.FORWARD]
    kernels = sum(op.ns for op in ops)
    if any(one.is_meta for one in model.parameters()):
        return _of_torch()
    spent = forward_ns(model, args, kwargs or {}, FORWARDS)
    return _of_torch()._replace(python=max(spent - kernels, 0) // max(len(ops), 1))


@cache
def _of_torch() -> Costs:
    with torch.random.fork_rng(devices=[]):
        few, many = _Tiny(_FEW), _Tiny(_MANY)
        plain = [_fastest(lambda x, m=m: m(x)) for m in (few, many)]
        whole = [_fastest(lambda x, m=m: checkpoint(m, x, use_reentrant=False)) for m in (few, many)]
        kept = [
            _fastest(lambda x, m=m: checkpoint(m, x, use_reentrant=False, context_fn=_contexts))
            for m in (few, many)
        ]
    step = _MANY - _FEW
    per_op = (plain[1] - plain[0]) // step
    again = max(((whole[1] - whole[0]) - (plain[1] - plain[0])) // step, 0)
    region = max(whole[0] - plain[0] - _FEW * again, 0)
    save = max(again - per_op // 2, 0) // _SAVES
    policy = max(((kept[1] - kept[0]) - (whole[1] - whole[0])) // step, 0)
    return Costs(region, save, policy, per_op)


def _fastest(run: Callable[[torch.Tensor], torch.Tensor]) -> int:
    start = torch.ones(8, requires_grad=True)
    spent = []
    for _ in range(_RUNS):
        began = time.thread_time_ns()
        run(start).sum().backward()
        spent.append(time.thread_time_ns() - began)
    return min(spent)
