"""One training step as C for a microcontroller: capture, translate, plan, emit, run and compare."""

from tightrope.micro.compile import CompiledStep, Manifest, compile_step, sample_of
from tightrope.micro.emulate import BoardRun, FenceError, run_on_board
from tightrope.micro.host import HostRun, run_on_host
from tightrope.micro.profile import Profile, profile
from tightrope.micro.step import MicroStep, capture_step, value_bytes

__all__ = [
    "BoardRun",
    "CompiledStep",
    "FenceError",
    "HostRun",
    "Manifest",
    "MicroStep",
    "Profile",
    "capture_step",
    "compile_step",
    "profile",
    "run_on_board",
    "run_on_host",
    "sample_of",
    "value_bytes",
]
