"""Searching and placing in Python, for machines without a native part or a compiler."""

from tightrope_planners.python.placing import pack_in_python
from tightrope_planners.python.search import PythonSolver

__all__ = ["PythonSolver", "pack_in_python"]
