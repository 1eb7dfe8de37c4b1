"""The private names of torch: tensors without numbers, captures, lines of ops, what is inside of values."""

from torch._guards import tracing as tracing
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx.traceback import preserve_node_meta as preserve_node_meta
from torch.utils._pytree import tree_leaves as tree_leaves
