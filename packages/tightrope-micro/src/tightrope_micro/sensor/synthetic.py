"""Synthetic accelerometer data of four gestures, in the signed format, to try the workflow."""

import math

import numpy as np

from tightrope_micro.sensor.acquisition import Acquisition, Sensor, acquisition
from tightrope_micro.sensor.dataset import Dataset, SensorRecording

GESTURES = ("circles", "idle", "snakes", "up-down")
INTERVAL_MS = 16.0
SENSORS = tuple(Sensor(axis, "m/s2") for axis in ("accX", "accY", "accZ"))


def gesture(label: str, *, seconds: float = 10.0, noise: float = 0.5, seed: int = 0) -> Acquisition:
    """Make a recording of one gesture, with its pace, strength and the tilt of the device at random.

    Args:
        label: one of `GESTURES`.
        seconds: of the recording.
        noise: deviation of noise on every number, m/s2.
        seed: of everything random.
    """
    random = np.random.default_rng([seed, GESTURES.index(label)])
    t = np.arange(round(1000 * seconds / INTERVAL_MS)) * INTERVAL_MS / 1000
    phase = 2 * math.pi * (random.uniform(0.8, 1.6) * t + random.uniform()) + 0.5 * np.sin(
        random.uniform() * t
    )
    size = random.uniform(2.0, 6.0)
    x, y, z = np.zeros((3, len(t)))
    if label == "circles":
        x, y = size * np.cos(phase), size * np.sin(phase)
    elif label == "snakes":
        x, y = size * np.cos(phase), 0.6 * size * np.sin(2 * phase)
    elif label == "up-down":
        z = size * np.cos(phase)
    tilt = random.uniform(-0.3, 0.3, 3)
    gravity = 9.81 * np.array([tilt[0], tilt[1], math.sqrt(1 - tilt[0] ** 2 - tilt[1] ** 2)])
    values = np.stack([x, y, z], axis=1) + gravity + random.normal(0.0, noise, (len(t), 3))
    rows = [[round(float(one), 4) for one in row] for row in values]
    return acquisition(rows, SENSORS, interval_ms=INTERVAL_MS, device_type="SYNTHETIC")


def gesture_dataset(num: int = 12, *, seconds: float = 10.0, noise: float = 0.5, seed: int = 0) -> Dataset:
    """Make ``num`` recordings of every gesture."""
    found = []
    for label in GESTURES:
        for k in range(num):
            made = gesture(label, seconds=seconds, noise=noise, seed=1000 * seed + k)
            found.append(SensorRecording(f"{label}.{k:02}.json", label, np.array(made.payload.values)))
    return Dataset(SENSORS, INTERVAL_MS, tuple(found), verified=False)
