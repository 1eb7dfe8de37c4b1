"""Nets as C on this computer, which `tightrope parity` finds by the group ``tightrope.lowerings``."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from tightrope.core import Bytes, Machine, NativeError
from tightrope.core.machine import Tier
from tightrope_micro.compile import check_samples
from tightrope_micro.host import FLAGS, c_compiler, execute, read_run, sources_of
from tightrope_micro.infer import CompiledNet, FloatNet, capture_net, compile_net, ranges_of
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

_RAM: Final[Bytes] = 1 << 30
_COMPUTER: Final = Machine("this-computer", (Tier("ram", _RAM), Tier("file", 4 << 30)))


class HostNet:
    """A net as C that is built once for this computer.

    Args:
        compiled: in memory.

    Raises:
        NativeError: there is no C compiler, or it does not build.
    """

    def __init__(self, compiled: CompiledNet) -> None:
        compiler = c_compiler()
        if compiler is None:
            raise NativeError("no C compiler was found (cc, gcc or clang): install one, or name it in $CC.")
        self.compiled, self._here = compiled, Path(tempfile.mkdtemp(prefix="tightrope-micro-"))
        weakref.finalize(self, shutil.rmtree, self._here, ignore_errors=True)
        folder = compiled.write(self._here / "net")
        sources = [str(folder / name) for name in (*sources_of(compiled.manifest), "host_main.c")]
        command = [compiler, *FLAGS, "-o", str(self._here / "run"), *sources, "-lm"]
        execute(command, "building the net for this computer")

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Compute a batch, a sample at a time: one row of real numbers each."""
        samples = [
            self.compiled.sample(*one) for one in zip(*(torch.split(x, 1) for x in inputs), strict=True)
        ]
        check_samples(self.compiled.manifest, samples)
        (self._here / "samples").write_bytes(b"".join(samples))
        names = [str(self._here / name) for name in ("run", "net/storage.bin", "samples")]
        said = execute([*names, str(len(samples))], "running the net")
        rows = read_run(self.compiled.manifest, said, bytes(self.compiled.source.storage)).outputs
        return torch.stack([torch.from_numpy(self.compiled.scores(row)).flatten() for row in rows])


def float_c(net: nn.Module, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Write a net as C in float32, and run it on this computer.

    Args:
        net: in evaluation mode; returns one tensor.
        samples: a batch; the C computes one sample at a time.
    """
    return _running(net, samples, capture_net(net, (samples[:1],)))


def integer_c(net: nn.Module, samples: Tensor) -> Callable[[Tensor], Tensor]:
    """Write a net as C in integers, and run it on this computer; ranges come from ``samples``."""
    return _running(net, samples, in_integers(capture_net(net, (samples[:1],)), [samples]))


def in_integers(found: FloatNet, samples: Sequence[Tensor]) -> IntegerNet:
    """Quantize a captured net by the ranges of a batch of each input."""
    calls = list(zip(*(torch.split(x, 1) for x in samples), strict=True))
    return quantize_within(found, ranges_of(found, calls), calls, STREAM_ERROR)


def _running(net: nn.Module, samples: Tensor, found: FloatNet | IntegerNet) -> Callable[[Tensor], Tensor]:
    with torch.no_grad():
        shape = net(samples[:1]).shape[1:]
    on_host = HostNet(compile_net(found, _COMPUTER, ram=_RAM))
    return lambda batch: on_host(batch).reshape(len(batch), *shape)
