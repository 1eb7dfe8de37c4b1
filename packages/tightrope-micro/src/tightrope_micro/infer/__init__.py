"""Inference as C for a microcontroller: capture, plan, emit, run and compare; in float32 or in integers."""

from tightrope_micro.forward.capture import FloatNet, capture_net
from tightrope_micro.forward.reference import evaluate_net, ranges_of
from tightrope_micro.infer.compile import CompiledNet, compile_net

__all__ = ["CompiledNet", "FloatNet", "capture_net", "compile_net", "evaluate_net", "ranges_of"]
