"""State the limit, get a plan, run it, and see the proof."""
