"""Pictures like photographs, with a class each, made from noise with the spectrum of photographs.

No network, no data set: backgrounds have 1/f amplitudes, colours that go together, light from one side;
before them lies one of ten shapes with its own texture. Fine textures alias when they are resized carelessly,
as fabrics and leaves do.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

HIGH, WIDE = 120, 160
CLASSES: Final = (
    "cross", "diamond", "disc", "dots", "grid", "ring", "slats", "square", "stripes", "triangle",
)  # fmt: skip


@cache
def _backgrounds(num: int = 32) -> NDArray[np.float32]:
    """Fields with amplitudes of 1/f, between -1 and 1."""
    rng = np.random.default_rng(7)
    high, wide = 2 * HIGH, 2 * WIDE
    far = np.hypot(np.fft.fftfreq(high)[:, None], np.fft.fftfreq(wide)[None, :])
    spectrum = np.fft.fft2(rng.normal(size=(num, high, wide))) / np.maximum(far, 1 / wide)
    fields = np.fft.ifft2(spectrum).real
    return (fields / np.abs(fields).max((1, 2), keepdims=True)).astype(np.float32)


def _shape(name: str, u: NDArray[Any], v: NDArray[Any], period: float) -> NDArray[Any]:
    """How much of a shape covers each place: 0 to 1; u and v are in units of its radius."""
    far, box = np.hypot(u, v), np.maximum(abs(u), abs(v))
    inside = np.clip((1 - far) * 12, 0, 1)
    if name in ("stripes", "slats", "grid", "dots"):
        across, down = np.sin(u / period), np.sin(v / period)
        wave = {"stripes": across, "slats": down, "grid": across * down, "dots": across + down - 0.6}[name]
        return inside * (0.5 + 0.5 * np.clip(3 * wave, -1, 1))
    if name in ("disc", "ring"):
        return np.clip(0.5 - 8 * (far - 1 if name == "disc" else abs(far - 0.75) - 0.25), 0, 1)
    edges = {
        "cross": np.maximum(box - 1, np.minimum(abs(u), abs(v)) - 0.28),
        "diamond": abs(u) + abs(v) - 1,
        "square": box - 0.8,
        "triangle": np.maximum(v - 0.7, 1.8 * abs(u) - v - 0.9),
    }
    return np.clip(0.5 - edges[name] * 8, 0, 1)


def picture(seed: int) -> tuple[NDArray[np.uint8], int]:
    """Make one picture of height x width x 3, and its class."""
    rng = np.random.default_rng(seed)
    label = int(rng.integers(len(CLASSES)))
    fields = _backgrounds()
    top, left = rng.integers(0, HIGH), rng.integers(0, WIDE)
    chosen = [fields[rng.integers(len(fields))][top : top + HIGH, left : left + WIDE] for _ in range(3)]
    mix = (rng.normal(size=(3, 3)) * 0.35 + 0.8).astype(np.float32)
    light = np.linspace(-1, 1, WIDE)[None, :] * rng.normal() * 0.15
    paper = 0.5 + rng.normal(size=3) * 0.12 + light[..., None]
    paper = paper + np.tensordot(np.stack(chosen, -1), mix, 1) * 0.28
    y, x = np.mgrid[:HIGH, :WIDE].astype(np.float32)
    radius, turn = rng.uniform(24, 48), rng.uniform(-0.25, 0.25)
    dy, dx = (y - HIGH * rng.uniform(0.35, 0.65)) / radius, (x - WIDE * rng.uniform(0.3, 0.7)) / radius
    u, v = dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn)
    cover = _shape(CLASSES[label], u, v, rng.uniform(1.6, 3.2) / radius)[..., None]
    cover = cover * rng.uniform(0.6, 1)
    ink = rng.uniform(0, 1, 3) ** rng.choice((0.3, 3))
    whole = paper * (1 - cover) + ink * cover + rng.standard_normal(paper.shape, np.float32) * 0.02
    return np.clip(np.rint(whole * 255), 0, 255).astype(np.uint8), label


def write_photos(folder: Path, num: int, first: int = 0) -> None:
    """Write pictures as JPEG of quality 90, in a folder of their class."""
    from PIL import Image

    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for seed in range(first, first + num):
        pixels, label = picture(seed)
        Image.fromarray(pixels).save(folder / CLASSES[label] / f"{seed:05d}.jpg", quality=90)
