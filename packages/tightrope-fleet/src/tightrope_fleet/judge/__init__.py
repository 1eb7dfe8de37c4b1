"""Independent checkers of placements of jobs, runs of streams, rounds of fleets and boosted forests.

Nothing here shares code with what it checks: a judge imports the core types and the values beside it alone.
"""
