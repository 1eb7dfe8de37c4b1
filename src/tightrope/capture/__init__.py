"""From PyTorch to a graph of storages, and the way back."""

from tightrope.capture.api import capture, capture_program, measured
from tightrope.capture.program import Program

__all__ = ["Program", "capture", "capture_program", "measured"]
