"""Other ways to train the same net with less memory, measured in the same process.

per block   torch.utils.checkpoint around every block; Hugging Face nets through their own API
first k     the same around the first k blocks only
selective   torch.utils.checkpoint around every block, with a policy of which ops' results to keep
aot_eager   torch.compile's min-cut partitioner without code generation, at a share of the
            activation memory it would keep (``activation_memory_budget``)
inductor    the same partitioner with generated kernels
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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


def first_blocks(case: Case, count: int, **options: Any) -> Callable[..., Tensor]:
    """Checkpoint the first blocks of a net, and return its forward."""
    for block in layers(case)[:count]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    return case.model.forward


def layers(case: Case) -> list[nn.Module]:
    """List the repeated blocks of a net: those of its longest list of modules, else `blocks`."""
    lists = [list(module) for module in case.model.modules() if isinstance(module, nn.ModuleList)]
    longest = max(lists, key=len, default=[])
    return longest if len(longest) > 1 else blocks(next(case.model.children()))


_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution")
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)
_NORMS = ("aten::native_layer_norm", "aten::_native_batch_norm_legit", "aten::native_batch_norm")
_CURVES = ("aten::tanh", "aten::gelu", "aten::erf", "aten::silu")
POLICIES: dict[str, tuple[tuple[str, ...], int]] = {
    "attention": (_ATTENTION, 1),
    "half the products": (_PRODUCTS, 2),
    "products": (_PRODUCTS, 1),
    "products, attention": (_PRODUCTS + _ATTENTION, 1),
    "and norms": (_PRODUCTS + _ATTENTION + _NORMS, 1),
    "and curves": (_PRODUCTS + _ATTENTION + _NORMS + _CURVES, 1),
}
"""What selective checkpointing keeps: results of these ops, of every n-th only."""


def selective(case: Case, policy: str) -> Callable[..., Tensor]:
    """Checkpoint every block, keep what a policy says, and return its forward."""
    return first_blocks(case, len(layers(case)), context_fn=partial(_contexts, *POLICIES[policy]))


def _contexts(kept: tuple[str, ...], every: int) -> tuple[Any, Any]:
    seen: Counter[bool] = Counter()

    def choose(context: Any, op: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        if op.name().split(".")[0] not in kept:
            return CheckpointPolicy.PREFER_RECOMPUTE
        seen[context.is_recompute] += 1
        keep = seen[context.is_recompute] % every == 0
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    untyped: Any = create_selective_checkpoint_contexts
    found: tuple[Any, Any] = untyped(choose)
    return found


def compiled_by(case: Case, *, backend: str) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(case.model, backend=backend, dynamic=False)
    return compiled


@contextmanager
def activation_memory(portion: float) -> Iterator[None]:
    import torch._functorch.config as config

    with config.patch(activation_memory_budget=portion):
        yield
