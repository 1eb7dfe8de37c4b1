"""Training on graphs that are divided over ranks: bars Q1 to Q6."""
