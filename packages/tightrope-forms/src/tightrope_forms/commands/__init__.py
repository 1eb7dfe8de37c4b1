"""Commands, found by entry points."""
