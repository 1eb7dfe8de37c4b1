"""One training step as C for a microcontroller: capture, translate, plan, emit, run and compare."""

from tightrope.micro.compile import CompiledStep, compile_step
from tightrope.micro.host import HostRun, run_on_host
from tightrope.micro.step import MicroStep, capture_step

__all__ = [
    "CompiledStep",
    "HostRun",
    "MicroStep",
    "capture_step",
    "compile_step",
    "run_on_host",
]
