"""Forwards without values, with the kernels that a target would run.

Idea        Stand-ins of tensors lie on the processor, where torch chooses its fused attention itself. For a
            machine with CUDA, attention becomes the kernel that it would be there, flash or memory-efficient,
            dropout the one that keeps a mask of one byte, and RMS norm the fused one; autograd then keeps
            what it keeps there.
Guarantee   What is kept for attention is queries, keys, values, output and the logarithms of the sums; no
            scores, unless torch has no fused kernel for the call on that device.
Complexity  As many ops as the forward has.
Gaps        ``torch.autocast("cuda")`` inside of a model is off on stand-ins: give a precision instead.
            Padding of odd head sizes, cuDNN's attention, and what recurrent kernels reserve are not seen.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_ATTENTION: Final[Any] = F.scaled_dot_product_attention
_DROPOUT: Final = F.dropout
_RMS_NORM: Final = F.rms_norm
_MOST_FLASH: Final = 256
"""Elements of a head that the flash kernel takes."""


def twin(tensor: torch.Tensor, fake: Callable[[Any], Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Make a stand-in on the processor, so that the same kernels are chosen wherever the tensor is.

    Args:
        tensor: that it stands for.
        fake: takes the values out of a tensor.
        dtype: of the stand-in; None = the tensor's.
    """
    if tensor.device.type == "cpu" and dtype in (None, tensor.dtype):
        found: torch.Tensor = fake(tensor)
        return found
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="cpu")
    return made.requires_grad_(tensor.requires_grad)


@contextmanager
def kernels_of(device: str) -> Iterator[None]:
    """Let stand-ins on the processor run the fused kernels of a device inside a ``with`` block.

    Args:
        device: as `Machine.device` names it; all but CUDA run what this processor does.
    """
    if not device.startswith("cuda"):
        yield
        return
    with (
        patch.object(F, "scaled_dot_product_attention", _attention),
        patch.object(F, "dropout", _dropout),
        patch.object(F, "rms_norm", _rms_norm),
        _OnCuda(),
    ):
        yield


class _OnCuda(TorchFunctionMode):
    """Meets those who hold torch's functions themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True
) -> torch.Tensor:
    if not training or not train or p == 0.0:
        return input
    made: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(made) if inplace else made


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attend as CUDA does: by flash attention, by the memory-efficient kernel, or unfused."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
    given: Any = (query, key, value)
    narrow = query.dtype in (torch.bfloat16, torch.float16)
    if query.dim() != 4 or (attn_mask is not None and attn_mask.requires_grad and enable_gqa):
        found: torch.Tensor = _ATTENTION(
            *given, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found
    if narrow and attn_mask is None and query.shape[-1] == value.shape[-1] <= _MOST_FLASH:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        found = flash(*given, dropout_p, is_causal, scale=scale)[0]
        return found
    if enable_gqa:
        times = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(times, 1) for one in (key, value))
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -torch.inf)
        bias = bias.expand(*query.shape[:3], key.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    found = efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]
    return found


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    del eps
    found: torch.Tensor = _FusedRmsNorm.apply(input, weight, len(normalized_shape))  # type: ignore[no-untyped-call]
    return found


class _FusedRmsNorm(torch.autograd.Function):
    """Keeps input, weight and a number per row, and moves and makes what the fused kernels do."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, num: int) -> torch.Tensor:
        rows = torch.empty(*input.shape[: input.dim() - num], *[1] * num, dtype=torch.float32)
        ctx.save_for_backward(input, weight, rows)
        return input.neg() if weight is None else input.mul(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, _ = ctx.saved_tensors
        return gradients[0].neg().to(input.dtype), None if weight is None else weight.neg(), None


_OURS: Final[dict[Any, Any]] = {
    _ATTENTION: _attention,
    _DROPOUT: _dropout,
    torch.dropout: _dropout,
    _RMS_NORM: _rms_norm,
    torch.rms_norm: _rms_norm,
}


def autocast_to(dtype: torch.dtype | None) -> Any:
    """Let ops of stand-ins run in another dtype where autocast says so; None = as the model does."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)
