"""One training step as C for a microcontroller: capture, translate, plan, emit, run and compare.

Names are imported when they are first used: most need torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily

if TYPE_CHECKING:
    from tightrope_micro.compile import CompiledStep, Manifest, compile_step, sample_of
    from tightrope_micro.emulate import BoardRun, FenceError, run_on_board
    from tightrope_micro.host import HostRun, run_on_host
    from tightrope_micro.measured import Profile, profile
    from tightrope_micro.step import MicroStep, capture_step, value_bytes

__getattr__ = lazily(
    __name__,
    {
        "BoardRun": "emulate",
        "CompiledStep": "compile",
        "FenceError": "emulate",
        "HostRun": "host",
        "Manifest": "compile",
        "MicroStep": "step",
        "Profile": "measured",
        "capture_step": "step",
        "compile_step": "compile",
        "profile": "measured",
        "run_on_board": "emulate",
        "run_on_host": "host",
        "sample_of": "compile",
        "value_bytes": "step",
    },
)

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
