"""Lookups as they run: timed on this machine, fitted by prices, and divided among ranks."""
