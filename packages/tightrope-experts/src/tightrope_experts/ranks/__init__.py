"""Experts that are divided over the ranks of a process group."""

from tightrope_experts.layout import Sending
from tightrope_experts.ranks.exchange import guarded
from tightrope_experts.ranks.layer import MoEAcross

__all__ = ["MoEAcross", "Sending", "guarded"]
