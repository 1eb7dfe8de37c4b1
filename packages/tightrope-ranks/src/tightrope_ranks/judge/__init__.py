"""Independent checkers of pipelines on all ranks, of collectives, and of exchanges of gradients.

Nothing here shares code with what it checks: a judge imports the core types and the values beside it alone.
"""
