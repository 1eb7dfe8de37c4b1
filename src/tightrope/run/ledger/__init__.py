"""Who holds how many bytes, what is left for a plan, and what a refusal says."""
