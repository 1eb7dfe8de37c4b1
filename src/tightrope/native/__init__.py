"""The native part: building it, the hook into the allocator of torch, and solvers without torch."""

from tightrope.native.build import cache_folder, compiler, is_safe, library, sources

__all__ = ["cache_folder", "compiler", "is_safe", "library", "sources"]
