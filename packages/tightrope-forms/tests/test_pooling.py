"""Maximum pools that keep a byte: torch's bits, and no byte more."""

import random

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope_forms.pooling import ops
from tightrope_forms.pooling.ops import POOL, POOL_BACK
from tightrope_forms.rewrite.egraph import ClassId, Spec, facts_of, frozen


def drawn(seed: int) -> tuple[Tensor, list[list[int]]]:
    """Draw an input with ties, and every so often NaN or infinities, and a window."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kernel = [draw.randint(1, 4) for _ in range(2)]
    window = [kernel, [draw.randint(1, 3) for _ in range(2)], [draw.randint(0, one // 2) for one in kernel]]
    shape = (*draw.choice(((2, 3), (1,))), draw.randint(4, 9), draw.choice((4, 9, 70)))
    x = torch.randn(shape, generator=generator, dtype=draw.choice((torch.float32, torch.float64))).round()
    for value, share in ((torch.nan, (0, 0.1)[seed % 3 == 0]), (-torch.inf, (0, 0.5)[seed % 5 == 0])):
        x[torch.rand(shape, generator=generator) < share] = value
    return x, window


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_and_gradients_have_the_bits_of_torch(
    native: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and ops._calls() is None:
        pytest.skip("no compiler")
    if not native:
        monkeypatch.setattr(ops, "_calls", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for seed in range(100):
        x, window = drawn(seed)
        mine, right = (x.clone().requires_grad_() for _ in range(2))
        found, _ = POOL(mine, *window)
        expected = torch.nn.functional.max_pool2d(right, *window)
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7)), seed
        grad = torch.randn(found.shape, dtype=found.dtype)
        found.backward(grad)
        expected.backward(grad)
        assert mine.grad is not None
        assert right.grad is not None
        assert torch.equal(mine.grad, right.grad), seed


def test_threads_share_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, window = torch.randn(3, 5, 64, 64), [[9, 9], [1, 1], [4, 4]]  # above a million comparisons
    alone = POOL(x, *window)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    shared = POOL(x, *window)
    assert all(map(torch.equal, alone, shared))
    grad = torch.randn_like(alone[0])
    back = POOL_BACK(grad, alone[1], list(x.shape), *window)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert torch.equal(back, POOL_BACK(grad, alone[1], list(x.shape), *window))


def test_bytes_that_are_no_places_write_nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, window = [1, 1, 6, 6], [[2, 2], [2, 2], [0, 0]]
    grad, who = torch.ones(1, 1, 3, 3), torch.full((1, 1, 3, 3), 255, dtype=torch.uint8)
    if ops._calls() is not None:
        around = torch.full((20, 1, 6, 6), 5.0)
        ops._call(True, around[:1], grad, who, *window)
        assert (around[1:] == 5).all()
    monkeypatch.setattr(ops, "_calls", lambda: None)
    assert POOL_BACK(grad, who, shape, *window).sum() == 9


def test_a_byte_per_result_is_kept() -> None:
    given = (Spec((2, 8, 8), (64, 8, 1), torch.float32, True),)
    facts = facts_of(POOL, frozen([[ClassId(0), [2, 2], [2, 2], [0, 0]], {}], []), given)
    assert (facts.keeps, facts.keeps_result, facts.own) == ((), True, 0)
    assert facts.value[1].bytes == 2 * 4 * 4


class Pooled(nn.Module):
    """Maxima over windows that overlap, of which torch keeps 8 bytes each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Conv2d(1, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = nn.functional.max_pool2d(torch.tanh(self.weight(x[:, :1])), 3, 1, 1)
        return x.square().sum()


def test_a_compiled_step_keeps_a_byte_where_torch_keeps_eight() -> None:
    torch.manual_seed(0)
    model, x = Pooled(), torch.randn(2, 1, 32, 32)
    right = Pooled()
    right.load_state_dict(model.state_dict())
    right(x).backward()
    tightrope.compile(model, budget="100%", rewrite=True, progress=False)
    loss = model(x)
    loss.backward()
    assert "that keeps a byte (3x)" in tightrope.report(model).form
    for mine, other in zip(model.parameters(), right.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad)
