"""Experts that are divided over the ranks of a process group."""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_experts.ranks.layer import MoEAcross, Ways
    from tightrope_experts.ranks.layout import Layout, Traffic

__getattr__ = lazily(
    __name__, {"Layout": "layout", "MoEAcross": "layer", "Traffic": "layout", "Ways": "layer"}
)

__all__ = ["Layout", "MoEAcross", "Traffic", "Ways"]
