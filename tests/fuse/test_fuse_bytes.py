"""Comparing a stretch with its ops needs few bytes beside the values themselves."""

from collections.abc import Callable

import pytest
import torch

from tightrope.core import Result, View
from tightrope.fuse.program import FusedCall, FusedProgram
from tightrope.fuse.tolerance import BLOCK, difference, tolerance
from tightrope.fuse.traced import function_of
from tightrope.native.hook.allocator import allocator


def peak_of(run: Callable[[], object]) -> int:
    """Bytes that a call needs beyond what is live before it."""
    run()
    before = allocator().stats().live
    allocator().reset_peaks()
    run()
    return allocator().stats().live_peak - before


def test_a_comparison_takes_blocks() -> None:
    wanted = torch.rand(64, BLOCK)
    found = wanted.clone()
    found[50, 7] += 1
    assert peak_of(lambda: difference(found, wanted)) <= 64 * BLOCK < wanted.nbytes


@pytest.mark.parametrize("shape", [(3 * BLOCK,), (1, 5, BLOCK), (BLOCK + 1, 3), ()])
def test_blocks_give_the_difference_of_the_whole(shape: tuple[int, ...]) -> None:
    wanted = torch.rand(shape) + 1
    found = wanted.clone()
    found.view(-1)[-1] += 0.5
    apart = float((found.double() - wanted.double()).abs().max() / wanted.max())
    assert difference(found, wanted) == pytest.approx(apart / tolerance(torch.float32))
    assert difference(found.mT if found.dim() > 1 else found, wanted.mT if wanted.dim() > 1 else wanted) > 1
    found.view(-1)[-1] = float("nan")
    assert difference(found, wanted) == float("inf")
    wanted.view(-1)[-1] = float("nan")
    assert difference(found, wanted) == 0


def test_ops_one_by_one_drop_what_nothing_reads() -> None:
    """Eight ops in a row hold two values at a time."""
    shape, strides = (1024, 256), (256, 1)
    views = [View(number, "float32", shape, strides) for number in range(9)]
    calls = [FusedCall("aten.neg.default", (views[k],), (), (Result(-1, views[k + 1]),)) for k in range(8)]
    run = function_of(FusedProgram((views[0],), tuple(calls), (8,)))
    given = [torch.rand(shape)]
    assert peak_of(lambda: run(given)) < 2.5 * given[0].nbytes
