"""Let matrix products of a captured call be computed by oneDNN.

Idea        torch gives float32 products on a CPU to the library that it is built with, mostly MKL. oneDNN,
            which is in every build too, computes the same products; which of the two takes less time depends
            on the processor: on some of AMD's it is oneDNN.
Source      the fused layers that Inductor calls for inference
Guarantee   The same products of the same values; sums inside of one may be taken in another order, so results
            are equal within rounding. Shapes, strides and dtypes are those of torch's ops.
Complexity  One pass over the graph.
Gaps        Products of two matrices of float32, with a row as bias or without: no batches of matrices, and
            not those inside of attention. Whether it is faster is measured, not foreseen; see
            `tightrope.run.session.fused`.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.program import Program
from tightrope.capture.typed import tensor_of
from tightrope.capture.variants import KERNEL
from tightrope.price.kernels import Kernel, onednn_addmm, onednn_missing, onednn_mm

_KERNELS: Final[dict[object, Kernel]] = {
    torch.ops.aten.mm.default: onednn_mm,
    torch.ops.aten.addmm.default: onednn_addmm,
}


def with_onednn(program: Program, chosen: Collection[str] | None = None) -> Program | None:
    """Read a program again with products by oneDNN; None where there are none.

    Args:
        program: as captured; neither it nor its module is changed.
        chosen: names of the ops that oneDNN computes; None = all that it can.
    """
    with _torch.real_tensors():
        missing = onednn_missing()
    if program.rebuild is None or not torch.backends.mkldnn.enabled or missing:
        return None
    graph = torch.fx.Graph()
    output = graph.graph_copy(program.module.graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    graph.output(output[0])
    num = 0
    for node in graph.nodes:
        if _computes(node) and (chosen is None or node.name in chosen):
            node.meta[KERNEL] = _KERNELS[node.target]
            num += 1
    if not num:
        return None
    module = torch.fx.GraphModule(program.module, graph)
    module.meta.update(program.module.meta)
    again = program.rebuild(module)
    return replace(
        program, graph=again.graph, module=module, constants=again.constants, keys=again.keys,
        rebuild=again.rebuild,
    )  # fmt: skip


def _computes(node: torch.fx.Node) -> bool:
    """Tell whether oneDNN takes a product as it is: plain matrices of float32, and a row."""
    if node.target not in _KERNELS or node.kwargs or KERNEL in node.meta:
        return False
    values = [tensor_of(arg) for arg in node.args if isinstance(arg, torch.fx.Node)]
    if len(values) != len(node.args) or not all(map(_is_plain, values)):
        return False
    *bias, one, other = values
    shapes_fit = one.ndim == 2 and other.ndim == 2 and one.numel() and other.numel()
    return bool(shapes_fit) and all(row.shape == (other.shape[1],) and row.is_contiguous() for row in bias)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        return False
    if value.is_conj() or value.is_neg() or value.layout != torch.strided:
        return False
    return value.ndim == 1 or (value.ndim == 2 and (value.is_contiguous() or value.t().is_contiguous()))
