"""Small random configurations of many model families, each a function of few lines."""

from benchmarks.families import configured, own
from benchmarks.families.registry import FAMILIES, hash_of, is_kept

__all__ = ["FAMILIES", "configured", "hash_of", "is_kept", "own"]
