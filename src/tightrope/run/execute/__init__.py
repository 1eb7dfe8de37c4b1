"""Executables as torch code: emitted, checked while they run for the first time, paged."""
