"""Choose which values sums read in 8 bits: as many as keep the error of the result within a budget.

Idea        The net is quantized with all sums in 16 bits, and its error measured on samples. Then every value
            that a sum reads is tried in 8 bits, all at once first, else one by one, the largest first. It
            stays so where the error of the whole integer net grows by no more than the budget.
Source      greedy selection; what is measured is the net that runs, not a model of its noise
Guarantee   On the samples the error of what is returned is within the budget of that with sums of 16 bits.
            It has passed `net_proof.prove_net`.
Complexity  At most as many evaluations of the samples as sums read values, and two.
Gaps        Values that a layer norm or a sum with a constant reads stay in 16 bits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tightrope.core import TightropeError
from tightrope_micro.forward.capture import FloatNet
from tightrope_micro.forward.reference import evaluate_net
from tightrope_micro.integer.demands import NARROW, WIDE, candidates
from tightrope_micro.integer.epilogue import LIMITS
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.quantize import quantize

STREAM_ERROR: Final = 0.01
"""The usual budget: the error of the result grows by at most 1 % of its root mean square."""
_MOST_SAMPLES: Final = 32


def quantize_within(
    net: FloatNet,
    ranges: Mapping[str, float],
    samples: Sequence[Sequence[Tensor]],
    budget: float,
    **options: Any,
) -> IntegerNet:
    """Write a captured forward in integers, with sums of 8 bits where an error budget allows them.

    Args:
        net: captured.
        ranges: as `quantize` takes them.
        samples: inputs of several calls; up to 32 of them, evenly spread, are measured.
        budget: by how much the root mean square error of the result may grow, as a share of its root mean
            square.
        options: those of `quantize`.

    Raises:
        UnsupportedOpError: an op has no integer kernel; names it.
        JudgeError: an intermediate may leave 32 bits; names op, value and range.
        TightropeError: the budget is negative or no number, there are no samples, or no shifts fit an op.
    """
    if not (0 <= budget < math.inf and samples):
        raise TightropeError(
            f"an error of {budget} for 8-bit sums on {len(samples)} samples: give 0 or more, and samples."
        )
    measured = samples[:: -(-len(samples) // _MOST_SAMPLES)]
    wanted = np.stack([evaluate_net(net, one).numpy().ravel() for one in measured])
    wide = quantize(net, ranges, **options)
    left = candidates(net.graph, NARROW if options.get("narrow") else WIDE)
    most = _error(wide, measured, wanted) + budget
    best, thin = wide, frozenset[int]()
    for one in (frozenset(left), *(frozenset((storage,)) for storage in left)):
        if one <= thin:
            continue
        try:
            tried = quantize(net, ranges, thin=thin | one, **options)
        except TightropeError:  # no shifts fit with it
            continue
        if _error(tried, measured, wanted) <= most:
            best, thin = tried, thin | one
    return best


def _error(net: IntegerNet, samples: Sequence[Sequence[Tensor]], wanted: NDArray[Any]) -> float:
    """Root mean square error of the result, as a share of its root mean square."""
    run = NetEvaluator(net.graph, net.constants, net.programs)
    found = np.stack([run(_inputs(net, one)).ravel() for one in samples]) * net.output.scale
    size = max(float(np.sqrt(np.mean(wanted**2))), 1e-12)
    return float(np.sqrt(np.mean((found - wanted) ** 2))) / size


def _inputs(net: IntegerNet, inputs: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """Inputs as whole numbers of their formats."""
    pairs = zip(inputs, net.inputs, strict=True)
    return [np.clip(np.rint(x.numpy() / one.scale), *LIMITS[one.dtype]).astype(np.int64) for x, one in pairs]
