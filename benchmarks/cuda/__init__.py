"""The promise on one NVIDIA GPU: bytes reserved, bits, time beside checkpointing, and the largest batch."""
