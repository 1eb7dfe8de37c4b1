"""Devices of a fleet: classes with measured profiles, when each is there, and what a task takes on it.

Availability is synthetic unless windows are given: exponential stretches on and off, longer on at night.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.files import read_file
from tightrope.core.toml_text import from_toml
from tightrope.core.units import Bytes, shown

_DAY: Final = 86_400.0


class DeviceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of device and its measured profile.

    Attributes:
        name: of the kind.
        share: of the devices of a fleet, relative to the other kinds.
        bytes: memory that training may take.
        ms_per_sample: of one local pass over one sample.
        joules_per_sample: the same in energy.
        down: bytes per second from the server.
        up: bytes per second to it.
        spread: of speeds within the kind, standard deviation of the logarithm.
        available: share of the time in which a device may train.
        window_s: mean length of such a stretch, in seconds.
    """

    name: str
    share: float
    bytes: Bytes
    ms_per_sample: float
    joules_per_sample: float
    down: float
    up: float
    spread: float = 0.3
    available: float = 0.22
    window_s: float = 1800.0


class FleetProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kinds of devices.

    Attributes:
        kinds: at least one.
    """

    kinds: tuple[DeviceClass, ...]


def read_fleet(path: str | Path) -> FleetProfile:
    """Read kinds of devices from TOML: ``[[kinds]]`` with the fields of `DeviceClass`.

    Raises:
        TightropeError: names the kind and the field that is missing, unknown or out of range.
    """
    try:
        text = read_file(path, limit=2**20).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TightropeError(f"{str(path)!r} is not UTF-8 text: save it as TOML in UTF-8.") from error
    profile = from_toml(text, FleetProfile, repr(str(path)))
    try:
        check_fleet(profile)
    except TightropeError as error:
        raise TightropeError(f"{str(path)!r}: {error}") from error
    return profile


def check_fleet(profile: FleetProfile) -> None:
    """Refuse kinds without a usable profile.

    Raises:
        TightropeError: names the kind, the field and its value.
    """
    if not profile.kinds or len({kind.name for kind in profile.kinds}) != len(profile.kinds):
        raise TightropeError("kinds: give one or more kinds of devices, of different names.")
    for kind in profile.kinds:
        for name in ("share", "bytes", "ms_per_sample", "joules_per_sample", "down", "up", "window_s"):
            value = getattr(kind, name)
            if not 0 < value < 1e18:
                raise TightropeError(
                    f"kind {kind.name!r}: {name} = {shown(value)}: give a number above 0 and below 1e18."
                )
        if not 0 < kind.available <= 1 or not 0 <= kind.spread <= 3:
            raise TightropeError(
                f"kind {kind.name!r}: available = {kind.available:g}, spread = {kind.spread:g}: give "
                "above 0 to 1, and "
                "0 to 3."
            )


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices themselves; device d holds the data of client d.

    Attributes:
        profile: of their kinds.
        kind: of every device.
        slowness: of every device, 1 = as its kind.
        edges: begin and end of every window of every device, in ms, ascending.
    """

    profile: FleetProfile
    kind: NDArray[np.intp]
    slowness: NDArray[np.float64]
    edges: tuple[NDArray[np.int64], ...]

    def window_end(self, device: int, now: int) -> int:
        """End of the window that a device is in, ms; 0 where it is in none."""
        place = int(np.searchsorted(self.edges[device], now, side="right"))
        return int(self.edges[device][place]) if place % 2 else 0

    def task_ms(self, device: int, samples: int, size: Bytes, factor: float = 1.0) -> tuple[int, int, int]:
        """Milliseconds to fetch, to train and to send."""
        kind = self.profile.kinds[self.kind[device]]
        compute = samples * kind.ms_per_sample * float(self.slowness[device]) * factor
        return (
            int(np.ceil(1000 * size / kind.down)),
            int(np.ceil(compute)),
            int(np.ceil(1000 * size / kind.up)),
        )


def make_devices(profile: FleetProfile, count: int, *, hours: float, seed: int) -> Devices:
    """Draw devices and their windows.

    >>> kind = DeviceClass("phone", 1.0, 10**8, 5.0, 0.01, 1e6, 1e6)
    >>> devices = make_devices(FleetProfile((kind,)), 50, hours=100, seed=0)
    >>> on = np.mean([(edges[1::2] - edges[::2]).sum() / 3.6e8 for edges in devices.edges])
    >>> bool(0.15 < on < 0.3)
    True
    """
    check_fleet(profile)
    random = np.random.default_rng(seed)
    shares = np.array([kind.share for kind in profile.kinds])
    kinds = random.choice(len(shares), count, p=shares / shares.sum())
    spread = np.array([kind.spread for kind in profile.kinds])[kinds]
    slowness = np.exp(random.normal(0, 1, count) * spread)
    edges = tuple(_windows(profile.kinds[k], hours * 3600, random) for k in kinds)
    return Devices(profile, kinds, slowness, edges)


def _windows(kind: DeviceClass, horizon: float, random: np.random.Generator) -> NDArray[np.int64]:
    if kind.available == 1:
        return np.array([0, int(horizon * 1000) + 1], np.int64)
    away = kind.window_s * (1 - kind.available) / kind.available
    at, edges = -random.uniform(0, kind.window_s + away), []
    on = random.random() < kind.available
    while at < horizon:
        night = 1 + 0.5 * np.cos(2 * np.pi * max(at, 0) / _DAY)  # longer at night, which is hour 0
        length = random.exponential(kind.window_s * night if on else away)
        if on and at + length > 0:
            edges += [int(max(at, 0) * 1000), int((at + length) * 1000) + 1]
        at, on = at + length, not on
    return np.array(edges, np.int64)


def windows_of(active: Sequence[int], inactive: Sequence[int]) -> NDArray[np.int64]:
    """Read a trace in FedScale's layout: seconds at which a device becomes active, and inactive.

    Raises:
        TightropeError: they do not take turns.

    >>> windows_of([0, 100], [50, 160]).tolist()
    [0, 50000, 100000, 160000]
    """
    edges = [edge * 1000 for pair in zip(active, inactive, strict=False) for edge in pair]
    if len(active) != len(inactive) or any(a >= b for a, b in itertools.pairwise(edges)):
        raise TightropeError(
            "active and inactive: give as many of each, every one later than the one before it."
        )
    return np.array(edges, np.int64)
