"""Plan files with their graphs, judged before anything is said about them."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tightrope.core import Graph, JudgeError, Machine, Plan, TightropeError
from tightrope.core.arguments import check_folder


class Sound(NamedTuple):
    """A plan that holds, its graph, and the machine that it was judged on, if any."""

    graph: Graph
    plan: Plan
    machine: Machine | None


def graph_beside(plan: Path) -> Path | None:
    """NAME.graph.json beside NAME.plan.json, where it exists."""
    if not plan.name.endswith(".plan.json"):
        return None
    path = plan.with_name(plan.name.removesuffix(".plan.json") + ".graph.json")
    return path if path.is_file() else None


def machine_of(plan: Plan, given: str | None) -> Machine | None:
    """The machine given, else the profile that the plan names, if there is one of that name."""
    from tightrope.cli.machines import find_machine, names

    known = plan.machine if given is None and plan.machine in names() else given
    return None if known is None else find_machine(known)


def read_sound(path: Path, graph: Path | None = None, machine: str | None = None) -> Sound:
    """Read a plan and its graph, and judge them.

    Args:
        path: of the plan file.
        graph: of its graph's file; default: the one beside it.
        machine: needed by plans that page; default: the profile that the plan names.

    Raises:
        JudgeError: the plan does not hold.
        TightropeError: there is no graph, or a file cannot be read.
    """
    return sound_of(Plan.load(path), path, graph, machine)


def sound_of(plan: Plan, path: Path, graph: Path | None = None, machine: str | None = None) -> Sound:
    """Read the graph of a plan that was read from ``path``, and judge them; see `read_sound`."""
    from tightrope.formats import read_source
    from tightrope.lower import problems

    known = graph or graph_beside(path)
    if known is None:
        raise TightropeError(f"a plan needs its graph here: add --graph FILE for {str(path)!r}.")
    found = Sound(read_source(known).graph, plan, machine_of(plan, machine))
    wrong = problems(*found)
    if wrong:
        more = f" (and {len(wrong) - 1} more: tightrope judge lists them)" if len(wrong) > 1 else ""
        raise JudgeError(f"{str(path)!r} does not hold for {str(known)!r}: {wrong[0]}{more}")
    return found


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to write over a file that is read, twice to one file, or into a folder that does not exist.

    Raises:
        TightropeError: names the file or the folder.
    """
    outputs = list(outputs)
    for path in outputs:
        if path is not None:
            check_folder(path)
    read = {os.path.realpath(path) for path in inputs if path is not None}  # also of a link to itself
    written: set[str] = set()
    for path in outputs:
        if path is None:
            continue
        if (place := os.path.realpath(path)) in read:
            raise TightropeError(f"{str(path)!r} is read and would be overwritten: write to another file.")
        if place in written and Path(place) != Path(os.devnull):
            raise TightropeError(f"{str(path)!r} is given for two outputs: write to another file.")
        written.add(place)
