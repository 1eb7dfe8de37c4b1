"""Loops over time that are written in Python, found again and run as kernels."""

from tightrope_forms.loops.api import LoopedModule as LoopedModule
from tightrope_forms.loops.api import optimise_loops as optimise_loops
