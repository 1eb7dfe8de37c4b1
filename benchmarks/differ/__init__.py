"""What differs between a pipeline and other ways to run it, against what is known to differ."""
