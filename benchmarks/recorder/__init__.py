"""How well traces tell the truth, and what recording costs: ``python -m benchmarks recorder``.

Truths are independent of what they judge: the bits of an eager run for captured ones, a hook on every
autograd node for eager ones, annotated profiles whose annotations are removed for the annotator, and
the allocator's own counters for bytes. Times are CPU times of one thread.
"""
