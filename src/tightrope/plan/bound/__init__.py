"""Lower bounds with a witness."""

from tightrope.plan.bound.floor import lower_bound

__all__ = ["lower_bound"]
