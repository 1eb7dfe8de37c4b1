"""Mixtures of experts that drop no token and take bytes that no routing changes."""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_experts.capacity import capacity_of, limited, load_of, places_of
    from tightrope_experts.interface import register
    from tightrope_experts.layer import MoE, mix

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("capacity_of", "limited", "load_of", "places_of"), "capacity"),
        **dict.fromkeys(("MoE", "mix"), "layer"),
        "register": "interface",
    },
)

__all__ = ["MoE", "capacity_of", "limited", "load_of", "mix", "places_of", "register"]
