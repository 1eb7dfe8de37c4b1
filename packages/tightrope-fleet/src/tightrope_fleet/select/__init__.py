"""Choosing under noise: the selector, the noise of federated evaluation, and methods to compare with."""

from tightrope_shared.select import Belief, Selection, Selector, shrink

__all__ = ["Belief", "Selection", "Selector", "shrink"]
