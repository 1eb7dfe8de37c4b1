"""Train a net of the zoo for a few steps, eagerly or under a plan; say what that gave and what it took.

Run as a process of its own, so that every byte of the net goes through the allocator that counts.
"""

import gc
import hashlib
import json
import sys
from typing import Any

import torch

import tightrope
from benchmarks.zoo import build
from tightrope.core import Bytes
from tightrope.run.ledger.accounts import accounts

NUM_STEPS = 3


def sample(name: str, batch: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A net with a batch of the size, in storages of its own."""
    torch.manual_seed(0)
    case = build(name)
    copies = -(-batch // len(case.inputs[0]))
    inputs = tuple(torch.cat([one] * copies)[:batch].clone() for one in case.inputs)
    return case.model, inputs


def train(name: str, batch: int, budget: Bytes | None) -> dict[str, Any]:
    """Take steps of SGD; the same numbers whatever the budget, but for the bytes.

    Args:
        name: of the net.
        batch: images.
        budget: of the whole step; None = eager.
    """
    torch.set_num_threads(1)
    native = accounts().allocator
    assert native is not None, "bytes are counted by the native allocator, which needs a C++ compiler"
    before = native.stats().live
    model, inputs = sample(name, batch)
    gc.collect()
    held = native.stats().live - before
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    losses, refused, least = [], "", 0
    try:
        if budget is None:
            for _ in range(NUM_STEPS):
                sgd.zero_grad()
                native.reset_peaks()
                loss = model(*inputs)
                loss.backward()
                sgd.step()
                losses.append(loss.item().hex())
                del loss
            peak = native.stats().live_peak - before
        else:
            step = tightrope.step(model, budget=budget, model=model, optimizer=sgd, progress=False)
            losses = [step(*inputs).item().hex() for _ in range(NUM_STEPS)]
            peak = step.report().observed_total
    except tightrope.InfeasibleError as error:
        refused, peak, least = str(error), 0, error.smallest_found or 0
    state = hashlib.sha256()
    for tensor in (*model.parameters(), *model.buffers()):
        state.update(tensor.detach().numpy().tobytes())
    return {
        "losses": losses, "state": state.hexdigest(), "peak": peak, "held": held, "refused": refused,
        "least": least,
    }  # fmt: skip


if __name__ == "__main__":
    _, net, size, amount = sys.argv
    print(json.dumps(train(net, int(size), None if amount == "eager" else int(amount))))
