"""Independent checkers of steps that are cut into tiles, and of steps that update a part of the parameters.

Nothing here shares code with what it checks: a judge imports the core types alone.
"""
