"""Independent checkers of what the placers here make."""
