"""Batch norm in traces has the layouts of its kernels, and shape functions are put back."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tightrope.capture._norms import norms_laid_out

SHAPES = ((3, 4), (3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (2, 4, 3, 5), (2, 3, 2, 2, 2))


def layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """A tensor with its dimensions in every order in memory, and one with gaps."""
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(k) for k in range(len(shape))]
        yield torch.ones([shape[k] for k in order]).permute(back)
    yield torch.ones([2 * size for size in shape])[tuple(slice(None, None, 2) for _ in shape)]


def strides(given: Tensor, gradient: Tensor) -> list[tuple[int, ...]]:
    """Of what batch norm gives in training, in evaluation, and for its input in the backward."""
    aten, each = torch.ops.aten, given.new_ones(given.shape[1])
    state = (torch.zeros_like(each), each)
    out, mean, spread = aten._native_batch_norm_legit_functional(given, each, each, *state, True, 0.1, 1e-5)[
        :3
    ]
    evaluated = aten.native_batch_norm(given, each, each, *state, False, 0.1, 1e-5)[0]
    wanted = [True] * 3
    back = aten.native_batch_norm_backward(gradient, given, each, *state, mean, spread, True, 1e-5, wanted)[0]
    return [out.stride(), evaluated.stride(), back.stride()]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_have_the_strides_of_the_kernels(shape: tuple[int, ...]) -> None:
    pairs = [(one, other) for one in layouts(shape) for other in itertools.islice(layouts(shape), 4)]
    real = [strides(one, other) for one, other in pairs]
    with norms_laid_out(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert [strides(mode.from_tensor(one), mode.from_tensor(other)) for one, other in pairs] == real


def test_shape_functions_are_put_back() -> None:
    def traced() -> list[tuple[int, ...]]:
        with FakeTensorMode():
            given = torch.ones(3, 5, 4).transpose(1, 2)
            return strides(given, given)

    before = traced()
    with norms_laid_out():
        with norms_laid_out():
            assert traced() != before
        assert traced() != before
    assert traced() == before
