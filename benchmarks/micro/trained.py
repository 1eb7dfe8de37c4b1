"""Steps of a net in PyTorch on new data each, and the samples that the device gets for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.micro.nets import Made
from tightrope_micro import BoardRun, CompiledStep, HostRun, value_bytes

Batches = list[list[torch.Tensor]]
State = dict[str, Any]


def train(
    make: Callable[[], Made], num_steps: int, *, classes: int = 10
) -> tuple[list[float], State, Batches]:
    """Take steps on new data each; return losses, what the steps left, and the data."""
    model, args, optimizer = make()
    generator = torch.Generator().manual_seed(7)
    batches, losses = [], []
    for _ in range(num_steps):
        batch = [
            torch.randn(a.shape, generator=generator)
            if a.is_floating_point()
            else torch.randint(0, classes, a.shape, generator=generator)
            for a in args
        ]
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        batches.append(batch)
    state = {n: p.detach().numpy().ravel() for n, p in (*model.named_parameters(), *model.named_buffers())}
    for name, parameter in model.named_parameters():
        buffer = optimizer.state[parameter].get("momentum_buffer") if parameter in optimizer.state else None
        if buffer is not None:
            state[f"{name}.momentum"] = buffer.numpy().ravel()
        for moment in ("exp_avg", "exp_avg_sq"):
            if moment in optimizer.state.get(parameter, {}):
                state[f"{name}.{moment}"] = optimizer.state[parameter][moment].numpy().ravel()
    return losses, state, batches


def samples(compiled: CompiledStep, batches: Batches) -> list[bytes]:
    """Inputs of every step in the order in which they lie in storage."""
    order = [int(one.name.removeprefix("input_")) for one in compiled.manifest.held if one.kind == "input"]
    return [b"".join(value_bytes(batch[k]) for k in order) for batch in batches]


def worst(run: HostRun | BoardRun, compiled: CompiledStep, state: State) -> float:
    """Largest difference of what the steps left: parameters, running statistics, momentum."""
    names = {one.name for one in compiled.manifest.held if one.kind != "input"}
    return max(float(np.abs(np.frombuffer(run.values[n], np.float32) - state[n]).max()) for n in names)
