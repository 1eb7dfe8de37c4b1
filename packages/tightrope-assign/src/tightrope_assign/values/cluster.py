"""Devices with limits, and the links between them.

name = "two kinds"
devices = [
  { name = "big", bytes = 8000000000, rates = { matmul = 1e13 } },
  { name = "small", bytes = 2000000000, rate = 5e8 },
]
links = [{ name = "ethernet", latency = 1e-4, bandwidth = 1e9 }]        # joins all, or `span` in a row
pairs = [{ one = "big", other = "small", latency = 1e-6, bandwidth = 1e10 }]  # instead of a link

A machine profile with `tiers` and `devices` is a cluster of equal devices.
"""

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tightrope.core import Bytes, DeviceLink, Machine, Nanoseconds, TightropeError
from tightrope.core.files import read_file
from tightrope.core.toml_text import from_toml
from tightrope.core.units import shown

MOST_DEVICES: Final = 1024
MOST_TEXT: Final = 200
"""Characters of a name."""
LARGEST: Final = 2**53
"""Bytes, work and nanoseconds: a float holds them exactly."""
_MOST_FILE: Final[Bytes] = 16 * 2**20


class PlaceDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an item can be placed on.

    Attributes:
        name: unique in its cluster.
        bytes: that items on it may take together; 0 = no limit.
        rate: units of work per second, of a task that needs nothing special.
        rates: likewise, of tasks that need what the key says; without the key they do not run here.
    """

    name: str
    bytes: Bytes = 0
    rate: float = 1e9
    rates: dict[str, float] = {}


class PairLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins two devices, in both directions.

    Attributes:
        one: name of a device.
        other: name of another.
        latency: seconds per message.
        bandwidth: bytes per second.
    """

    one: str
    other: str
    latency: float = 0.0
    bandwidth: float = 10e9


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices and links.

    Attributes:
        devices: in order.
        links: the innermost first; each joins ``span`` devices in a row, 0 = all.
        pairs: links of two devices, which replace those above.
        name: for people.
    """

    devices: tuple[PlaceDevice, ...]
    links: tuple[DeviceLink, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    name: str = "cluster"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(device.name for device in self.devices)

    def without(self, lost: Sequence[str]) -> "Cluster":
        """Take devices out; links keep the positions that the others had.

        Raises:
            TightropeError: no device is called so, or none is left.

        >>> Cluster((PlaceDevice("a"), PlaceDevice("b"))).without(["a"]).names
        ('b',)
        """
        for name in lost:
            if name not in self.names:
                raise TightropeError(
                    f"no device {name!r:.60} in cluster {self.name!r:.60}: it has {shown(self.names)}."
                )
        left = tuple(device for device in self.devices if device.name not in lost)
        if not left:
            raise TightropeError(f"no device of cluster {self.name!r:.60} is left: keep at least one.")
        routes = link_table(self)
        position = {name: at for at, name in enumerate(self.names)}
        pairs = tuple(
            PairLink(a.name, b.name, link.latency, link.bandwidth)
            for at, a in enumerate(left)
            for b in left[:at]
            if (link := routes[position[a.name]][position[b.name]]) is not None
        )
        spans = any(link.span for link in self.links)  # spans count positions, which change
        return Cluster(
            left, () if spans else self.links, pairs if spans else _among(self.pairs, left), self.name
        )


def _among(pairs: Sequence[PairLink], left: Sequence[PlaceDevice]) -> tuple[PairLink, ...]:
    names = {device.name for device in left}
    return tuple(pair for pair in pairs if pair.one in names and pair.other in names)


def link_table(cluster: Cluster) -> list[list[DeviceLink | None]]:
    """List the link of every two devices; None on the diagonal and without a link."""
    num = len(cluster.devices)
    position = {name: at for at, name in enumerate(cluster.names)}
    table: list[list[DeviceLink | None]] = [[None] * num for _ in range(num)]
    for a in range(num):
        for b in range(num):
            if a != b:
                table[a][b] = next(
                    (link for link in cluster.links if not link.span or a // link.span == b // link.span),
                    None,
                )
    for pair in cluster.pairs:
        link = DeviceLink(f"{pair.one}-{pair.other}", pair.latency, pair.bandwidth)
        a, b = position[pair.one], position[pair.other]
        table[a][b] = table[b][a] = link
    return table


def cluster_of(machine: Machine) -> Cluster:
    """Take the equal devices of a machine profile as a cluster; work is counted in nanoseconds.

    >>> from tightrope.core import Tier
    >>> cluster_of(Machine("pair", (Tier("hbm", 64),), devices=2)).names
    ('0', '1')
    """
    devices = tuple(
        PlaceDevice(str(at), machine.tiers[0].bytes, rates=machine.flops) for at in range(machine.devices)
    )
    return Cluster(devices, machine.links, (), machine.name)


def check_cluster(cluster: Cluster, *, linked: bool = True) -> None:
    """Refuse clusters that cannot be.

    Args:
        cluster: devices and links.
        linked: whether all devices need a link.

    Raises:
        TightropeError: names the device or link, and quotes the value.
    """
    where = f"cluster {cluster.name!r:.60}"
    unique_names([cluster.name], "cluster")
    if not 1 <= len(cluster.devices) <= MOST_DEVICES:
        raise TightropeError(f"{where} has {len(cluster.devices)} devices: give 1 to {MOST_DEVICES}.")
    unique_names(cluster.names, f"{where}: device")
    for device in cluster.devices:
        if not 0 <= device.bytes <= LARGEST:
            raise TightropeError(
                f"{where}, device {device.name!r:.60}: bytes={shown(device.bytes)}: give 0 (any) to 2^53."
            )
        for key, rate in (("rate", device.rate), *device.rates.items()):
            if not 1e-9 <= rate <= 1e21:
                raise TightropeError(
                    f"{where}, device {device.name!r:.60}: rate {key!r:.60} is {shown(rate)}: "
                    "give work per second, 1e-9 to 1e21."
                )
    for pair in cluster.pairs:
        _check_link(f"{where}, link {f'{pair.one}-{pair.other}'!r:.60}", pair.latency, pair.bandwidth)
    for link in cluster.links:
        _check_link(f"{where}, link {link.name!r:.60}", link.latency, link.bandwidth)
        if link.span < 0:
            raise TightropeError(f"{where}, link {link.name!r:.60}: span={link.span}: give 0 (all) or more.")
    _check_pairs(cluster, where, linked=linked)


def _check_link(where: str, latency: float, bandwidth: float) -> None:
    if not (0 <= latency <= 1e6 and 1e-3 <= bandwidth <= 1e18):
        raise TightropeError(
            f"{where}: latency={latency!r}, bandwidth={bandwidth!r}: give seconds of at most 1e6, and bytes "
            "per second, 1e-3 to 1e18."
        )


def _check_pairs(cluster: Cluster, where: str, *, linked: bool) -> None:
    names, seen = set(cluster.names), set[frozenset[str]]()
    for pair in cluster.pairs:
        for name in (pair.one, pair.other):
            if name not in names:
                raise TightropeError(
                    f"{where}, pairs: no device is called {name!r:.60}: it has {shown(names)}."
                )
        if pair.one == pair.other:
            raise TightropeError(f"{where}, pairs: {pair.one!r:.60} is joined to itself: leave the pair out.")
        if frozenset((pair.one, pair.other)) in seen:
            raise TightropeError(
                f"{where}, pairs: {pair.one!r:.60} and {pair.other!r:.60} are joined twice: keep one of them."
            )
        seen.add(frozenset((pair.one, pair.other)))
    table = link_table(cluster)
    for a, row in enumerate(table):
        for b, link in enumerate(row[:a]):
            if link is None and linked:
                raise TightropeError(
                    f"{where} has no link between {cluster.names[b]!r:.60} and {cluster.names[a]!r:.60}: add "
                    "[[links]] with latency and bandwidth, or a pair of the two."
                )


def unique_names(names: Sequence[str], what: str) -> None:
    """Refuse empty, long and repeated names, and those with control characters.

    Raises:
        TightropeError: quotes the name.
    """
    seen: set[str] = set()
    for name in names:
        if not 0 < len(name) <= MOST_TEXT or not name.isprintable():
            raise TightropeError(
                f"{what} {name!r:.60}: give a name of 1 to {MOST_TEXT} printable characters."
            )
        if name in seen:
            raise TightropeError(f"{what} {name!r:.60} is there twice: give each a name of its own.")
        seen.add(name)


_T = TypeVar("_T", bound=msgspec.Struct)


def read_toml(path: str | Path, kind: type[_T]) -> _T:
    """Read a TOML file of at most 16 MiB into a value.

    Raises:
        TightropeError: it cannot be read, or is not such a value: says what and where.
    """
    return from_toml(_text(path), kind, repr(str(path)))


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster, or a machine profile, from a TOML file.

    Raises:
        TightropeError: it cannot be read, or describes no cluster: says what and where.
    """
    text = _text(path)
    try:
        profile = "tiers" in tomllib.loads(text)
    except (ValueError, RecursionError):
        profile = False  # what follows says so
    cluster = cluster_of(Machine.load(path)) if profile else from_toml(text, Cluster, repr(str(path)))
    check_cluster(cluster)
    return cluster


def _text(path: str | Path) -> str:
    data = read_file(path, limit=_MOST_FILE)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TightropeError(f"{str(path)!r} is not UTF-8 text: {error}.") from error


def work_ns(work: float, rate: float) -> Nanoseconds:
    """Time work, rounded up.

    >>> work_ns(3, 2e9)
    2
    """
    return math.ceil(1e9 * work / rate)
