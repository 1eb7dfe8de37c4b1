"""Tensors that are not one strided place in a storage: sparse, nested, copied on write."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import linear

import tightrope

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype"),
    pytest.mark.filterwarnings("ignore:Sparse .* is in beta"),
]


def coordinates() -> list[torch.Tensor]:
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        a = torch.randn(300, 300).relu_()
        sparse = a.to_sparse()
        given = [torch.randn(300, 64) + k for k in range(6)]
        made = [torch.sparse.mm(sparse, one).sin() for one in given]
        diagonal = torch.sparse_coo_tensor(torch.arange(300).repeat(2, 1), given[0][:, 0] * 2, (300, 300))
        made.append(torch.sparse.mm(diagonal, given[1]))
        given[0].mul_(3)
        made.append(diagonal.to_dense() @ given[2])
        diagonal = diagonal.coalesce().mul_(2.0).coalesce()
        return [*made, diagonal.to_dense().sum(0), diagonal.values() * 2, given[0]]


def rows() -> list[torch.Tensor]:
    a = torch.randn(256, 256).relu_()
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        sparse = a.to_sparse_csr()
        made = [(sparse @ (torch.randn(256, 64) + k)).cos() for k in range(8)]
        return [*made, sparse.values().exp(), sparse.crow_indices() + 1]


def nested() -> list[torch.Tensor]:
    given = [torch.randn(k * 20, 64) for k in range(1, 9)]
    first = linear(torch.nested.nested_tensor([one.sin() for one in given]), torch.randn(64, 64))
    others = [(torch.randn(400, 64) * k).cos() for k in range(6)]
    padded = torch.nested.to_padded_tensor(first, 0.0).relu() * 2
    second = torch.nested.as_nested_tensor([one * 2 for one in given]) * 2
    second.mul_(2.0)
    return [padded, *second.unbind(), *others, first.unbind()[3].clone()]


def on_write() -> list[torch.Tensor]:
    first = torch.ones(1024, 128) * 2
    second: torch.Tensor = torch._lazy_clone(first)
    kept = [torch.sin(first + k) for k in range(12)]
    second.add_(1)
    sums = [one.sum() for one in kept]
    return [*sums, second, first]


@pytest.mark.parametrize(
    ("work", "budget"), [(coordinates, "4MiB"), (rows, "1500KiB"), (nested, "1700KiB"), (on_write, "4MiB")]
)
def test_they_are_read_and_made_in_a_block(work: Callable[[], list[torch.Tensor]], budget: str) -> None:
    torch.manual_seed(0)
    wanted = work()
    torch.manual_seed(0)
    with tightrope.evict(budget, poison=True) as block:
        found = work()
        same = [torch.equal(*pair) for pair in zip(wanted, found, strict=True)]
    assert all(same)
    assert block.statistics().high_water > 0


def test_what_a_nested_tensor_was_made_of_is_evicted() -> None:
    """Ops that read or make one do not run again; all others do."""
    torch.manual_seed(0)
    with tightrope.evict("1700KiB", poison=True) as block:
        for one in nested():  # each is read once more, whatever was evicted by the clock's prices
            one.sum()
    assert block.num_recomputed > 0
