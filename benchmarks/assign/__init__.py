"""What goes where: `python -m benchmarks assign [--only G1,...] [--json FILE]`."""
