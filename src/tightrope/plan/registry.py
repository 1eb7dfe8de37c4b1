"""The planners by name. Adding one = one file and one line here."""

from typing import Final

from tightrope.core import TightropeError
from tightrope.plan.anneal import anneal
from tightrope.plan.chain_revolve import revolve
from tightrope.plan.chain_rotor import rotor
from tightrope.plan.chain_sqrt import sqrt
from tightrope.plan.checkmate import checkmate, checkmate_lp
from tightrope.plan.dtr import dtr
from tightrope.plan.given import given
from tightrope.plan.greedy import greedy
from tightrope.plan.mincut import mincut
from tightrope.plan.moccasin import moccasin, polish
from tightrope.plan.options import Planner
from tightrope.plan.order import order
from tightrope.plan.paging_search import paging
from tightrope.plan.poet import poet
from tightrope.plan.selective import selective
from tightrope.plan.treewidth import treewidth

PLANNERS: Final[dict[str, Planner]] = {
    "given": given,
    "greedy": greedy,
    "anneal": anneal,
    "order": order,
    "moccasin": moccasin,
    "polish": polish,
    "checkmate": checkmate,
    "checkmate-lp": checkmate_lp,
    "treewidth": treewidth,
    "selective": selective,
    "sqrt": sqrt,
    "rotor": rotor,
    "revolve": revolve,
    "dtr": dtr,
    "mincut": mincut,
    "paging": paging,
    "poet": poet,
}

PORTFOLIO: Final = ("given", "greedy", "anneal")
"""What ``planner="auto"`` runs, in this order; each begins from the best plan so far."""


def stages(planner: str) -> tuple[str, ...]:
    """List the planners that a name stands for.

    Raises:
        TightropeError: no planner has that name.
    """
    if planner != "auto" and planner not in PLANNERS:
        raise TightropeError(f"there is no planner {planner!r}; there are: auto, {', '.join(PLANNERS)}.")
    return PORTFOLIO if planner == "auto" else (planner,)
