"""Features beside SciPy and NumPy."""

import numpy as np
import pytest

from tightrope.core import TightropeError
from tightrope_micro.sensor import blocks
from tightrope_micro.sensor.blocks import Flatten, MelEnergies, Spectral, features

signal = pytest.importorskip("scipy.signal", reason="SciPy is not installed")
stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed")
RATE = 62.5
X = np.random.default_rng(0).normal(1.0, 2.0, (5, 200, 3))


def test_flatten_is_what_scipy_says() -> None:
    found = features(Flatten(scale=0.5), X, RATE).reshape(5, 3, 7)
    x = 0.5 * X
    wanted = [x.mean(1), x.min(1), x.max(1), np.sqrt((x**2).mean(1)), x.std(1)]
    wanted += [stats.skew(x, axis=1), stats.kurtosis(x, axis=1)]
    assert found == pytest.approx(np.stack(wanted, axis=2), rel=1e-12)
    still = features(Flatten(), np.full((1, 50, 1), 3.0), RATE)
    assert still.tolist() == [[3, 3, 3, 3, 0, 0, 0]]


@pytest.mark.parametrize("order", [2, 4, 6, 8])
@pytest.mark.parametrize("way", ["low", "high"])
def test_filters_are_scipys(order: int, way: str) -> None:
    sections = signal.butter(order, 3.0, way, fs=RATE, output="sos")
    mine = blocks.filtered(X[:, :, 0], blocks.butterworth(order, 3.0 / RATE, high=way == "high"))
    assert mine == pytest.approx(signal.sosfilt(sections, X[:, :, 0], axis=1), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("fft", [16, 64, 128, 256])
def test_powers_are_scipys(fft: int) -> None:
    x = X[:, :, 1]
    padded = np.pad(x, ((0, 0), (0, max(0, fft - x.shape[1]))))
    _, wanted = signal.welch(padded, nperseg=fft, noverlap=fft // 2, detrend=False, scaling="spectrum")
    assert blocks.welch(x, fft) == pytest.approx(wanted, rel=1e-10)
    assert blocks.fourier(padded[:, :fft]) == pytest.approx(np.fft.rfft(padded[:, :fft]), rel=1e-10)


def test_a_sine_has_half_its_squared_amplitude_in_its_bins() -> None:
    x = 3.0 * np.sin(2 * np.pi * 8 * np.arange(128) / 128)[None]
    assert blocks.welch(x, 128)[0, 8] == pytest.approx(4.5)


@pytest.mark.parametrize("way", ["none", "low", "high"])
def test_spectral_is_its_definition_in_scipy(way: str) -> None:
    block = Spectral(fft=128, bands=8, filter=way, cutoff_hz=8.0, order=4, scale=2.0)  # type: ignore[arg-type]
    found = features(block, X, RATE).reshape(5, 3, 11)
    x = np.moveaxis(2.0 * X, 2, 1)
    x = x - x.mean(-1, keepdims=True)
    if way != "none":
        x = signal.sosfilt(signal.butter(4, 8.0, way, fs=RATE, output="sos"), x)
    _, power = signal.welch(x, nperseg=128, noverlap=64, detrend=False, scaling="spectrum")
    bank = blocks.log_bands(128, 8)
    begins, ends = bank.first, [*bank.first[1:], 65]
    sums = [power[..., a:b].sum(-1) for a, b in zip(begins, ends, strict=True)]
    assert found[..., 3:] == pytest.approx(np.log10(np.stack(sums, axis=2) + 1e-6), rel=1e-9)
    moments = np.stack([np.sqrt((x**2).mean(-1)), stats.skew(x, axis=-1), stats.kurtosis(x, axis=-1)], axis=2)
    assert found[..., :3] == pytest.approx(moments, rel=1e-9)


@pytest.mark.parametrize("bands", [1, 8, 31, 32, 64])
def test_bands_cover_every_bin_but_the_constant_once(bands: int) -> None:
    dense = blocks.log_bands(128, bands).dense(65)
    assert dense.sum(axis=0).tolist() == [0.0] + [1.0] * 64
    assert (dense.sum(axis=1) >= 1).all()


def test_mel_energies_are_their_definition() -> None:
    block = MelEnergies(fft=64, stride=50, filters=10, low_hz=1.0, high_hz=25.0)
    found = features(block, X, RATE).reshape(5, 3, 3, 10)
    x = X - X.mean(axis=1, keepdims=True)
    mels = np.linspace(2595 * np.log10(1 + 1.0 / 700), 2595 * np.log10(1 + 25.0 / 700), 12)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    bins = np.arange(33) * RATE / 64
    for frame in range(3):
        cut = x[:, frame * 50 : frame * 50 + 64]
        _, power = signal.periodogram(cut, window="hann", detrend=False, scaling="spectrum", axis=1)
        for k in range(10):
            triangle = np.interp(bins, hertz[k : k + 3], [0, 1, 0])
            wanted = np.log10(np.tensordot(power, triangle, (1, 0)) + 1e-6)
            assert found[:, :, frame, k] == pytest.approx(wanted, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (Spectral(fft=100), "power of two"),
        (Spectral(fft=16, bands=9), "give 1 to 8"),
        (Spectral(filter="low", cutoff_hz=40.0), "31.25 Hz"),
        (MelEnergies(fft=256), "longer than a window"),
        (MelEnergies(fft=64, high_hz=99.0), "low_hz is below"),
        (MelEnergies(fft=64, filters=33), "1 to 32"),
    ],
)
def test_settings_out_of_range_say_what_is_possible(block: blocks.Block, says: str) -> None:
    with pytest.raises(TightropeError, match=says):
        features(block, X, RATE)
