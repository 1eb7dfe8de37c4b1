"""A forward in float32 as ops of the C library: captured, and computed with PyTorch."""
