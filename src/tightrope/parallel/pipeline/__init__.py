"""Pipelines: the order of stages and micro-batches on every rank."""
