"""Other ways to train the same net with less memory, measured in the same process.

per block   torch.utils.checkpoint around every block; Hugging Face nets through their own API
aot_eager   torch.compile's min-cut partitioner without code generation, at a share of the
            activation memory it would keep (``activation_memory_budget``)
inductor    the same partitioner with generated kernels
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.spine.bar import Settings
from benchmarks.zoo import Case
from benchmarks.zoo.resnet import BasicBlock, Bottleneck
from benchmarks.zoo.vit import Block

MEMORY_SHARES = (1.0, 0.8, 0.5, 0.3, 0.1, 0.0)
_BLOCKS = (BasicBlock, Bottleneck, Block)


@dataclass(frozen=True, slots=True)
class Peer:
    """One contestant.

    Attributes:
        name: for the table.
        make: turns a fresh case into what computes the loss.
        setting: in force while it compiles and runs.
    """

    name: str
    make: Callable[[Case], Callable[..., Tensor]]
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext


def peers(settings: Settings) -> Iterator[Peer]:
    """List the contestants; Inductor only when asked for."""
    yield Peer("eager again", lambda case: case.model.forward)
    yield Peer("per block", per_block)
    for backend in ("aot_eager", "inductor") if settings.inductor else ("aot_eager",):
        for portion in MEMORY_SHARES:
            yield Peer(
                f"{backend} {portion:g}",
                partial(compiled_by, backend=backend),
                partial(activation_memory, portion),
            )


def per_block(case: Case) -> Callable[..., Tensor]:
    """Checkpoint every block of a net, and return its forward."""
    net: Any = next(case.model.children())
    if hasattr(net, "gradient_checkpointing_enable"):
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        for block in blocks(net):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return case.model.forward


def blocks(net: nn.Module) -> list[nn.Module]:
    """List what people checkpoint: residual or transformer blocks, else each run of layers."""
    found: list[nn.Module] = [module for module in net.modules() if isinstance(module, _BLOCKS)]
    if found:
        return found
    return [module for module in net.modules() if isinstance(module, nn.Sequential)]


def compiled_by(case: Case, *, backend: str) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(case.model, backend=backend, dynamic=False)
    return compiled


@contextmanager
def activation_memory(portion: float) -> Iterator[None]:
    import torch._functorch.config as config

    with config.patch(activation_memory_budget=portion):
        yield
