"""What all plans have in common: every item is somewhere once, on a device that exists and has room."""

from collections.abc import Iterable, Mapping

from tightrope.core import Bytes, JudgeError
from tightrope_assign.values.cluster import Cluster


def check_names(wanted: Iterable[str], placed: Iterable[str], what: str) -> None:
    """Refuse items that are placed twice, not at all, or not known.

    Raises:
        JudgeError: names the item.
    """
    seen: set[str] = set()
    known = set(wanted)
    for name in placed:
        if name not in known:
            raise JudgeError(f"{what} {name!r:.60} is placed and is not among those to place.")
        if name in seen:
            raise JudgeError(f"{what} {name!r:.60} is placed twice.")
        seen.add(name)
    if missing := known - seen:
        raise JudgeError(f"{what} {min(missing)!r:.60} is not placed ({len(missing)} are not).")


def check_devices(cluster: Cluster, placed: Iterable[tuple[str, str]], what: str) -> None:
    """Refuse devices that do not exist.

    Args:
        cluster: the devices.
        placed: item and device.
        what: an item is, for messages.

    Raises:
        JudgeError: names both.
    """
    names = set(cluster.names)
    for item, device in placed:
        if device not in names:
            raise JudgeError(f"{what} {item!r:.60} is on {device!r:.60}, which is not in the cluster.")


def check_bytes(cluster: Cluster, held: Mapping[str, Bytes]) -> None:
    """Refuse devices that hold more than they may.

    Raises:
        JudgeError: names the device and both numbers.
    """
    for device in cluster.devices:
        if device.bytes and held.get(device.name, 0) > device.bytes:
            raise JudgeError(
                f"device {device.name!r:.60} holds {held[device.name]} bytes; its limit is {device.bytes}."
            )


def check_figure(name: str, said: object, found: object) -> None:
    """Refuse a figure that is not what the plan says otherwise.

    Raises:
        JudgeError: names the figure and both values.
    """
    if said != found:
        raise JudgeError(f"the plan says {name} {said}; what follows from it is {found}.")
