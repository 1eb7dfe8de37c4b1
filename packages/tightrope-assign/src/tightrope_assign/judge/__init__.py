"""One judge for every kind of plan; it shares no code with planners."""
