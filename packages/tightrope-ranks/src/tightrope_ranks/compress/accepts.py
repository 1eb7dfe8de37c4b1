"""Which models and arguments `compress_gradients` takes; the others are refused at the call."""

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import TightropeError
from tightrope_ranks.compress.codecs import CODECS, DEFAULT_CODECS


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


def check_arguments(
    codecs: Any, *, error: Any, seconds: Any, sent: Any, trials: Any, timeout: Any
) -> tuple[str, ...]:
    """Return the names of the codecs that the arguments of `compress_gradients` allow.

    Raises:
        TightropeError: an argument is of another kind, or out of its range; quotes it.
    """
    given = DEFAULT_CODECS if codecs is None else codecs
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    unknown = [name for name in names if not isinstance(name, str) or name not in CODECS]
    if unknown or not names:
        one = unknown[0] if unknown else None
        raise TightropeError(f"codecs={codecs!r}: {one!r} is no codec; there are {', '.join(CODECS)}.")
    if error is not None and not (_is_number(error) and error >= 0):
        raise TightropeError(f"error={error!r}: give a relative error of 0 or more, as 0.01.")
    if seconds is not None and not (_is_number(seconds) and seconds > 0):
        raise TightropeError(f"seconds={seconds!r}: give seconds above 0, as 0.5.")
    if sent is not None and not (_is_whole(sent) and sent >= 0):
        raise TightropeError(f"sent={sent!r}: give whole bytes, 0 or more.")
    if not (_is_whole(trials) and trials >= 0):
        raise TightropeError(f"trials={trials!r}: give whole steps, 0 or more, as 8.")
    if not (_is_number(timeout) and 0 < timeout <= threading.TIMEOUT_MAX):
        raise TightropeError(f"timeout={timeout!r}: give finite seconds above 0, as 60.")
    return names


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)
