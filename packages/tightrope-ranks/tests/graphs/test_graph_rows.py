"""Rows in few bits: right on average, of the variance that is said, packed without loss, repeatable."""

import numpy as np
import pytest
import torch

from tightrope_ranks.compress.rows import WIDTHS, decode_rows, encode_rows, row_bytes


def there_and_back(x: torch.Tensor, bits: np.ndarray, seed: int = 0) -> torch.Tensor:
    which, out = torch.arange(len(x)), torch.zeros_like(x)
    wire = torch.empty(int(row_bytes(x.shape[1], bits).sum()), dtype=torch.uint8)
    encode_rows(x, which, bits, seed, wire)
    decode_rows(wire, which, bits, out)
    return out


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 7, 8, 31, 33, 127, 128])
def test_levels_come_back_exactly(bits: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    top = min(2**bits, 256) - 1
    levels = rng.integers(0, top + 1, (9, columns))
    levels[:, 0], levels[:, -1] = 0, top if columns > 1 else 0
    x = torch.from_numpy((levels * 0.25 - 3).astype(np.float32))
    assert torch.equal(there_and_back(x, np.full(9, bits, np.uint8)), x)


@pytest.mark.few(2)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("negative", [False, True])
def test_the_mean_is_the_value_and_the_variance_is_a_sixth_of_the_squared_step(
    bits: int, negative: bool
) -> None:
    x = torch.rand(40, 257, generator=torch.Generator().manual_seed(1)) - 0.5 * negative
    x[:, 0], x[:, -1] = x[:, 1:-1].amin(1), x[:, 1:-1].amax(1)
    times, widths = 2000, np.full(40, bits, np.uint8)
    errors = torch.zeros(40, 257, dtype=torch.float64)
    squares = torch.zeros(40, 257, dtype=torch.float64)
    for seed in range(times):
        wrong = (there_and_back(x, widths, seed) - x).double()
        errors += wrong
        squares += wrong**2
    step = ((x.amax(1) - x.amin(1)) / (2**bits - 1)).double()[:, None]
    sigma = (squares / times).sqrt().clamp(min=1e-4 * float(step.max()))
    inner = slice(1, -1)  # the ends are levels themselves
    assert float((errors / times / sigma).abs()[:, inner].mean()) < 1 / times**0.5
    assert abs(float((errors[:, inner] / times / step).mean())) < 4 * 0.41 / (times * 40 * 255) ** 0.5
    ratio = float((squares[:, inner] / times / (step**2 / 6)).mean())
    assert 0.97 < ratio < 1.03


def test_mixed_widths_lists_and_sums_are_right() -> None:
    x = torch.randn(50, 19, generator=torch.Generator().manual_seed(2))
    which = torch.tensor([3, 41, 7, 7, 0])
    bits = np.array([32, 2, 8, 32, 4], np.uint8)
    wire = torch.empty(int(row_bytes(19, bits).sum()), dtype=torch.uint8)
    traced = torch.zeros(5)
    encode_rows(x, which, bits, 1, wire, traced)
    assert torch.allclose(traced, (x[which].amax(1) - x[which].amin(1)) ** 2)
    out, to = torch.ones(60, 19), torch.tensor([9, 8, 59, 9, 0])
    decode_rows(wire, to, bits, out, add=True)
    assert torch.allclose(out[9], 1 + x[3] + x[7])  # two rows at one place
    spread = (x.amax(1) - x.amin(1))[which]
    for place, row, width in ((8, 1, 2), (59, 2, 8), (0, 4, 4)):
        step = float(spread[row]) / (2**width - 1) * 1.01
        assert float((out[place] - 1 - x[which[row]]).abs().max()) <= step
    assert bool((out[1:8] == 1).all())


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(3))
    bits = np.full(20, 2, np.uint8)
    assert torch.equal(there_and_back(x, bits, 5), there_and_back(x, bits, 5))
    assert not torch.equal(there_and_back(x, bits, 5), there_and_back(x, bits, 6))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_odd_values_are_told_apart(bits: int) -> None:
    x = torch.zeros(8, 9)
    x[0], x[1] = 7.3, -0.0
    x[2, 4], x[3, 8], x[4, 0] = torch.nan, torch.inf, -torch.inf
    x[5] = torch.linspace(0, 1e-44, 9)
    x[6] = torch.linspace(-1e38, 1e38, 9)
    x[7] = 1e30 + torch.linspace(0, 1e25, 9)
    out = there_and_back(x, np.full(8, bits, np.uint8))
    assert torch.equal(out[:2], x[:2])
    assert bool(out[2:5].isnan().all())
    assert bool(((out[5] == 0) | (out[5] == 2.0**-126)).all())
    for row in (6, 7):
        step = float(x[row].max().double() - x[row].min().double()) / (2**bits - 1)
        assert float((out[row] - x[row]).abs().max()) <= step * 1.01 + 1e23
