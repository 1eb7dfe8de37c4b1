"""Which models can have their gradients sent in planned messages; the others are refused at the call."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import TightropeError


def accepted(model: DistributedDataParallel) -> dict[str, int]:
    """Return how many numbers each gradient of a model has, by the name of its parameter.

    Args:
        model: wrapped.

    Raises:
        TightropeError: a gradient will be sparse, or none of 32-bit floats on the CPU.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TightropeError(f"model is a {type(model).__name__}: wrap it in DistributedDataParallel first.")
    if model.mixed_precision is not None:
        raise TightropeError(
            "model has mixed_precision=, where DistributedDataParallel sends gradients itself. Use "
            "torch.autocast instead, which keeps gradients in float32."
        )
    for name, module in model.module.named_modules():
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and module.weight.requires_grad
        ):
            raise TightropeError(
                f"module {name!r} makes sparse gradients, which cannot be planned. Make it with "
                "sparse=False, or leave compress_gradients out."
            )
    ignored = model.parameters_to_ignore
    trained = {
        name: one
        for name, one in model.module.named_parameters()
        if one.requires_grad and name not in ignored
    }
    for name, one in trained.items():
        if one.dtype != torch.float32 or one.device.type != "cpu":
            raise TightropeError(
                f"parameter {name!r} is {one.dtype} on {one.device}: messages are made of float32 on cpu. "
                "Keep parameters in float32 and use torch.autocast, or use a hook of torch."
            )
    return {name: one.numel() for name, one in trained.items()}
