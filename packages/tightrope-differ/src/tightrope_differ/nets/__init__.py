"""Nets: captured graphs, ways to run them, smaller forms, and C for a board."""
