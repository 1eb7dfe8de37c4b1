"""The call of a captured graph that is under way, one in each thread."""

import threading
from typing import Final, TypeAlias

import torch

from tightrope.capture.announce import GradientGroups
from tightrope.capture.inner import LeavingCall
from tightrope.capture.uses import Rest

Later: TypeAlias = tuple[Rest, GradientGroups | None, LeavingCall | None]
"""What a backward has to know of its call."""

NOTHING: Final[Later] = ([], None, None)


class UnderWay(threading.local):
    """What a call tells the node of autograd that it runs, and is told by it.

    Attributes:
        told: see `Later`.
        token: what the forward returned last; what the backward keeps goes with it.
    """

    told: Later = NOTHING
    token: torch.Tensor | None = None
