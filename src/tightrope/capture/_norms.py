"""Let traces lay results of batch norm out as its CPU kernels do; private names of torch for that.

Idea        Torch's shape functions keep the strides of the input. The kernels write a dense result:
            contiguous, or with the channels last where the input is so. What reads it decides by strides
            whether it copies or views, and which product it calls, so a trace that believes the shape
            functions goes another way.
Source      ``batch_norm_cpu`` and its backward in torch's sources
Guarantee   For two and three dimensions, and for more where none is 1, results have the kernels' strides.
Complexity  Linear in what torch remembers of shapes, twice for each trace.
Gaps        A dimension of 1, or a symbolic one, among four or five: these results stay as they were. Where
            the kernels then do otherwise, measuring finds it (`tightrope.capture.api.measured`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from operator import attrgetter
from typing import Any, Final

import torch

from tightrope.capture.for_all import ForAll

_INPUTS: Final = {
    "native_batch_norm.default": 0,
    "_native_batch_norm_legit.default": 0,
    "_native_batch_norm_legit.no_stats": 0,
    "_native_batch_norm_legit_functional.default": 0,
    "_native_batch_norm_legit_no_training.default": 0,
    "native_batch_norm_backward.default": 1,
}
"""Op -> position of the input whose layout decides on that of the first result."""


@contextmanager
def _laying_out() -> Iterator[None]:
    from torch._decomp import decomposition_table

    ops = {attrgetter(name)(torch.ops.aten): position for name, position in _INPUTS.items()}
    before = {op: decomposition_table[op] for op in ops if op in decomposition_table}
    try:
        decomposition_table.update({op: _laid_out(before[op], ops[op]) for op in before})
        _forget(ops)
        yield
    finally:
        decomposition_table.update(before)
        _forget(ops)


norms_laid_out: Final = ForAll(_laying_out)
"""Give results of batch norm the layouts of its kernels while this is open; may be nested."""


def _forget(ops: Collection[Any]) -> None:
    """Forget what shape functions of ops said."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    known = FakeTensorMode.cache
    for key in [key for key in known if key.key[0] in ops]:
        del known[key]


def _laid_out(decomposed: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Lay the first result of a decomposition of a batch norm out as the CPU kernel does."""

    @wraps(decomposed)
    def run(*args: Any, **kwargs: Any) -> Any:
        results, given = decomposed(*args, **kwargs), args[position]
        if not isinstance(results[0], torch.Tensor) or given.device.type != "cpu":
            return results
        layout = torch.contiguous_format
        if given.ndim > 3:
            if any(not isinstance(size, int) or size == 1 for size in given.shape):
                return results
            wanted = torch.channels_last if given.ndim == 4 else torch.channels_last_3d
            layout = wanted if given.is_contiguous(memory_format=wanted) else layout
        return (results[0].clone(memory_format=layout), *results[1:])

    return run


def order_of_norms(parameters: Sequence[torch.Tensor]) -> list[int]:
    """List positions in the order in which ``clip_grad_norm_`` stacks norms: grouped by device and dtype.

    >>> order_of_norms([torch.zeros(2), torch.zeros(3)])
    [0, 1]
    """
    from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

    groups = _group_tensors_by_device_and_dtype([list(parameters)], with_indices=True)
    return [position for _, positions in groups.values() for position in positions]
