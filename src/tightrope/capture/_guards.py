"""Private names of torch for what its guards do not see."""

from collections.abc import Sequence

import torch


def overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Positions of tensors of one memory that overlap another one, as AOTAutograd finds them."""
    from torch._C._dynamo.guards import compute_overlapping_tensors

    return compute_overlapping_tensors(list(tensors), symbolic=False)
