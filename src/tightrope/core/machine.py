"""Machines and limits.

A machine is a list of memory tiers and compute rates. A CPU host, a GPU with pinned host memory
and a microcontroller with flash are all instances; profiles are TOML files.
"""

import math
import os
from pathlib import Path
from typing import Literal

import msgspec

from tightrope.core.arguments import check_kind, refuse_argument
from tightrope.core.errors import TightropeError
from tightrope.core.toml_text import from_toml, in_plain_words
from tightrope.core.units import ALIGNMENT, Bytes, Nanoseconds, shown


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of memory.

    Attributes:
        name: ``dram``, ``hbm``, ``pinned``, ``flash`` ...
        bytes: capacity.
        alignment: granule of placement, bytes.
        read: bytes per second towards tier 0 (for tier 0: of its own memory).
        write: bytes per second from tier 0.
        latency: seconds per transfer.
        joules_per_byte: energy of a transfer.
        watts: power of a transfer while it lasts, beside ``joules_per_byte``.
        engines: what copies to and from tier 0, one transfer at a time each: 0 = the processor itself,
            which computes nothing meanwhile; 1 = one engine for both ways; 2 = one engine each way.
        toll: seconds that a byte that an engine copies takes from what the processor does beside it.
    """

    name: str
    bytes: Bytes
    alignment: Bytes = ALIGNMENT
    read: float = 10e9
    write: float = 10e9
    latency: float = 0.0
    joules_per_byte: float = 0.0
    watts: float = 0.0
    engines: Literal[0, 1, 2] = 1
    toll: float = 0.0

    def copy_ns(self, size: Bytes, *, inwards: bool) -> Nanoseconds:
        """Time one transfer of ``size`` bytes from (``inwards``) or to this tier, rounded up.

        >>> Tier("flash", 1024, read=1e6, write=1e5, latency=1e-3).copy_ns(100, inwards=False)
        2000000
        """
        return math.ceil(1e9 * self.latency + 1e9 * size / (self.read if inwards else self.write))

    def toll_ns(self, size: Bytes) -> Nanoseconds:
        """Time that one transfer by an engine takes from what runs beside it, rounded up.

        >>> Tier("file", 1024, toll=1e-9).toll_ns(100)
        100
        """
        return math.ceil(1e9 * self.toll * size) if self.engines else 0

    def copy_joules(self, size: Bytes, *, inwards: bool) -> float:
        """Energy of one transfer.

        >>> Tier("flash", 1024, write=1e5, watts=2.0).copy_joules(100, inwards=False)
        0.002
        """
        return self.joules_per_byte * size + self.watts * 1e-9 * self.copy_ns(size, inwards=inwards)


class DeviceLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins devices.

    Attributes:
        name: for people.
        latency: seconds per message.
        bandwidth: bytes per second, each way, per device.
        level: 0 = the innermost.
        span: devices on end that it joins: of 16 devices, a span of 8 joins 0-7 and 8-15. 0 = all.
    """

    name: str
    latency: float = 0.0
    bandwidth: float = 10e9
    level: int = 0
    span: int = 0

    def message_ns(self, size: Bytes) -> Nanoseconds:
        """Time one message of ``size`` bytes, rounded up.

        >>> DeviceLink("ethernet", latency=1e-3, bandwidth=1e6).message_ns(1000)
        2000000
        """
        return math.ceil(1e9 * self.latency + 1e9 * size / self.bandwidth)


class RankGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that run collectives with each other."""

    name: str
    ranks: tuple[int, ...]


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory tiers and compute rates of a device, and what joins several of them.

    Attributes:
        name: of the profile.
        tiers: fastest first; tier 0 is what a budget in bytes limits.
        flops: floating-point operations per second by op class (``matmul``, ``conv``, ``pointwise``), and by
            class and dtype of the result where that has a rate of its own (``matmul-bfloat16``).
        watts: power while computing.
        device: torch-style device name of tier 0, for people.
        devices: how many there are, all alike.
        links: between them, the innermost first.
        groups: that collectives name.
        efficiency: share of a rate that is reached: ``matmul``, ``attention``, ``memory``; 1 by default.
        flash: bytes for code and constants, of a microcontroller; 0 = any.

    Example:
        >>> Machine.parse('''
        ... name = "tiny"
        ... tiers = [{ name = "ram", bytes = 262144 }]
        ... ''').tiers[0].bytes
        262144
    """

    name: str
    tiers: tuple[Tier, ...]
    flops: dict[str, float] = {}
    watts: float = 0.0
    device: str = "cpu"
    devices: int = 1
    links: tuple[DeviceLink, ...] = ()
    groups: tuple[RankGroup, ...] = ()
    efficiency: dict[str, float] = {}
    flash: Bytes = 0

    def link(self, one: int, other: int) -> int:
        """Find the innermost link that joins two devices.

        Raises:
            TightropeError: there is none.

        >>> links = (DeviceLink("inside", span=4), DeviceLink("between", level=1))
        >>> Machine("two nodes", (Tier("hbm", 1),), devices=8, links=links).link(3, 4)
        1
        """
        for position, link in enumerate(self.links):
            if not link.span or one // link.span == other // link.span:
                return position
        raise TightropeError(
            f"machine {self.name!r} has no link between devices {one} and {other}. Add a [[links]] whose "
            "span is 0 (all devices), with latency and bandwidth."
        )

    @staticmethod
    def parse(text: str) -> "Machine":
        """Read a TOML profile.

        Raises:
            TightropeError: it is not TOML, or not a machine profile.
        """
        check_kind("text", text, str, "a machine profile in TOML as text")
        return _parsed(text, f"{shown(text)} as a machine profile")

    @staticmethod
    def load(path: str | Path) -> "Machine":
        """Read a TOML profile from a file of at most 1 MiB.

        Raises:
            TightropeError: there is no such file, or it is not a machine profile.
        """
        check_kind("path", path, (str, Path), "the path of a machine profile in TOML")
        try:
            file = Path(path)
            if not file.is_file() or file.stat().st_size > 2**20:
                raise TightropeError(
                    f"no machine profile at {str(path)!r}: give the path of a TOML file of at most 1 MiB."
                )
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TightropeError(
                f"machine profile {str(path)!r} cannot be read: {error}. Give a TOML file in UTF-8."
            ) from error
        return _parsed(text, f"machine profile {str(path)!r}")

    @staticmethod
    def here() -> "Machine":
        """Describe this computer's memory; op times come from measuring ops, not from rates."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Machine(name="here", tiers=(Tier("dram", pages),))


def _parsed(text: str, name: str) -> Machine:
    """Read a TOML profile and check it."""
    try:
        machine = from_toml(text, Machine, name)
    except TightropeError as error:
        raise TightropeError(f"{error} It needs name and [[tiers]] with name and bytes.") from error
    _check_rates(machine)
    return machine


def check_machine(machine: object) -> None:
    """Refuse what is neither None nor a machine with memory, rates and costs that can be.

    Raises:
        TightropeError: quotes the value.
    """
    give = 'a tightrope.Machine, such as Machine.here() or Machine.load("machine.toml")'
    if machine is None:
        return
    if not isinstance(machine, Machine):
        refuse_argument("machine", machine, give)
    tiers: object = machine.tiers
    if not isinstance(tiers, tuple) or not tiers or not all(isinstance(tier, Tier) for tier in tiers):
        refuse_argument("machine", machine, f"{give}: this one has no tiers of memory")
    try:
        tree = msgspec.to_builtins(machine)
        checked = msgspec.convert(tree, Machine)
    except msgspec.ValidationError as error:
        wrong = in_plain_words(str(error), tree).removesuffix(".")
        refuse_argument("machine", machine, f"{give}: in this one {wrong}")
    except TypeError as error:
        refuse_argument("machine", machine, f"{give}: this one is not well formed ({error})")
    _check_rates(checked)


def _check_rates(machine: Machine) -> None:
    """Refuse sizes, rates and costs that no machine has."""
    if not machine.tiers or not all(0 < tier.bytes < 2**62 for tier in machine.tiers):
        raise TightropeError(f"machine {machine.name!r} has no memory: every tier needs 0 < bytes < 2^62.")
    rates = [rate for tier in machine.tiers for rate in (tier.read, tier.write)]
    if not all(0 < rate < math.inf for rate in (*rates, *machine.flops.values())):
        raise TightropeError(f"machine {machine.name!r}: read, write and flops must be finite and > 0.")
    if not 0 <= machine.flash < 2**62:
        raise TightropeError(f"machine {machine.name!r}: flash = {machine.flash} must be 0 <= flash < 2^62.")
    if not all(0 < share <= 1 for share in machine.efficiency.values()):
        raise TightropeError(
            f"machine {machine.name!r}: every share in efficiency must be above 0 and at most 1."
        )
    costs = [cost for tier in machine.tiers for cost in (tier.latency, tier.joules_per_byte, tier.watts)]
    if not all(0 <= cost < math.inf for cost in (*costs, machine.watts)):
        raise TightropeError(
            f"machine {machine.name!r}: latency, joules_per_byte and watts must be finite and >= 0."
        )
    _check_links(machine)
    if not all(0 < tier.alignment <= tier.bytes for tier in machine.tiers):
        raise TightropeError(f"machine {machine.name!r}: every tier needs 0 < alignment <= bytes.")


def _check_links(machine: Machine) -> None:
    """Refuse links and groups that no cluster has."""
    if not 1 <= machine.devices <= 2**20:
        raise TightropeError(f"machine {machine.name!r}: devices = {machine.devices} must be 1 to 2^20.")
    for link in machine.links:
        if not (0 < link.bandwidth < math.inf and 0 <= link.latency < math.inf and link.span >= 0):
            raise TightropeError(
                f"machine {machine.name!r}, link {link.name!r}: bandwidth must be finite and > 0, latency "
                "finite and >= 0, span >= 0."
            )
    if [link.level for link in machine.links] != sorted(link.level for link in machine.links):
        raise TightropeError(f"machine {machine.name!r}: links stand with the innermost level first.")
    for group in machine.groups:
        if len(set(group.ranks)) != len(group.ranks) or not all(
            0 <= r < machine.devices for r in group.ranks
        ):
            raise TightropeError(
                f"machine {machine.name!r}, group {group.name!r}: ranks = {shown(group.ranks)} must be "
                f"devices from 0 to {machine.devices - 1}, each once."
            )


class QualityLimit(msgspec.Struct, frozen=True):
    """Metrics of nets at which an application works: nowhere worse than at one of the corners.

    Attributes:
        metrics: their names, such as ``degrees``; nothing else has an order here.
        rising: for each metric, whether a larger value is worse.
        corners: values of the metrics at which the application worked; none = nothing is allowed.

    Example:
        >>> limit = QualityLimit(("degrees", "accuracy"), (True, False), ((5.0, 0.9), (2.0, 0.8)))
        >>> limit.allows((1.5, 0.85)), limit.allows((4.0, 0.85)), limit.allows((float("nan"), 1.0))
        (True, False, False)
    """

    metrics: tuple[str, ...]
    rising: tuple[bool, ...]
    corners: tuple[tuple[float, ...], ...]

    def allows(self, values: tuple[float, ...]) -> bool:
        """Tell whether values of the metrics, in their order, are nowhere worse than at a corner."""
        if len(values) != len(self.metrics):
            return False
        return any(
            all(v <= c if up else v >= c for v, c, up in zip(values, corner, self.rising, strict=True))
            for corner in self.corners
        )


class Limits(msgspec.Struct, frozen=True):
    """What a plan must keep to.

    Attributes:
        bytes: total bytes per tier, tier 0 first; empty = unlimited.
        seconds: largest time of the step, None = unlimited.
        joules: largest energy of the step, None = unlimited.
        quality: metrics that nets have to reach, None = any.
    """

    bytes: tuple[Bytes, ...] = ()
    seconds: float | None = None
    joules: float | None = None
    quality: QualityLimit | None = None
