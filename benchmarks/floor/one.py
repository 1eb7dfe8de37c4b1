"""One loop of the floor benchmark, in a process of its own: ``python -m benchmarks.floor.one SEED [BUDGET]``.

Prints JSON: the bytes of the loop without a plan, or what came of it under the budget.
"""

import gc
import json
import re
import sys
import warnings

import tightrope
from benchmarks.floor.nets import DROPS, OPTIMIZERS, Case, case
from tightrope.core import TightropeError
from tightrope.run.ledger.accounts import accounts

_STEPS = 5


def unplanned(one: Case) -> int:
    """Most bytes that torch's allocator takes for the loop without a plan; 0 = nothing counts them."""
    gc.collect()
    native = accounts().allocator
    if native is None:
        return 0
    native.reset_peaks()
    train(one, 0)
    return native.stats().charged_peak + accounts().older


def train(one: Case, budget: int) -> tuple[str, int | float, int]:
    """Train under a budget; 0 = without the library.

    Returns:
        The empty string and the share of the budget that was used, or the class of the error, the step in
        which it was raised, and the budget that it names; then what kernels take behind torch's allocator.
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
        share = tightrope.report(model).observed_total / budget if budget else 0.0
        return "", share, accounts().hidden
    except TightropeError as error:
        first = re.search(r"budget=(\d+)", str(error))
        named = int(first[1]) if first else 0
        dropping = re.search(r"drops its gradients before each forward works with budget=(\d+)", str(error))
        if dropping and one.drops == DROPS[0] and "about the step without a plan" not in str(error):
            named = int(dropping[1])
        return f"{type(error).__name__} in step {step}", named, accounts().hidden


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seed, *budgets = map(int, sys.argv[1:])
    print(json.dumps(train(case(seed), budgets[0]) if budgets else unplanned(case(seed))))
