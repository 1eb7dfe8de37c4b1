"""Mixtures of experts that drop no token and take bytes that no routing changes."""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_experts.capacity import capacity_of, limited, load_of, places_of
    from tightrope_experts.interface import register
    from tightrope_experts.layer import ACTIVATIONS, Activation, MoE, mix
    from tightrope_experts.sizes import ROWS

__getattr__ = lazily(
    __name__,
    {
        "ACTIVATIONS": "layer",
        "Activation": "layer",
        "MoE": "layer",
        "ROWS": "sizes",
        "capacity_of": "capacity",
        "limited": "capacity",
        "load_of": "capacity",
        "mix": "layer",
        "places_of": "capacity",
        "register": "interface",
    },
)

__all__ = [
    "ACTIVATIONS",
    "ROWS",
    "Activation",
    "MoE",
    "capacity_of",
    "limited",
    "load_of",
    "mix",
    "places_of",
    "register",
]
