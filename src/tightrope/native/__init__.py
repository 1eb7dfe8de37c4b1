"""The native part: building it, the hook into the allocator of torch, and solvers without torch."""

from tightrope.native.build import compiler, library, sources

__all__ = ["compiler", "library", "sources"]
