"""The private names of torch: tensors without numbers, captures, lines of ops, leaves, constants."""

from torch._guards import tracing as tracing
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx import GraphModule as GraphModule
from torch.fx.traceback import preserve_node_meta as preserve_node_meta
from torch.utils._pytree import tree_leaves as tree_leaves


def constant_fold(module: GraphModule) -> None:
    """Compute what weights alone make, once; importing Inductor takes seconds."""
    from torch._inductor.constant_folding import constant_fold as fold

    fold(module)
