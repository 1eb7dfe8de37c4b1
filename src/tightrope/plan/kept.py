"""Plans that outlive the process, so that the next one with the same graphs need not search.

Idea        One folder per seed, below it one per graph, as `PlanCache` keeps them, beside the prices that
            the graphs were priced with. Another price, shape or version of torch is another graph.
Guarantee   What is read is parsed with a schema, and judged, its figures too, before anything relies on it.
            Nothing that is wrong with a file stops a step: all that is kept of the graph is deleted with a
            warning, and planned anew.
Gaps        Plans of an earlier version of the search stay in use until they are deleted.
"""

import os
import warnings
from pathlib import Path
from typing import Final

from tightrope.core import Bytes, Graph, Plan, PlanFileError, TightropeError
from tightrope.core.cache import ADVICE, Folder, own_folder, warn_once
from tightrope.core.cache import VARIABLE as CACHE
from tightrope.lower import problems
from tightrope.plan.cache import PlanCache, graph_key, with_budget
from tightrope.plan.model import pairs_of

_MOST_PLANS: Final = 24
"""Plans of one graph that are kept: each takes some milliseconds to read."""
_MOST_GRAPHS: Final = 256
SPARE: Final = 16
"""A plan is made anew where more than this part of its arena would be unused."""
_LAYOUT: Final = 1
"""Version of what is kept."""
VARIABLE: Final = "TIGHTROPE_PLANS"
"""Names another folder; ``off`` = plans die with the process."""


def plans_folder() -> Folder | None:
    """Find the folder in which plans are kept, or None."""
    chosen = os.environ.get(VARIABLE, "")
    if not chosen:
        own = own_folder()
        return None if own is None else own / "plans"
    if chosen == "off":
        return None
    folder = Folder(Path(chosen))
    if why := folder.refusal():
        warn_once(f"{why}: no plans are kept. {ADVICE.replace(CACHE, VARIABLE)}")
        return None
    return folder


class KeptPlans(PlanCache):
    """A cache of plans on disk that a running step may rely on.

    Args:
        seed: of the search; plans of other seeds are others.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
        >>> KeptPlans(0).exact(graph, budget=1, planner="auto") is None
        True
    """

    def __init__(self, seed: int) -> None:
        folder = plans_folder()
        super().__init__(None if folder is None else folder / f"{_LAYOUT}-{seed}")
        self._read_from_disk: set[str] = set()
        self._judged: dict[int, Plan] = {}

    def store(self, graph: Graph, plan: Plan, *, planner: str) -> None:
        """Remember a plan; a folder that cannot be written only costs the next process its time."""
        try:
            super().store(graph, plan, planner=planner)
        except PlanFileError:
            return
        if self._folder is not None:
            (self._folder / graph_key(graph)).drop_oldest(_MOST_PLANS)
            self._folder.drop_oldest(_MOST_GRAPHS)

    def exact(self, graph: Graph, *, budget: Bytes, planner: str, placed: bool = True) -> Plan | None:
        """Look up the plan that was stored for this very budget and planner, if it is sound."""
        return self._sound(graph, super().exact(graph, budget=budget, planner=planner, placed=placed))

    def close(self, graph: Graph, *, budget: Bytes, planner: str) -> Plan | None:
        """Find a kept plan that does instead of a search at this budget, for a bucket of shapes.

        Processes hold a little more or less when they plan. The fastest kept plan that fits does where one of
        them was made for as many bytes, almost as many, or more, or runs every op once. *Almost*: of what was
        added, at most a 16th of its arena would be unused, as with the plans of one process.

        Returns:
            A judged plan of at most ``budget`` bytes. It keeps its bound on time where that holds at this
            budget, else has that of running every op once. None = search.
        """
        known = self._known(graph)
        if graph_key(graph) not in self._read_from_disk:
            return None
        fitting = [
            plan
            for (name, _), plan in known.items()
            if name == planner and plan.placed and plan.forecast.total <= budget
        ]
        if not any(
            plan.forecast.ns <= plan.forecast.base_ns or (budget - plan.budget) * SPARE <= plan.forecast.arena
            for plan in fitting
        ):
            return None
        fastest = min(fitting, key=lambda plan: (plan.forecast.ns, plan.forecast.total))
        found = self._sound(graph, fastest)
        return None if found is None else with_budget(found, budget)

    def best(self, graph: Graph, *, budget: Bytes, placed: bool = True) -> Plan | None:
        """Find the fastest known plan that takes at most ``budget`` bytes, if it is sound."""
        return self._sound(graph, super().best(graph, budget=budget, placed=placed))

    def least(self, graph: Graph, *, placed: bool = True) -> Plan | None:
        """Find the plan that `smallest` found for a graph, if it was stored and is sound."""
        return self._sound(graph, super().least(graph, placed=placed))

    def _sound(self, graph: Graph, plan: Plan | None) -> Plan | None:
        """Let a plan that was read from disk be judged before anything relies on its figures."""
        if plan is None or graph_key(graph) not in self._read_from_disk or id(plan) in self._judged:
            return plan
        try:
            wrong = problems(graph, plan)
            pairs_of(graph, plan.schedule)
        except TightropeError as error:
            wrong = [str(error)]
        if wrong:
            self.forget(graph, wrong[0])
            return None
        self._judged[id(plan)] = plan
        return plan

    def forget(self, graph: Graph, why: str) -> bool:
        """Delete what is kept of a graph if something was read from disk, and tell whether it was."""
        key = graph_key(graph)
        if key not in self._read_from_disk or self._folder is None:
            return False
        said = f"tightrope: a plan in {self._folder.path / key} is of no use and was deleted: {why}"
        warnings.warn(said, stacklevel=2)
        self._folder.remove(key)
        self._read_from_disk.discard(key)
        self._plans[key] = {}
        return True

    def _load(self, key: str, graph: Graph) -> dict[tuple[str, int], Plan]:
        try:
            found = super()._load(key, graph)
        except PlanFileError as error:
            self._read_from_disk.add(key)
            self.forget(graph, str(error))
            return {}
        if found:
            self._read_from_disk.add(key)
        return found
