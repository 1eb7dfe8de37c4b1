"""Families of models and loops that the zoo does not have, tiny, with random weights."""

from benchmarks.witness.families import hugging, kernels, plain
from benchmarks.witness.families.trial import Family, Trial

__all__ = ["FAMILIES", "Family", "Trial"]

FAMILIES: dict[str, Family] = {
    family.name: family for module in (hugging, plain, kernels) for family in module.FAMILIES
}
"""All families by name, in the order in which the table lists them."""
