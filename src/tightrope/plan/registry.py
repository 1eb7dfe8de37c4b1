"""The planners by name: those that the default search needs, then those of plug-ins.

A planner of another distribution is an entry point of the group ``tightrope.planners``. Its value names a
function as `Planner` describes it. A planner of the core has precedence over one of the same name.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, cast

from tightrope.core import TightropeError
from tightrope.core.plugins import absent, installed, loaded
from tightrope.core.units import shown
from tightrope.plan.options import Planner

GROUP: Final = "tightrope.planners"

_WHERE: Final = {
    "given": "greedy:given",
    "greedy": "greedy:greedy",
    "anneal": "anneal:anneal",
    "paging": "paging.search:paging",
}
KNOWN: Final = (
    "order",
    "moccasin",
    "polish",
    "checkmate",
    "checkmate-lp",
    "treewidth",
    "selective",
    "sqrt",
    "rotor",
    "revolve",
    "dtr",
    "mincut",
    "poet",
)
"""Planners of the distribution tightrope-planners, installed or not."""


class _Registry(Mapping[str, Planner]):
    """Planners that are imported when they are asked for: most need a solver that takes long to load."""

    def __getitem__(self, name: str) -> Planner:
        if name in _WHERE:
            module, _, function = _WHERE[name].partition(":")
            return cast(Planner, getattr(import_module(f"tightrope.plan.{module}"), function))
        return cast(Planner, loaded(f"the planner {name}", installed(GROUP)[name]))

    def __contains__(self, name: object) -> bool:
        return name in _WHERE or name in installed(GROUP)

    def __iter__(self) -> Iterator[str]:
        others = installed(GROUP)
        known = [name for name in KNOWN if name in others]
        yield from dict.fromkeys([*_WHERE, *known, *others])

    def __len__(self) -> int:
        return len(list(iter(self)))


PLANNERS: Final[Mapping[str, Planner]] = _Registry()

PORTFOLIO: Final = ("given", "greedy", "anneal")
"""What ``planner="auto"`` runs, in this order; each begins from the best plan so far."""


def members(planner: str) -> tuple[str, ...]:
    """List the planners that a name stands for.

    Raises:
        TightropeError: no planner has that name, or its plug-in is not installed.
    """
    if isinstance(planner, str) and (planner == "auto" or planner in PLANNERS):
        return PORTFOLIO if planner == "auto" else (planner,)
    if isinstance(planner, str) and planner in KNOWN:
        raise absent(f"planner {planner}", "planners")
    raise TightropeError(f"there is no planner {shown(planner)}; there are: auto, {', '.join(PLANNERS)}.")
