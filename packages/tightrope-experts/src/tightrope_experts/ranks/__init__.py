"""Experts that are divided over the ranks of a process group."""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_experts.layout import Sending
    from tightrope_experts.ranks.exchange import guarded
    from tightrope_experts.ranks.layer import MoEAcross

__getattr__ = lazily(__name__, {"MoEAcross": "layer", "Sending": "layer", "guarded": "exchange"})

__all__ = ["MoEAcross", "Sending", "guarded"]
