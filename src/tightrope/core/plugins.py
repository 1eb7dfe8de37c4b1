"""What other distributions add, which is found by entry points and imported when it is asked for.

A group of entry points stands for a kind of thing, such as ``tightrope.commands``. A name in it is what the
thing is called, and its value names an object::

    [project.entry-points."tightrope.planners"]
    checkmate = "tightrope_planners.peers.checkmate:checkmate"
"""

import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any

from tightrope.core.errors import NativeError, TightropeError
from tightrope.core.units import printable


def installed(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """List what installed distributions add, by name; more than one of a name is a mistake."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in importlib.metadata.entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return dict(sorted(found.items()))


def owner(entry: EntryPoint) -> str:
    """Name the distribution that adds something."""
    return printable(entry.dist.name) if entry.dist is not None else "a package without a name"


def loaded(what: str, entries: tuple[EntryPoint, ...]) -> Any:
    """Import what a name stands for.

    Args:
        what: is loaded, in words, for messages.
        entries: of its name.

    Raises:
        TightropeError: several distributions add it, or it does not load.
    """
    owners = [owner(entry) for entry in entries]
    if len(owners) > 1:
        raise TightropeError(f"{what} is of {' and of '.join(owners)}: uninstall all of them but one.")
    try:
        return entries[0].load()
    except (ImportError, AttributeError) as error:
        raise TightropeError(
            f"{what} of {owners[0]} does not load ({error}): install {owners[0]} again."
        ) from error


def absent(what: str, extra: str) -> TightropeError:
    """Say what to install for something that is not here.

    Args:
        what: is missing, in words.
        extra: of tightrope that brings it.
    """
    return TightropeError(f"{what} is part of tightrope-{extra}: pip install 'tightrope[{extra}]'.")


def in_python(name: str, why: str) -> Any:
    """Load what serves without a native part.

    Args:
        name: in the group ``tightrope.in_python``.
        why: the native part is missing.

    Raises:
        NativeError: no distribution adds it.
    """
    entries = installed("tightrope.in_python").get(name, ())
    if not entries:
        raise NativeError(f"{why} Or pip install 'tightrope[planners]', whose search in Python needs none.")
    return loaded(f"the {name} in Python", entries)
