"""Independent checkers: nothing here shares code with what it checks."""
