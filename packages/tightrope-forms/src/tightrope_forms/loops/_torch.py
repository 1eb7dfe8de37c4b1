"""The private names of torch: structures of values, and traces of functions into ops."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_unflatten as tree_unflatten


def traced(function: Callable[..., Any], shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Any:
    """Trace a function of tensors into ops of ATen that write nothing in place, on shapes alone."""
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
    made = make_fx(torch.func.functionalize(function, remove="mutations"), tracing_mode="fake")(*given)
    made.graph.eliminate_dead_code()
    return made.graph
