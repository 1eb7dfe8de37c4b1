"""Experts that are divided over the ranks of a process group."""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_experts.ranks.layer import MoEAcross, Sending
    from tightrope_experts.ranks.layout import ExpertLayout, Traffic

__getattr__ = lazily(
    __name__, {"ExpertLayout": "layout", "MoEAcross": "layer", "Traffic": "layout", "Sending": "layer"}
)

__all__ = ["ExpertLayout", "MoEAcross", "Sending", "Traffic"]
