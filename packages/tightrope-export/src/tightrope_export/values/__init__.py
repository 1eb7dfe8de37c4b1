"""What is recorded of a step, what is exported, and what a run of it showed."""
