"""Plans that are known already, by graph.

A plan for some budget is a candidate for every larger one, so with a cache the time of the plans
never rises with the budget.
"""

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from tightrope.core import Bytes, Graph, Limits, Plan, PlanFileError
from tightrope.core.cache import Folder

SMALLEST: Final = "smallest"
"""Under this name the plan with the fewest bytes is stored."""


def graph_key(graph: Graph) -> str:
    """Hash what a plan depends on: fingerprint, alignment, each op's time, allocations, hidden bytes."""
    digest = hashlib.sha256(f"{graph.fingerprint} {graph.alignment}".encode())
    for op in graph.all_ops():
        digest.update(repr((op.ns, op.hidden, [msgspec.structs.astuple(a) for a in op.allocations])).encode())
    return digest.hexdigest()[:32]


def with_budget(plan: Plan, budget: Bytes) -> Plan:
    """Present a plan as an answer to another budget that it fits."""
    assert plan.forecast.total <= budget
    proof = plan.certificate
    held = [numbers.budget for numbers in (proof.cover, proof.stages) if numbers is not None]
    if min(held, default=budget) < budget:
        base = plan.forecast.base_ns
        proof = msgspec.structs.replace(
            proof,
            cover=None,
            stages=None,
            ns_bound=base,
            proved=plan.forecast.ns == base,
            method="single-op floor",
        )
    return msgspec.structs.replace(plan, budget=budget, limits=Limits(bytes=(budget,)), certificate=proof)


class PlanCache:
    """Plans in memory and, with a folder, in JSON files ``<graph>/<planner>-<budget>.json``.

    Args:
        folder: where files are kept; made when the first plan is stored.

    Raises:
        PlanFileError: a file of the folder is not a plan of this version, or cannot be written.
    """

    def __init__(self, folder: str | Path | Folder | None = None) -> None:
        self._folder = Folder(Path(folder)) if isinstance(folder, str | Path) else folder
        self._plans: dict[str, dict[tuple[str, Bytes], Plan]] = {}

    def exact(self, graph: Graph, *, budget: Bytes, planner: str, placed: bool = True) -> Plan | None:
        """Look up the plan that was stored for this very budget and planner."""
        return self._known(graph).get((_label(planner, placed=placed), budget))

    def best(self, graph: Graph, *, budget: Bytes, placed: bool = True) -> Plan | None:
        """Find the fastest known plan, with addresses or without, that takes at most ``budget`` bytes."""
        known = (plan for plan in self._known(graph).values() if plan.placed == placed)
        fitting = [plan for plan in known if plan.forecast.total <= budget]
        return min(fitting, key=lambda plan: (plan.forecast.ns, plan.forecast.total), default=None)

    def least(self, graph: Graph, *, placed: bool = True) -> Plan | None:
        """Find the plan with the fewest bytes that `smallest` found for a graph, if one was stored."""
        label = _label(SMALLEST, placed=placed)
        found = (plan for (name, _), plan in self._known(graph).items() if name == label)
        return min(found, key=lambda plan: plan.forecast.total, default=None)

    def store(self, graph: Graph, plan: Plan, *, planner: str) -> None:
        """Remember a plan, in the folder too where there is one."""
        from tightrope.core.codec import dump_plan

        planner = _label(planner, placed=plan.placed)
        self._known(graph)[planner, plan.budget] = plan
        if self._folder is not None:
            write_file(self._folder / graph_key(graph), f"{planner}-{plan.budget}.json", dump_plan(plan))

    def _known(self, graph: Graph) -> dict[tuple[str, Bytes], Plan]:
        key = graph_key(graph)
        if key not in self._plans:
            self._plans[key] = self._load(key, graph)
        return self._plans[key]

    def _load(self, key: str, graph: Graph) -> dict[tuple[str, Bytes], Plan]:
        return {} if self._folder is None else _read(self._folder / key, graph)


def _label(planner: str, *, placed: bool) -> str:
    return planner if placed else f"live.{planner}"


def _read(folder: Folder, graph: Graph) -> dict[tuple[str, Bytes], Plan]:
    from tightrope.core.codec import load_plan

    plans: dict[tuple[str, Bytes], Plan] = {}
    for name in folder.names():
        planner, _, budget = name.removesuffix(".json").rpartition("-")
        if not (planner and name.endswith(".json")):
            continue
        try:
            plan = load_plan(folder.read(name))
        except OSError:
            continue  # another process dropped it meanwhile, or somebody else can have written it
        if plan.fingerprint != graph.fingerprint or budget != str(plan.budget):
            raise PlanFileError(f"{folder.path / name} is not the plan that its name promises. Delete it.")
        plans[planner, plan.budget] = plan
    return plans


def write_file(folder: Folder, name: str, data: bytes) -> None:
    """Write a file in one go, so that who reads it meanwhile sees the old one or the new one.

    Raises:
        PlanFileError: it cannot be written.
    """
    try:
        folder.write(name, data)
    except OSError as error:
        raise PlanFileError(
            f"could not write {folder.path / name}: {error}. Choose another cache folder."
        ) from error
