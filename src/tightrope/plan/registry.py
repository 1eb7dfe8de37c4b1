"""The planners by name. Adding one = one file and one line here."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, cast

from tightrope.core import TightropeError
from tightrope.core.units import shown
from tightrope.plan.options import Planner

_WHERE: Final = {
    "given": "given:given",
    "greedy": "greedy:greedy",
    "anneal": "anneal:anneal",
    "order": "order:order",
    "moccasin": "peers.moccasin:moccasin",
    "polish": "peers.moccasin:polish",
    "checkmate": "peers.checkmate:checkmate",
    "checkmate-lp": "peers.checkmate:checkmate_lp",
    "treewidth": "peers.treewidth:treewidth",
    "selective": "peers.selective:selective",
    "sqrt": "peers.sqrt:sqrt",
    "rotor": "peers.rotor:rotor",
    "revolve": "peers.revolve:revolve",
    "dtr": "peers.dtr:dtr",
    "mincut": "peers.mincut:mincut",
    "paging": "paging.search:paging",
    "poet": "peers.poet:poet",
}


class _Registry(Mapping[str, Planner]):
    """Planners that are imported when they are asked for: most need a solver that takes long to load."""

    def __getitem__(self, name: str) -> Planner:
        module, _, function = _WHERE[name].partition(":")
        return cast(Planner, getattr(import_module(f"tightrope.plan.{module}"), function))

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


PLANNERS: Final[Mapping[str, Planner]] = _Registry()

PORTFOLIO: Final = ("given", "greedy", "anneal")
"""What ``planner="auto"`` runs, in this order; each begins from the best plan so far."""


def members(planner: str) -> tuple[str, ...]:
    """List the planners that a name stands for.

    Raises:
        TightropeError: no planner has that name.
    """
    if not isinstance(planner, str) or (planner != "auto" and planner not in PLANNERS):
        raise TightropeError(f"there is no planner {shown(planner)}; there are: auto, {', '.join(PLANNERS)}.")
    return PORTFOLIO if planner == "auto" else (planner,)
