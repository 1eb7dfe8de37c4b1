"""Schedules that page what they must, weights included, or make it again, for least time or energy."""
