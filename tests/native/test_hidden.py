"""What kernels take behind torch's allocator is counted to the byte, and nothing else is."""

import os
import sys

import pytest
import torch

from tightrope.native.build import compiler
from tightrope.native.hook.allocator import KEPT, Allocator

pytestmark = pytest.mark.skipif(
    compiler() is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux"
)


@pytest.fixture
def counting(native: Allocator) -> Allocator:
    assert native.attach_hidden()
    native.tidy()
    return native


@pytest.mark.parametrize("length", [1_000, 100_000, 1_000_000])
def test_topk_takes_a_value_and_an_index_for_every_element(counting: Allocator, length: int) -> None:
    x = torch.zeros(length)
    counting.begin_hidden()
    x.topk(3)
    assert counting.end_hidden() == (16 * length, 0)


def test_tensors_are_not_counted_twice(counting: Allocator) -> None:
    x = torch.zeros(100_000)
    counting.begin_hidden()
    y = x + x
    z = torch.ones(200_000)
    assert counting.end_hidden() == (0, 0)
    assert y.numel() + z.numel() == 300_000


def test_the_peak_is_of_what_lives_at_once(counting: Allocator) -> None:
    x, y = torch.zeros(50_000), torch.zeros(70_000)
    counting.begin_hidden()
    x.topk(3)
    y.topk(3)
    assert counting.end_hidden().peak == 16 * 70_000


def test_measurements_nest(counting: Allocator) -> None:
    x, y, z = torch.zeros(50_000), torch.zeros(70_000), torch.zeros(60_000)
    counting.begin_hidden()
    z.topk(3)
    counting.begin_hidden()
    x.topk(3)
    assert counting.end_hidden() == (16 * 50_000, 0)
    y.topk(3)
    assert counting.end_hidden() == (16 * 70_000, 0)


def test_a_forked_child_begins_without_a_measurement(counting: Allocator) -> None:
    x = torch.zeros(50_000)
    counting.begin_hidden()
    child = os.fork()
    if child == 0:
        x.topk(3)
        inside = counting.end_hidden()
        counting.begin_hidden()
        x.topk(3)
        os._exit(0 if (inside, counting.end_hidden().peak) == ((0, 0), 16 * 50_000) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert counting.end_hidden() == (0, 0)


def test_nothing_is_counted_outside_of_a_measurement(counting: Allocator) -> None:
    x = torch.zeros(50_000)
    counting.begin_hidden()
    counting.end_hidden()
    x.topk(3)
    counting.begin_hidden()
    assert counting.end_hidden() == (0, 0)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has another matrix library")
def test_products_fit_in_what_the_matrix_library_may_keep(counting: Allocator) -> None:
    x, y = torch.ones(16, 400), torch.ones(400, 8_192)
    counting.begin_hidden()
    found = x @ y
    assert counting.end_hidden() == (0, 0)
    assert KEPT < 8 * 2**20
    assert found[0, 0] == 400


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has another matrix library")
def test_what_a_transform_keeps_is_given_back_and_counted_again(counting: Allocator) -> None:
    x = torch.ones(1, 1_000_003)
    torch.fft.fft(x)
    peaks = []
    for _ in range(2):
        counting.tidy()
        counting.begin_hidden()
        torch.fft.fft(x)
        peaks.append(counting.end_hidden().peak)
    assert peaks[0] == peaks[1] > 16 * 1_000_003
