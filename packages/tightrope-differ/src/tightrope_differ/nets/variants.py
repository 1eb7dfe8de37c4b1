"""Smaller and faster forms of a net: low ranks, fewer channels, smaller inputs, and combinations.

Source      Splits by singular values: Jaderberg et al. (2014), a k x k convolution as k x 1 and 1 x k.
            Channels are taken out by torch-pruning (Fang et al., 2023), with all that depends on them.
Guarantee   A split at full rank computes what the layer computed, but for rounding. A layer is split only
            where that takes fewer weights.
Gaps        Grouped and transposed convolutions are not split. The last layer keeps its outputs.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError

_RATIOS: Final = (0.5, 0.75, 0.9, 0.95)
_RANK: Final = 0.25


@dataclass(frozen=True)
class NetVariant:
    """A form of a net.

    Attributes:
        name: such as ``pruned 75 %, input 1/2``.
        net: in evaluation mode, not trained again yet.
    """

    name: str
    net: nn.Module


def variants(net: nn.Module, sample: Tensor) -> Iterator[NetVariant]:
    """Give forms of a net, from itself to the smallest.

    Args:
        net: copied.
        sample: a batch of inputs.

    Returns:
        Of inputs in whole and, for pictures, at half their size: the net, the net at low rank, and where
        torch-pruning is installed, with fewer channels. Forms that do not run on the sample are left out.
    """
    with torch.no_grad():
        shape = net.eval()(sample).shape
    for factor in (1, 2) if sample.ndim == 4 and min(sample.shape[2:]) >= 8 else (1,):
        given = nn.functional.avg_pool2d(sample, factor) if factor > 1 else sample
        names = [f"input 1/{factor}"] if factor > 1 else []
        made = [
            (names or ["as it is"], copy.deepcopy(net)),
            ([f"rank {_RANK:.0%}", *names], low_rank(net, _RANK)),
        ]
        if find_spec("torch_pruning"):
            made += [([f"pruned {ratio:.0%}", *names], pruned(net, sample, ratio)) for ratio in _RATIOS]
        for words, form in made:
            try:
                with torch.no_grad():
                    fits = form.eval()(given).shape == shape
            except RuntimeError:  # the net takes inputs of one size
                fits = False
            if fits:
                whole = nn.Sequential(nn.AvgPool2d(factor), form) if factor > 1 else form
                yield NetVariant(", ".join(words), whole.eval())


def low_rank(net: nn.Module, share: float) -> nn.Module:
    """Copy a net and split its linear layers and convolutions.

    Args:
        net: copied.
        share: of the full rank that is kept, above 0 and at most 1.

    Example:
        >>> low_rank(nn.Sequential(nn.Linear(64, 64)), 0.25)[0]
        Sequential(
          (0): Linear(in_features=64, out_features=16, bias=False)
          (1): Linear(in_features=16, out_features=64, bias=True)
        )
    """
    made = copy.deepcopy(net)
    for name, layer in list(made.named_modules()):
        split = _split(layer, share)
        if split is not None and not name:
            return split
        if split is not None:
            made.set_submodule(name, split)
    return made


def _split(layer: nn.Module, share: float) -> nn.Sequential | None:
    """Split one layer in two, or give None where that costs more or is not possible."""
    if isinstance(layer, nn.Linear):
        matrix = layer.weight
    elif type(layer) is nn.Conv2d and layer.groups == 1 and isinstance(layer.padding, tuple):
        if layer.padding_mode != "zeros":
            return None
        matrix = layer.weight.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)  # out * wide, in * high
    else:
        return None
    rank = max(1, round(share * min(matrix.shape)))
    if share < 1 and rank * sum(matrix.shape) >= matrix.numel():
        return None
    left, sizes, right = torch.linalg.svd(matrix.detach().double(), full_matrices=False)
    left, right = left[:, :rank] * sizes[:rank].sqrt(), sizes[:rank, None].sqrt() * right[:rank]
    first: nn.Linear | nn.Conv2d
    second: nn.Linear | nn.Conv2d
    biased = layer.bias is not None
    if isinstance(layer, nn.Linear):
        first = nn.Linear(layer.in_features, rank, bias=False)
        second = nn.Linear(rank, layer.out_features, bias=biased)
    else:
        (high, wide), (y, x) = layer.kernel_size, layer.stride
        assert not isinstance(layer.padding, str)
        (top, side), (down, across) = layer.padding, layer.dilation
        first = nn.Conv2d(layer.in_channels, rank, (high, 1), (y, 1), (top, 0), (down, 1), bias=False)
        second = nn.Conv2d(rank, layer.out_channels, (1, wide), (1, x), (0, side), (1, across), bias=biased)
        right = right.reshape(first.weight.shape)
        left = left.reshape(layer.out_channels, 1, wide, rank).permute(0, 3, 1, 2)
    with torch.no_grad():
        first.weight.copy_(right)
        second.weight.copy_(left)
        if layer.bias is not None and second.bias is not None:
            second.bias.copy_(layer.bias)
    return nn.Sequential(first, second).to(layer.weight.device)


def pruned(net: nn.Module, sample: Tensor, ratio: float) -> nn.Module:
    """Copy a net without the channels of the smallest weights.

    Args:
        net: copied.
        sample: a batch of inputs.
        ratio: of channels that are taken out of every layer but the last.

    Raises:
        TightropeError: torch-pruning is not installed, or finds no way through the net.
    """
    if not find_spec("torch_pruning"):
        raise TightropeError("pruning needs torch_pruning: pip install 'tightrope-differ[prune]'.")
    import torch_pruning

    made = copy.deepcopy(net).eval()
    layers = [one for one in made.modules() if isinstance(one, nn.Linear | nn.Conv2d)]
    try:
        torch_pruning.pruner.MagnitudePruner(
            made, sample, torch_pruning.importance.MagnitudeImportance(p=1), pruning_ratio=ratio,
            ignored_layers=layers[-1:],
        ).step()  # fmt: skip
    except Exception as error:  # they have no common class
        raise TightropeError(f"torch-pruning fails: {type(error).__name__}: {str(error)[:200]}.") from error
    return made


def bytes_of(net: nn.Module) -> int:
    """Count the bytes of parameters and buffers."""
    return sum(one.nbytes for one in (*net.parameters(), *net.buffers()))
