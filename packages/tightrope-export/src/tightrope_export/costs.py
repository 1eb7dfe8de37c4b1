"""What torch's own work around ops takes here: measured once per process on modules of tiny ops.

Idea        The price of an op is that of its kernel alone. Python, autograd and checkpoints take time per op
            and per module on top. Modules of few and of many tiny ops, plain, checkpointed and under a
            policy that keeps everything in turn, tell how much.
Guarantee   None: times are the fastest of some runs.
Complexity  About 0.2 s.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tightrope_export.peak import Costs

_FEW, _MANY, _RUNS = 2, 34, 25
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


@cache
def measured_costs() -> Costs:
    """Measure them, in nanoseconds of thread-CPU time."""
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
