"""M5: nets that PyTorch exports to ONNX, read back, captured, and compared with ONNX Runtime.

Every single op of M3 that can be exported, the nets of M1 and M2, and a recurrent net for sensors. With
``--onnx``, onnxruntime of that interpreter computes what is expected, else the evaluator of ``onnx``.
"""

import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from benchmarks.micro import published, tiny
from benchmarks.micro.rows import Row
from benchmarks.micro.single_ops import SINGLE, Case, Shape, ready
from tightrope.core import TightropeError
from tightrope_micro.infer import capture_net, evaluate_net
from tightrope_micro.onnx_net import load_onnx

_CLOSE: Final = 1e-5
_PEER: Final = """
import sys
import numpy
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
numpy.save(sys.argv[3], session.run(None, {given.name: numpy.load(sys.argv[2])})[0])
"""


class Sensed(nn.Module):
    """A convolution of one dimension, an LSTM in both directions, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = (
            nn.Conv1d(3, 8, 5, padding=2),
            nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True),
        )
        self.gru, self.last = nn.GRU(32, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        y = self.lstm(torch.relu(self.conv(x)).transpose(1, 2))[0]
        found: Tensor = self.last(self.gru(y)[0][:, -1]).softmax(-1)
        return found


def _single(case: Case) -> tuple[nn.Module, Shape]:
    return case.make(), case.shape


def _nets() -> dict[str, Callable[[], tuple[nn.Module, Shape]]]:
    found: dict[str, Callable[[], tuple[nn.Module, Shape]]] = {
        name: partial(_single, case) for name, case in SINGLE.items()
    }
    found |= {f"{name}, published": make for name, make in published.NETS.items()}
    return {**found, **tiny.NETS, "sensed": lambda: (Sensed(), (1, 3, 32))}


def m5(console: Console, peer: str) -> list[Row]:
    """Export, read, capture and compare."""
    right = refused = wrong = skipped = 0
    for name, make in _nets().items():
        torch.manual_seed(0)
        net, shape = make()
        net, x = ready(net), torch.randn(shape)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            if not _exported(net, x, path):
                skipped += 1
                continue
            want = _wanted(path, x, peer)
            try:
                read, _ = load_onnx(path)
                found = evaluate_net(capture_net(read, [x]), [x]).numpy().reshape(want.shape)
            except TightropeError as error:
                console.print(f"{name}: {str(error)[:100]}")
                refused += 1
                continue
        off = float(np.abs(found - want).max() / max(1.0, np.abs(want).max()))
        right, wrong = right + (off <= _CLOSE), wrong + (off > _CLOSE)
    words = (
        f"{right} of {right + wrong + refused} within {_CLOSE}, {refused} refused by name, {wrong} wrong; "
    )
    words += (
        f"{skipped} cannot be exported; compared with {'onnxruntime' if peer else 'the reference evaluator'}"
    )
    return [Row("M5", "exported nets within 1e-5", words, not wrong and right >= 12)]


def _exported(net: nn.Module, x: Tensor, path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(net, (x,), str(path), dynamo=False, opset_version=18)
        except RuntimeError:
            return False
    return True


def _wanted(path: Path, x: Tensor, peer: str) -> NDArray[np.float32]:
    if not peer:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
        (given,) = session.input_names
        made: Any = session.run(None, {given: x.numpy()})
        found: NDArray[np.float32] = made[0]
        return found
    here = path.parent
    np.save(here / "x.npy", x.numpy())
    command = [peer, "-c", _PEER, str(path), str(here / "x.npy"), str(here / "y.npy")]
    subprocess.run(command, check=True, capture_output=True)
    result: NDArray[np.float32] = np.load(here / "y.npy")
    return result
