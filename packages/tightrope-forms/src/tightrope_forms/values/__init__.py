"""What solvers and judges exchange."""
