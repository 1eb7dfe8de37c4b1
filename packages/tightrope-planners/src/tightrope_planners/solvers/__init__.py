"""Calls of native solvers that only this plug-in needs; their sources are those of the core."""
