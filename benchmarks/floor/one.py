"""One loop of the floor benchmark, in a process of its own: ``python -m benchmarks.floor.one SEED [BUDGET]``.

Prints JSON: the bytes of the loop without a plan, or what came of it under the budget.
"""

import gc
import json
import re
import sys
import warnings
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import tightrope
from benchmarks.floor.nets import DROPS, OPTIMIZERS, Case, case
from tightrope.core import TightropeError
from tightrope.native.hook.allocator import Allocator
from tightrope.run.ledger.accounts import accounts

_STEPS = 5


class _OpByOp(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most that is charged during an op, and what its kernel takes outside of the allocator meanwhile."""

    def __init__(self, native: Allocator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.native = native
        self.most: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.most = max(self.most, self.native.stats().charged_peak)
        self.native.reset_peaks()
        self.native.begin_hidden()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            hidden = self.native.end_hidden()
            more = hidden.peak - max(hidden.left, 0)
            self.most = max(self.most, self.native.stats().charged_peak + more)


def unplanned(one: Case) -> int:
    """Most bytes that the loop takes without a plan; 0 = nothing counts them.

    What kernels keep from a first loop is not counted, here or under a budget.
    """
    native = accounts().allocator
    if native is None:
        return 0
    train(one, 0)
    gc.collect()
    native.attach_hidden()
    native.reset_peaks()
    counted = _OpByOp(native)
    with counted:
        train(one, 0)
    return max(counted.most, native.stats().charged_peak) + accounts().older


def train(one: Case, budget: int) -> tuple[str, int | float]:
    """Train under a budget; 0 = without the library.

    Returns:
        The empty string and the share of the budget that was used, or the class of the error, the step in
        which it was raised, and the budget that it names.
    """
    gc.collect()
    model, step = one.build(), 0
    optimizer = OPTIMIZERS[one.optimizer](model)
    if budget:
        tightrope.compile(model, budget=budget, progress=False)
    try:
        for step in range(_STEPS):
            batch = one.batch(step)
            if one.drops == DROPS[0]:
                optimizer.zero_grad()
            loss = one.call(model, batch)
            if one.drops != DROPS[0]:
                optimizer.zero_grad(set_to_none=one.drops == DROPS[1])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return "", tightrope.report(model).observed_total / budget if budget else 0.0
    except TightropeError as error:
        first = re.search(r"budget=(\d+)", str(error))
        named = int(first[1]) if first else 0
        dropping = re.search(r"drops its gradients before each forward works with budget=(\d+)", str(error))
        if dropping and one.drops == DROPS[0] and "about the step without a plan" not in str(error):
            named = int(dropping[1])
        return f"{type(error).__name__} in step {step}", named


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seed, *budgets = map(int, sys.argv[1:])
    print(json.dumps(train(case(seed), budgets[0]) if budgets else unplanned(case(seed))))
