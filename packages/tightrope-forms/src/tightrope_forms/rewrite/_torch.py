"""The private names of torch: tensors without numbers, captures, lines of ops, leaves, constants."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._guards import tracing as tracing
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx import GraphModule as GraphModule
from torch.fx.traceback import preserve_node_meta as preserve_node_meta
from torch.utils._pytree import tree_leaves as tree_leaves


@contextmanager
def kept_tensors() -> Iterator[list[Tensor]]:
    """Collect what autograd keeps of ops, also during a capture, in which torch ignores hooks for that."""
    kept: list[Tensor] = []

    def pack(one: Tensor) -> Tensor:
        kept.append(one)
        return one

    tracing = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            yield kept
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(tracing)


def constant_fold(module: GraphModule) -> None:
    """Compute what weights alone make, once; importing Inductor takes seconds."""
    from torch._inductor.constant_folding import constant_fold as fold

    fold(module)
