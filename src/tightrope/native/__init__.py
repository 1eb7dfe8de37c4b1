"""The native part: building it, and the allocator with planned addresses."""

from tightrope.native.build import cache_folder, compiler, library, sources

__all__ = ["cache_folder", "compiler", "library", "sources"]
