"""Benchmarks: one runner, one file per question, and the nets they all share (`benchmarks.zoo`)."""
