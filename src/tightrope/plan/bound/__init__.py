"""Lower bounds on bytes, with a witness, and on time, with the numbers behind them."""

from tightrope.plan.bound.floor import lower_bound

__all__ = ["lower_bound"]
