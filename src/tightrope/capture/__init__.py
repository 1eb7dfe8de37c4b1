"""From PyTorch to a graph of storages, and the way back."""

from tightrope.capture.api import capture, capture_program, measured
from tightrope.capture.program import Call, Program

__all__ = ["Call", "Program", "capture", "capture_program", "measured"]
