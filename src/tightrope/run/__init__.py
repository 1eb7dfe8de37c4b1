"""Running plans: flat code, arenas, the checked first step, level 0."""
