"""Codecs against NumPy, their residuals, and what they make of numbers that are none."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tightrope_ranks.compress.codecs import CODECS, Encoded
from tightrope_ranks.compress.quantise import BLOCK, encoded_bytes

SIZES = (1, 7, BLOCK, BLOCK + 3, 10_001)
QUANTISED = {"sign": 1, "bits2": 2, "bits4": 4, "bits8": 8}


def tensors(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in SIZES]


def arrived(name: str, encoded: Encoded, like: list[torch.Tensor], ranks: int = 1) -> list[torch.Tensor]:
    """Decode what one rank sent, as if ``ranks`` had sent the same."""
    if encoded.gathered is not None:
        encoded.gathered[:] = encoded.wire
    elif ranks > 1:
        encoded.wire.mul_(ranks)
    out = [torch.empty_like(one) for one in like]
    CODECS[name].decode(encoded, out, ranks)
    return out


@pytest.mark.parametrize("name", CODECS)
def test_sizes_are_as_said_and_every_rank_counts_equally(name: str) -> None:
    codec, given = CODECS[name], tensors()
    encoded = codec.encode(given, None, range(len(given)), 3, 2)
    assert encoded.wire.nbytes == sum(codec.size(one.numel()) for one in given)
    once = arrived(name, codec.encode(given, None, range(len(given)), 3, 1), given)
    twice = arrived(name, encoded, given, ranks=2)
    for one, two in zip(once, twice, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", CODECS)
def test_what_arrives_does_not_depend_on_what_travels_together(name: str) -> None:
    codec, given = CODECS[name], tensors()
    rests = [torch.full_like(one, 0.1) for one in given]
    apart = [one.clone() for one in rests]
    together = arrived(name, codec.encode(given, rests, range(len(given)), 7, 1), given)
    for number, one in enumerate(given):
        alone = arrived(name, codec.encode([one], [apart[number]], [number], 7, 1), [one])
        assert torch.equal(alone[0], together[number])
        assert torch.equal(apart[number], rests[number])


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.feedback])
def test_what_arrives_and_what_is_left_make_up_what_was_given(name: str) -> None:
    given = tensors()
    rests = [torch.full_like(one, 0.25) for one in given]
    out = arrived(name, CODECS[name].encode(given, rests, range(len(given)), 1, 1), given)
    for one, got, rest in zip(given, out, rests, strict=True):
        torch.testing.assert_close(got + rest, one + 0.25, rtol=1e-5, atol=1e-5)


def read(wire: npt.NDArray[np.uint8], count: int, bits: int) -> npt.NDArray[np.float64]:
    """Decode one tensor in NumPy."""
    values: list[npt.NDArray[np.float64]] = []
    at = 0
    for begin in range(0, count, BLOCK):
        num = min(BLOCK, count - begin)
        scale = float(wire[at : at + 4].view(np.float32)[0])
        size = (num * bits + 7) // 8
        packed = wire[at + 4 : at + 4 + size]
        digits = np.unpackbits(packed, bitorder="little")[: num * bits].reshape(num, bits)
        levels = digits @ (1 << np.arange(bits))
        values.append(scale * (2.0 * levels - 1 if bits == 1 else levels - (2.0 ** (bits - 1) - 1)))
        at += 4 + size
    return np.concatenate(values)


@pytest.mark.parametrize(("name", "bits"), QUANTISED.items())
def test_the_quantiser_equals_numpy(name: str, bits: int) -> None:
    given = tensors(1)
    encoded = CODECS[name].encode(given, None, range(len(given)), 9, 1)
    at = 0
    for one, got in zip(given, arrived(name, encoded, given), strict=True):
        size = encoded_bytes(one.numel(), bits)
        expected = read(encoded.wire[at : at + size].numpy(), one.numel(), bits)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
        if bits == 1:
            scale = one[:BLOCK].abs().mean()
            torch.testing.assert_close(got[:BLOCK], torch.where(one[:BLOCK] >= 0, scale, -scale))
        else:
            step = one.abs().max() / (2 ** (bits - 1) - 1)
            assert (got - one).abs().max() <= step * 1.001
        at += size


@pytest.mark.parametrize("name", ["bits2", "bits4", "bits8"])
def test_rounding_at_random_has_the_right_mean_and_repeats_with_its_seed(name: str) -> None:
    one = torch.linspace(-1, 1, 50)
    seen = [arrived(name, CODECS[name].encode([one], None, [4], seed, 1), [one])[0] for seed in range(4000)]
    torch.testing.assert_close(torch.stack(seen).mean(0), one, rtol=0, atol=0.05)
    assert torch.equal(seen[5], arrived(name, CODECS[name].encode([one], None, [4], 5, 1), [one])[0])
    other = arrived(name, CODECS[name].encode([one], None, [5], 5, 1), [one])[0]
    assert not torch.equal(other, seen[5]) or name == "bits8"


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_arrives_so_and_leaves_no_trace(name: str, wrong: float) -> None:
    one, rest = torch.ones(100), torch.full((100,), 0.5)
    one[3] = wrong
    got = arrived(name, CODECS[name].encode([one], [rest], [0], 0, 1), [one])[0]
    assert not torch.isfinite(got).all()
    assert torch.equal(rest, torch.full((100,), 0.5))


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros(name: str) -> None:
    zeros = [torch.zeros(5000)]
    assert not arrived(name, CODECS[name].encode(zeros, None, [0], 0, 1), zeros)[0].any()
