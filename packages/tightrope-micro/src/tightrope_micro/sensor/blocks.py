"""From windows of samples to features: statistics, spectra and mel spectra, from their definitions.

Idea        Every axis of a window gives features of its own, one axis after the other. What depends on
            settings
            alone (cosines, filter coefficients, bands) is a table, which Python and the C both read.
Source      Population moments; Butterworth's filter by the bilinear transform; Welch (1967) with a Hann
            window,
            half overlapping, scaled so that a sine of amplitude a has a^2 / 2 in its bin; triangles on the
            mel scale
Guarantee   In float64 equal to SciPy's periodogram, filter, skew and kurtosis
            (`tests/sensor/test_sensor_blocks.py`).
Complexity  n log n per frame of n samples.
Gaps        No decimation, wavelets, MFCC, image or noise floor that adapts.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tightrope.core import TightropeError
from tightrope_micro.sensor.dataset import Floats

FLOOR = 1e-6
"""Added to a power before its logarithm, so that silence is a number."""
STATISTICS = ("mean", "minimum", "maximum", "rms", "deviation", "skewness", "kurtosis")

_Order = Literal[2, 4, 6, 8]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]


class Flatten(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="flatten", tag_field="kind"):
    """Statistics of every axis: `STATISTICS`; kurtosis is the excess over a normal distribution.

    Attributes:
        scale: that samples are multiplied with.
    """

    scale: float = 1.0


class Spectral(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="spectral", tag_field="kind"):
    """RMS, skewness and kurtosis of every axis without its mean, and the logarithm of its power in bands.

    Attributes:
        fft: samples of a frame, a power of two from 16 to 4096; shorter windows are filled with zeros.
        bands: of about equal width on a logarithmic scale, the constant left out.
        filter: Butterworth, before all else.
        cutoff_hz: of the filter.
        order: of the filter.
        scale: that samples are multiplied with.
    """

    fft: int = 128
    bands: int = 8
    filter: Literal["none", "low", "high"] = "none"
    cutoff_hz: _Positive = 3.0
    order: _Order = 6
    scale: float = 1.0


class MelEnergies(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mfe", tag_field="kind"):
    """Logarithm of the power in triangles on the mel scale, frame by frame.

    Attributes:
        fft: samples of a frame, a power of two from 16 to 4096.
        stride: samples from a frame to the next; 0 = half a frame.
        filters: triangles.
        low_hz: lower edge of the first.
        high_hz: upper edge of the last; 0 = half the sample rate.
        scale: that samples are multiplied with.
    """

    fft: int = 256
    stride: int = 0
    filters: int = 20
    low_hz: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    high_hz: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    scale: float = 1.0


Block = Flatten | Spectral | MelEnergies


@dataclass(frozen=True)
class Bank:
    """Sums of powers: filter k sums `weights[ends[k-1]:ends[k]]` times the bins from `first[k]` on.

    Attributes:
        first: bin per filter.
        ends: place behind the last weight, per filter.
        weights: None = all one.
    """

    first: tuple[int, ...]
    ends: tuple[int, ...]
    weights: tuple[float, ...] | None

    def dense(self, bins: int) -> Floats:
        """As a matrix (filters, bins)."""
        found = np.zeros((len(self.first), bins))
        for k, (first, end) in enumerate(zip(self.first, self.ends, strict=True)):
            begin = self.ends[k - 1] if k else 0
            found[k, first : first + end - begin] = 1.0 if self.weights is None else self.weights[begin:end]
        return found


def check_block(block: Block, rows: int, rate_hz: float) -> None:
    """Check settings against a window of ``rows`` samples.

    Raises:
        TightropeError: one is out of range; names it and what is possible.
    """
    if isinstance(block, Flatten):
        return
    if block.fft not in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        raise TightropeError(f"fft={block.fft}: give a power of two from 16 to 4096.")
    if isinstance(block, Spectral):
        if not 1 <= block.bands <= block.fft // 2:
            raise TightropeError(f"bands={block.bands}: give 1 to {block.fft // 2}, half of fft.")
        if block.filter != "none" and block.cutoff_hz >= rate_hz / 2:
            raise TightropeError(
                f"cutoff_hz={block.cutoff_hz:g}: give less than {rate_hz / 2:g} Hz, half the sample rate."
            )
        return
    if rows < block.fft:
        raise TightropeError(f"fft={block.fft} is longer than a window of {rows} rows: give a smaller one.")
    if block.stride < 0 or not 1 <= block.filters <= block.fft // 2:
        raise TightropeError(f"stride is 0 or more, and filters are 1 to {block.fft // 2}, half of fft.")
    if not block.low_hz < (block.high_hz or rate_hz / 2) <= rate_hz / 2:
        raise TightropeError(f"low_hz is below high_hz, and that at most {rate_hz / 2:g} Hz.")


def num_features(block: Block, rows: int) -> int:
    """Features of one axis."""
    match block:
        case Flatten():
            return len(STATISTICS)
        case Spectral():
            return 3 + block.bands
        case MelEnergies():
            return block.filters * num_frames(rows, block.fft, block.stride)


def num_frames(rows: int, fft: int, stride: int = 0) -> int:
    """Frames of a window: those that fit, and one where it is shorter than a frame."""
    return max(1, 1 + (rows - fft) // (stride or fft // 2))


def features(block: Block, windows: Floats, rate_hz: float) -> Floats:
    """Compute the features of windows.

    Args:
        block: what to compute.
        windows: (windows, rows, axes).
        rate_hz: samples per second.

    Returns:
        (windows, features of the first axis, of the second, ...).
    """
    check_block(block, windows.shape[1], rate_hz)
    found = [_of_axis(block, block.scale * windows[:, :, axis], rate_hz) for axis in range(windows.shape[2])]
    return np.concatenate(found, axis=1)


def _of_axis(block: Block, x: Floats, rate_hz: float) -> Floats:
    if isinstance(block, Flatten):
        return statistics(x)
    x = x - x.mean(axis=1, keepdims=True)
    if isinstance(block, MelEnergies):
        bank = mel_bank(block, rate_hz).dense(block.fft // 2 + 1)
        starts = range(0, x.shape[1] - block.fft + 1, block.stride or block.fft // 2)
        frames = [frame_power(x[:, at : at + block.fft]) @ bank.T for at in starts]
        return np.log10(np.concatenate(frames, axis=1) + FLOOR)
    if block.filter != "none":
        x = filtered(x, butterworth(block.order, block.cutoff_hz / rate_hz, high=block.filter == "high"))
    bank = log_bands(block.fft, block.bands).dense(block.fft // 2 + 1)
    power = np.log10(welch(x, block.fft) @ bank.T + FLOOR)
    return np.concatenate([statistics(x)[:, [3, 5, 6]], power], axis=1)


def statistics(x: Floats) -> Floats:
    """`STATISTICS` of every row; of a constant one, skewness and kurtosis are 0."""
    mean = x.mean(axis=1)
    apart = x - mean[:, None]
    square = (apart**2).mean(axis=1)
    some = square > 1e-12
    safe = np.where(some, square, 1.0)
    skewness = np.where(some, (apart**3).mean(axis=1) / safe**1.5, 0.0)
    kurtosis = np.where(some, (apart**4).mean(axis=1) / safe**2 - 3.0, 0.0)
    rms = np.sqrt((x**2).mean(axis=1))
    return np.stack([mean, x.min(axis=1), x.max(axis=1), rms, np.sqrt(square), skewness, kurtosis], axis=1)


def butterworth(order: int, cutoff: float, *, high: bool) -> Floats:
    """Design a filter of even order.

    Args:
        order: of the filter.
        cutoff: where half the power passes, as a fraction of the sample rate.
        high: whether what is above passes.

    Returns:
        (order / 2, 5): b0, b1, b2, a1, a2 of second-order sections, a0 being 1.
    """
    warped = math.tan(math.pi * cutoff)
    found = []
    for k in range(order // 2):
        damping = 2 * math.sin(math.pi * (2 * k + 1) / (2 * order))
        norm = 1 / (1 + damping * warped + warped**2)
        a1 = 2 * (warped**2 - 1) * norm
        a2 = (1 - damping * warped + warped**2) * norm
        gain, sign = (norm, -1) if high else (warped**2 * norm, 1)
        found.append((gain, 2 * sign * gain, gain, a1, a2))
    return np.array(found)


def filtered(x: Floats, sections: Floats) -> Floats:
    """Run second-order sections over every row, beginning from rest."""
    for b0, b1, b2, a1, a2 in sections:
        first = np.zeros(len(x))
        second = np.zeros(len(x))
        made = np.empty_like(x)
        for at in range(x.shape[1]):
            made[:, at] = b0 * x[:, at] + first
            first = b1 * x[:, at] - a1 * made[:, at] + second
            second = b2 * x[:, at] - a2 * made[:, at]
        x = made
    return x


def frame_power(frames: Floats) -> Floats:
    """Power per bin of frames under a Hann window."""
    n = frames.shape[1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)
    power = np.abs(fourier(frames * hann)) ** 2 * (2.0 / hann.sum() ** 2)
    power[:, [0, -1]] *= 0.5
    return np.asarray(power)


def fourier(x: Floats) -> npt.NDArray[np.complex128]:
    """Discrete Fourier transform of real rows of a power of two samples, by halves: bins 0 to n / 2."""
    return _fourier(x.astype(np.complex128))[:, : x.shape[1] // 2 + 1]


def _fourier(x: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    n = x.shape[1]
    if n == 1:
        return x
    even, odd = _fourier(x[:, ::2]), _fourier(x[:, 1::2])
    turned = odd * np.exp(-2j * np.pi * np.arange(n // 2) / n)
    return np.concatenate([even + turned, even - turned], axis=1)


def welch(x: Floats, fft: int) -> Floats:
    """Mean power per bin of half overlapping frames; rows shorter than a frame are filled with zeros."""
    if x.shape[1] < fft:
        x = np.pad(x, ((0, 0), (0, fft - x.shape[1])))
    starts = range(0, x.shape[1] - fft + 1, fft // 2)
    return np.asarray(np.mean([frame_power(x[:, at : at + fft]) for at in starts], axis=0))


def log_bands(fft: int, bands: int) -> Bank:
    """Bands of about equal width on a logarithmic scale; each has a bin at least."""
    half = fft // 2
    edges = [1]
    for k in range(1, bands + 1):
        wanted = round(math.exp(math.log(half + 1) * k / bands))
        edges.append(min(max(wanted, edges[-1] + 1), half + 1 - (bands - k)))
    ends = tuple(edge - 1 for edge in edges[1:])
    return Bank(tuple(edges[:-1]), ends, None)


def mel_bank(block: MelEnergies, rate_hz: float) -> Bank:
    """Triangles whose corners are evenly apart on the mel scale, 1 at the middle one."""
    high = block.high_hz or rate_hz / 2
    ends_mel = [2595 * math.log10(1 + edge / 700) for edge in (block.low_hz, high)]
    mels = np.linspace(ends_mel[0], ends_mel[1], block.filters + 2)
    corners = 700 * (10 ** (mels / 2595) - 1) * block.fft / rate_hz
    bins = np.arange(block.fft // 2 + 1)
    first, ends, weights = [], [], list[float]()
    for left, middle, right in zip(corners[:-2], corners[1:-1], corners[2:], strict=True):
        rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
        height = np.minimum(rising, falling)
        inside = np.flatnonzero(height > 0)
        first.append(int(inside[0]) if len(inside) else 0)
        weights += [float(one) for one in height[inside]]
        ends.append(len(weights))
    return Bank(tuple(first), tuple(ends), tuple(weights))
