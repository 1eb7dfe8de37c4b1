"""Scenarios and machines in TOML files: those of XRBench come with the package, others from the user.

[[scenarios]]
name = "kitchen"
models = [{ name = "ears", fps = 10 }, { name = "eyes", fps = 30, after = ["ears"], probability = 0.5 }]

[[machines]]
name = "board"
processors = ["big", "little"]      # names of kinds; the same kind may be there twice
arena = 8388608                     # bytes that weights and activations share; 0 or nothing: no limit

[kinds.big]
ears = { ns = 2000000, mj = 1.5 }
eyes = { ns = 9000000 }
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import msgspec

from tightrope.core import Bytes, TightropeError
from tightrope.core.arguments import check_path
from tightrope.core.toml_text import from_toml
from tightrope_fleet.values.streams import (
    ModelCost,
    StreamMachine,
    StreamProcessor,
    StreamScenario,
    check_streams,
)

_MOST_BYTES: Bytes = 4 * 2**20
_T = TypeVar("_T")


class _MachineText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    processors: tuple[str, ...]
    arena: Bytes = 0
    page_rate: float = 1e9


class _LibraryText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenarios: tuple[StreamScenario, ...] = ()
    machines: tuple[_MachineText, ...] = ()
    kinds: dict[str, dict[str, ModelCost]] = {}


@dataclass(frozen=True, slots=True)
class StreamLibrary:
    """Scenarios and machines by name."""

    scenarios: dict[str, StreamScenario]
    machines: dict[str, StreamMachine]

    def scenario(self, name: str) -> StreamScenario:
        """Find a scenario.

        Raises:
            TightropeError: there is none of that name.
        """
        return _find(name, "scenario", self.scenarios)

    def machine(self, name: str) -> StreamMachine:
        """Find a machine.

        Raises:
            TightropeError: there is none of that name.
        """
        return _find(name, "machine", self.machines)


@cache
def xrbench() -> StreamLibrary:
    """Read the seven scenarios and six machines of XRBench that come with the package.

    Example:
        >>> sorted(xrbench().machines)[0], len(xrbench().scenarios)
        ('Dual_4K-WS_OS', 7)
    """
    return parse_library(
        (files("tightrope_fleet.streams") / "xrbench.toml").read_text("utf-8"), "xrbench.toml"
    )


def read_library(path: str | Path) -> StreamLibrary:
    """Read scenarios and machines from a TOML file of at most 4 MiB.

    Raises:
        TightropeError: there is no such file, or something in it cannot be; says what and where.
    """
    check_path(path, "the path of a TOML file with scenarios and machines")
    file = Path(path)
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        raise TightropeError(f"no scenarios at {str(path)!r}: give a TOML file of at most 4 MiB.")
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TightropeError(f"{str(path)!r} cannot be read: {error}. Give a TOML file in UTF-8.") from error
    return parse_library(text, str(path))


def parse_library(text: str, name: str) -> StreamLibrary:
    """Read scenarios and machines from text; ``name`` is what messages call it.

    Raises:
        TightropeError: something in it cannot be.

    Example:
        >>> list(parse_library("[kinds.cpu]", "s.toml").scenarios)
        []
    """
    try:
        read = from_toml(text, _LibraryText, name)
    except TightropeError as error:
        raise TightropeError(
            f"{error} A file of scenarios has [[scenarios]] with name and models, [[machines]] "
            "with name and processors, and [kinds.NAME] with costs."
        ) from error
    try:
        for scenario in read.scenarios:
            check_streams(scenario)
        machines = [_machine(one, read.kinds) for one in read.machines]
    except TightropeError as error:
        raise TightropeError(f"{name}: {error}") from error
    return StreamLibrary({one.name: one for one in read.scenarios}, {one.name: one for one in machines})


def _machine(text: _MachineText, kinds: dict[str, dict[str, ModelCost]]) -> StreamMachine:
    for kind in text.processors:
        if kind not in kinds:
            raise TightropeError(
                f"machine {text.name!r:.60}: processor {kind!r:.60} has no costs; add [kinds.{kind}], or "
                "take one of: "
                f"{', '.join(kinds) or 'none'}."
            )
    processors = tuple(
        StreamProcessor(f"{kind}#{at}" if text.processors.count(kind) > 1 else kind, kinds[kind])
        for at, kind in enumerate(text.processors)
    )
    return StreamMachine(text.name, processors, text.arena, text.page_rate)


def _find(name: str, what: str, known: dict[str, _T]) -> _T:
    if name not in known:
        raise TightropeError(f"no {what} is called {name!r:.60}; there are: {', '.join(known) or 'none'}.")
    return known[name]
