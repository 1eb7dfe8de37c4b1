"""Kernels that turn numbers into fewer bits and back; they know nothing of torch."""
