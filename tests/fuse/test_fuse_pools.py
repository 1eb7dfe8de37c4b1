"""Max pooling inside of a stretch picks the element that the kernel picks, where several are largest too."""

import pytest
import torch

from tightrope.core import Alloc, Fused, Items, Run, View
from tightrope.core.values import Result
from tightrope.fuse.build import compiled
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.fuse.traced import function_of

SHAPE = (2, 3, 11, 13)


def _dense(base: int, dtype: str, shape: tuple[int, ...]) -> View:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return View(base, dtype, shape, tuple(strides))


def _pooled(kernel: int, stride: int, padding: int) -> FusedProgram:
    """ReLU, then pooling with indices; the least a stretch has."""
    given, kept = _dense(0, "float32", SHAPE), _dense(-2, "float32", SHAPE)
    sizes = [(size + 2 * padding - kernel) // stride + 1 for size in SHAPE[2:]]
    values, indices = (
        _dense(base, kind, (*SHAPE[:2], *sizes)) for base, kind in ((7, "float32"), (8, "int64"))
    )
    pool = "aten.max_pool2d_with_indices.default"
    arguments = (kept, *(Items((number, number)) for number in (kernel, stride, padding)))
    runs = (
        Run(0, "aten.relu.default", (given,), results=(Result(-1, kept),)),
        Run(1, pool, arguments, results=(Result(0, values), Result(1, indices))),
    )
    inside = (Alloc(7, 1, values.end, storage=0), Alloc(8, 1, indices.end, storage=1))
    return program_of(Fused(runs, inside), threads=1)[0]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_ties_and_nan_go_where_the_kernel_puts_them(kernel: int, stride: int, padding: int) -> None:
    program = _pooled(kernel, stride, padding)
    torch.manual_seed(0)
    x = torch.randn(SHAPE).round()  # after the ReLU most windows have several largest elements
    x[0, 1, 4, 5] = x[1, 2, 0, 0] = float("nan")
    with torch.no_grad():
        found = compiled(program)([x.clone()])
        wanted = function_of(program)([x.clone()])
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(-7.0), two.nan_to_num(-7.0))
