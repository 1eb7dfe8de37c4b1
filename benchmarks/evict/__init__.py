"""Eager eviction: what policies recompute at which memory ratio."""
