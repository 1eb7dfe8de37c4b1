"""Nets as C on this computer, which `tightrope parity` finds by the group ``tightrope.lowerings``."""

import tempfile
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tightrope.core import Bytes, Machine
from tightrope.core.machine import Tier
from tightrope_micro.host import run_on_host
from tightrope_micro.infer import CompiledNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.quantize import quantize

_RAM: Bytes = 1 << 30
_COMPUTER = Machine("this-computer", (Tier("ram", _RAM), Tier("file", 4 << 30)))


def float_c(net: nn.Module, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Write a net as C in float32, and run it on this computer.

    Args:
        net: in evaluation mode; returns one tensor.
        samples: a batch; the C computes one sample at a time.
    """
    return _running(net, samples, compile_net(capture_net(net, (samples[:1],)), _COMPUTER, ram=_RAM))


def integer_c(net: nn.Module, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Write a net as C in integers, and run it on this computer; ranges come from ``samples``."""
    found = capture_net(net, (samples[:1],))
    ranges = ranges_of(found, [(one,) for one in torch.split(samples, 1)])
    return _running(net, samples, compile_net(quantize(found, ranges), _COMPUTER, ram=_RAM))


def _running(net: nn.Module, samples: Tensor, compiled: CompiledNet) -> Callable[[Tensor], Tensor]:
    with torch.no_grad():
        shape = net(samples[:1]).shape[1:]

    def call(batch: Tensor) -> Tensor:
        with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
            folder = compiled.write(f"{scratch}/net")
            run = run_on_host(folder, [compiled.sample(one) for one in torch.split(batch, 1)])
        return torch.stack([torch.from_numpy(compiled.scores(one)).reshape(shape) for one in run.outputs])

    return call
