"""Ways to run a net: our levels, ONNX Runtime, Inductor, fewer bits, and those that plug-ins add.

A lowering is a function of a module and one batch that returns a call. A distribution adds one with an entry
point of the group ``tightrope.lowerings``; its value names the function, its name is what users type.
"""

import copy
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import CaptureError, TightropeError
from tightrope.core.plugins import installed, loaded
from tightrope_differ.lines import quiet
from tightrope_differ.nets.graphs import Call

Lowering: TypeAlias = Callable[[nn.Module, Tensor], Call]
"""Module in evaluation mode, and a batch -> what runs batches of that shape."""
GROUP: Final = "tightrope.lowerings"
PRECISIONS: Final = ("bf16", "fp16", "int8")


def run(call: Call, batch: Tensor) -> tuple[Tensor, ...]:
    """Run a batch, and return the tensors that came as float32 or whole numbers, without gradients.

    Raises:
        CaptureError: it returned something else.
    """
    with torch.no_grad():
        made = call(batch)
    parts = [made] if isinstance(made, Tensor) else made.values() if isinstance(made, Mapping) else made
    if not isinstance(made, Tensor | Mapping | list | tuple) or not all(isinstance(p, Tensor) for p in parts):
        raise CaptureError(
            f"the net returned a {type(made).__name__}: return a tensor or a tuple of tensors."
        )
    return tuple(one.detach().float() if one.is_floating_point() else one.detach() for one in parts)


def filled(batch: Tensor, size: int) -> Tensor:
    """Repeat the last image until a batch divides by a size: lowerings are compiled for one size."""
    return torch.cat([batch, batch[-1:].expand(-len(batch) % size, *batch.shape[1:])])


class BudgetedCall:
    """A net that tightrope compiled, with a budget that leaves room for everything.

    Args:
        net: copied.
        example: a batch, with which it is planned now.
        fuse: run stretches as compiled loops, where that is faster.
    """

    def __init__(self, net: nn.Module, example: Tensor, *, fuse: bool) -> None:
        import tightrope
        from tightrope.run.compile import compiled_of

        self.model = tightrope.compile(copy.deepcopy(net), budget="1TiB", fuse=fuse, progress=False)
        self(example)
        self.note = f"level {compiled_of(self.model).level}"

    @torch.enable_grad()
    def __call__(self, batch: Tensor) -> Any:
        """Run a batch as a training step would."""
        return self.model(batch)


def _inductor(net: nn.Module, example: Tensor) -> Call:
    torch.compiler.reset()
    made: Call = torch.compile(copy.deepcopy(net), dynamic=False, fullgraph=True)
    return made


def _cast(net: nn.Module, example: Tensor, *, dtype: torch.dtype) -> Call:
    small = copy.deepcopy(net).to(dtype)
    return lambda batch: small(batch.to(dtype) if batch.is_floating_point() else batch)


class OnnxCall:
    """A net in ONNX that ONNX Runtime runs.

    Args:
        source: path of the file, or its bytes.
        names: of the results; default: those of the file.
        plain: leave out the rewrites of ONNX Runtime.

    Raises:
        TightropeError: it does not load, or has other than one input.
    """

    def __init__(self, source: str | bytes, names: list[str] | None = None, *, plain: bool = False) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        if plain:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.file = source if isinstance(source, str) else "the net"
        try:
            self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # it has no common class
            raise TightropeError(f"ONNX Runtime does not load {self.file!r}: {str(error)[:200]}") from error
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            raise TightropeError(f"{self.file!r} has {len(inputs)} inputs: one batch of images is given.")
        self.names, self.name, size = names, inputs[0].name, inputs[0].shape[0]
        self.size = size if isinstance(size, int) else 0

    def __call__(self, batch: Tensor) -> tuple[Tensor, ...]:
        """Run a batch, in parts where the file has a size of batches."""
        size = self.size or len(batch)
        parts = [
            self.session.run(self.names, {self.name: part.contiguous().numpy()})
            for part in torch.split(filled(batch, size), size)
        ]
        whole = [
            np.concatenate(one) if len(parts) > 1 else np.asarray(one[0]) for one in zip(*parts, strict=True)
        ]
        return tuple(torch.from_numpy(one[: len(batch)] if len(batch) % size else one) for one in whole)


def onnx_file(net: nn.Module, example: Tensor, path: Path) -> None:
    """Export a net at one batch."""
    with quiet(), torch.no_grad():
        program = torch.onnx.export(net, (example,), dynamo=True, verbose=False)
        assert program is not None
        program.save(str(path))


def _onnx(net: nn.Module, example: Tensor) -> Call:
    if missing := [one for one in ("onnx", "onnxscript", "onnxruntime") if not find_spec(one)]:
        raise TightropeError(f"onnx needs {missing[0]}: pip install 'tightrope-differ[onnx]'.")
    with tempfile.TemporaryDirectory(prefix="tightrope-parity-") as folder:
        onnx_file(net, example, Path(folder) / "net.onnx")
        return OnnxCall(f"{folder}/net.onnx")


def _of_plugin(name: str, net: nn.Module, example: Tensor) -> Call:
    made: Lowering = loaded(f"the lowering {name}", installed(GROUP)[name])
    return made(net, example)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    **{name: partial(_of_plugin, name) for name in installed(GROUP)},
    "eager": lambda net, example: net,
    "compiled": partial(BudgetedCall, fuse=False),
    "fused": partial(BudgetedCall, fuse=True),
    "onnx": _onnx,
    "inductor": _inductor,
    "bf16": partial(_cast, dtype=torch.bfloat16),
    "fp16": partial(_cast, dtype=torch.float16),
}
"""By name; a plug-in is imported when it is called."""
