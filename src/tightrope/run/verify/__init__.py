"""Runs of a plan compared with eager ones, bit for bit."""
