"""Mixtures of experts that drop no token and take bytes that no routing changes."""

from tightrope_experts.capacity import capacity_of, limited, load_of, places_of
from tightrope_experts.interface import register
from tightrope_experts.layer import ACTIVATIONS, Activation, MoE, mix
from tightrope_experts.products import ROWS

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
