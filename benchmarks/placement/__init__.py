"""Placement: how close to the load bound, how fast, and beside whom."""
