"""Kernels of torch's library that no op of torch calls as a plan would."""
