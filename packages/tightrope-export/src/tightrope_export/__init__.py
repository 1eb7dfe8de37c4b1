"""What to recompute, as files that plain PyTorch and other engines run."""
