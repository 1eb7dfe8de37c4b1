"""Ways to run a net: our levels, ONNX Runtime, Inductor, fewer bits, and those that plug-ins add.

A lowering is a function of a module and one batch that returns a call. A distribution adds one with an entry
point of the group ``tightrope.lowerings``; its value names the function, its name is what users type.
"""

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope.core.plugins import installed, loaded
from tightrope_differ.parity.graphs import Call, tensors_of

Lowering: TypeAlias = Callable[[nn.Module, Tensor], Call]
"""Module in evaluation mode, and a batch -> what runs batches of that shape."""
GROUP: Final = "tightrope.lowerings"
_NEEDS: Final = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
_BUDGET: Final = "1TiB"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what exporters and compilers say about themselves to themselves."""
    noisy = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [one.level for one in noisy]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in noisy:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(noisy, levels, strict=True):
                one.setLevel(level)


def run(call: Call, batch: Tensor) -> tuple[Tensor, ...]:
    """Run a batch, and return what came as float32 or whole numbers, without gradients."""
    with torch.no_grad():
        found = tensors_of(call(batch))
    return tuple(one.detach().float() if one.is_floating_point() else one.detach() for one in found)


def eager(net: nn.Module, example: Tensor) -> Call:
    """Run a net as it is."""
    return net


class BudgetedCall:
    """A net that tightrope compiled; the budget holds the whole process, so it leaves room for everything.

    Args:
        net: copied.
        example: a batch, with which it is planned now.
        fuse: run stretches as compiled loops, where that is faster.
    """

    def __init__(self, net: nn.Module, example: Tensor, *, fuse: bool) -> None:
        import tightrope
        from tightrope.run.compile import compiled_of

        self.model = tightrope.compile(copy.deepcopy(net), budget=_BUDGET, fuse=fuse, progress=False)
        self(example)
        self.note = f"level {compiled_of(self.model).level}"

    def __call__(self, batch: Tensor) -> Any:
        """Run a batch as a training step would."""
        with torch.enable_grad():
            return self.model(batch)


def inductor(net: nn.Module, example: Tensor) -> Call:
    """Compile by TorchInductor."""
    torch.compiler.reset()
    made: Call = torch.compile(copy.deepcopy(net), dynamic=False, fullgraph=True)
    return made


def _cast(net: nn.Module, example: Tensor, *, dtype: torch.dtype) -> Call:
    """Keep parameters and values in fewer bits, by the kernels that torch has for them."""
    small = copy.deepcopy(net).to(dtype)
    return lambda batch: small(batch.to(dtype) if batch.is_floating_point() else batch)


class OnnxCall:
    """A net in ONNX that ONNX Runtime runs.

    Args:
        path: of the file.
        names: of the results; default: those of the file.
        plain: leave out the rewrites of ONNX Runtime.

    Raises:
        TightropeError: it does not load, or has other than one input.
    """

    def __init__(
        self, path: str | Path | bytes, names: list[str] | None = None, *, plain: bool = False
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        if plain:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        source = path if isinstance(path, bytes) else str(path)
        try:
            self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # it has no common class
            named = "the net" if isinstance(path, bytes) else repr(str(path))
            raise TightropeError(f"ONNX Runtime does not load {named}: {str(error)[:200]}") from error
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            raise TightropeError(f"{str(path)!r:.99} has {len(inputs)} inputs: one batch of images is given.")
        self.name, size = inputs[0].name, inputs[0].shape[0]
        self.names, self.size = names, size if isinstance(size, int) and size > 0 else 0

    def __call__(self, batch: Tensor) -> tuple[Tensor, ...]:
        """Run a batch, in parts where the file has a size of batches."""
        size = self.size or len(batch)
        whole = torch.cat([batch, batch[-1:].expand(-len(batch) % size, *batch.shape[1:])])
        parts = [
            self.session.run(self.names, {self.name: part.contiguous().numpy()})
            for part in torch.split(whole, size)
        ]
        values = (
            np.concatenate(found)
            if len(parts) > 1 and found[0].shape[:1] == (size,)
            else np.asarray(found[0])
            for found in zip(*parts, strict=True)
        )
        return tuple(
            torch.from_numpy(v[: len(batch)] if v.shape[:1] == whole.shape[:1] else v) for v in values
        )


def onnx_file(net: nn.Module, example: Tensor, path: Path) -> None:
    """Export a net at one batch."""
    with quiet(), torch.no_grad():
        program = torch.onnx.export(net, (example,), dynamo=True, verbose=False)
        assert program is not None
        program.save(str(path))


def onnx(net: nn.Module, example: Tensor) -> Call:
    """Export to ONNX, and run by ONNX Runtime."""
    with tempfile.TemporaryDirectory(prefix="tightrope-parity-") as folder:
        onnx_file(net, example, Path(folder) / "net.onnx")
        return OnnxCall(Path(folder) / "net.onnx")


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "eager": eager,
    "compiled": partial(BudgetedCall, fuse=False),
    "fused": partial(BudgetedCall, fuse=True),
    "onnx": onnx,
    "inductor": inductor,
    "bf16": partial(_cast, dtype=torch.bfloat16),
    "fp16": partial(_cast, dtype=torch.float16),
}
"""By name; plug-ins add others."""
PRECISIONS: Final = ("bf16", "fp16", "int8")


def names() -> list[str]:
    """List the lowerings that can be asked for."""
    return [*LOWERINGS, *(name for name in installed(GROUP) if name not in LOWERINGS)]


def lowering(name: str) -> Lowering:
    """Find a lowering.

    Raises:
        TightropeError: a package is missing, or the plug-in does not load.
    """
    if missing := [one for one in _NEEDS.get(name, ()) if not find_spec(one)]:
        raise TightropeError(f"{name} needs {missing[0]}: pip install 'tightrope-differ[onnx]'.")
    if name in LOWERINGS:
        return LOWERINGS[name]
    found: Lowering = loaded(f"the lowering {name}", installed(GROUP)[name])
    return found
