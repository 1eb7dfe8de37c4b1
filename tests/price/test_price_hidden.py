"""Hidden bytes of kernels are measured with the prices and count during the whole step."""

import itertools
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tightrope.capture import capture_program, measured
from tightrope.core import Graph, Op, Storage
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.plan import solve
from tightrope.price import PriceStore
from tightrope.price.measure import UNSEEN, measure

counted = pytest.mark.skipif(
    compiler() is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux"
)
NUM = 50_000


class Largest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).topk(5).values.sum()


def priced(tmp_path: Path, num: int = NUM) -> Graph:
    program, real = capture_program(Largest(), (torch.ones(num),), {})
    store = PriceStore(program.graph.environment, tmp_path)
    return measured(program, real, allocator(), store=store).graph


@counted
def test_an_op_is_priced_with_what_its_kernel_takes(tmp_path: Path) -> None:
    for graph in (priced(tmp_path), priced(tmp_path)):  # measured, then looked up
        hidden = {op.target: op.hidden for op in graph.all_ops() if op.hidden}
        assert hidden == {"aten.topk.default": 16 * NUM}
        assert graph.hidden == 16 * NUM


@counted
def test_a_little_lies_in_what_is_held_back_anyway(tmp_path: Path) -> None:
    assert priced(tmp_path, UNSEEN // 16).hidden == 0
    assert priced(tmp_path, UNSEEN // 16 + 64).hidden == UNSEEN + 1024


@counted
@pytest.mark.parametrize(("disturbed", "expected"), [({2}, 0), ({2, 3}, 0), ({1, 2, 3, 4}, 16 * NUM)])
def test_what_is_taken_in_one_run_alone_is_not_the_op_s(disturbed: set[int], expected: int) -> None:
    runs, other = itertools.count(1), torch.ones(NUM)
    hook = allocator()
    assert hook is not None
    hook.attach_hidden()

    def run() -> Tensor:
        if next(runs) in disturbed:
            thread = threading.Thread(target=lambda: other.topk(5))
            thread.start()
            thread.join()
        return other + 1

    assert measure(run, hook).hidden == expected


@counted
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has another matrix library")
def test_what_the_matrix_library_keeps_is_counted_however_often() -> None:
    matrix = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    hook = allocator()
    assert hook is not None
    hook.attach_hidden()
    torch.linalg.svdvals(matrix)
    hook.tidy()
    hook.begin_hidden()
    torch.linalg.svdvals(matrix)
    once = hook.end_hidden().peak
    assert measure(lambda: torch.linalg.svdvals(matrix), hook).hidden == once > UNSEEN


@counted
def test_a_plan_leaves_room_for_it(tmp_path: Path) -> None:
    graph = priced(tmp_path)
    external = sum(storage.size for storage in graph.storages if storage.external)
    plan = solve(graph, budget=10_000_000)
    assert graph.persistent == plan.forecast.persistent == external + 16 * NUM
    assert plan.certificate.lower_bound >= external + 16 * NUM


def test_it_is_the_largest_of_all_ops_and_no_part_of_the_fingerprint() -> None:
    storages = (Storage(0, 100, external=True), Storage(1, 100), Storage(2, 100))
    plain = (Op(0, "a", "a", (0,), (1,)), Op(1, "b", "b", (1,), (2,)))
    taking = (Op(0, "a", "a", (0,), (1,), hidden=1000), Op(1, "b", "b", (1,), (2,), hidden=500))
    assert Graph(taking, storages).hidden == 1024
    assert Graph(taking, storages).persistent == 1024 + 128
    assert Graph(taking, storages).fingerprint == Graph(plain, storages).fingerprint
