"""The command ``export``, without its words."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

from tightrope.cli.planning import Request, plan_source
from tightrope.cli.sources import source_of
from tightrope.cli.target import Built
from tightrope.core import Compute, FingerprintError, Graph, Phase, Plan, parse_bytes
from tightrope.core.writing import write_whole
from tightrope.plan import whole_bytes
from tightrope_export.choose import ChosenForm, Hints, Search, choose
from tightrope_export.costs import measured_costs
from tightrope_export.engines import choose_setting
from tightrope_export.judge import findings
from tightrope_export.peak import Walker
from tightrope_export.play import Player, imported, shown
from tightrope_export.record import record_step
from tightrope_export.values.form import Target
from tightrope_export.write import python_file


def exported(
    target: str, built: Built, plan: Plan | None, budget: str | None, to: str, output: Path, check: bool
) -> dict[str, Any]:
    """Plan where there is no plan, choose a form, write it, and run it where it is to be checked.

    Returns:
        All figures by name, and what of a run was not as promised.

    Raises:
        FingerprintError: the plan was made for another model.
        InfeasibleError: no form holds the budget.
        TightropeError: the model cannot be recorded.
    """
    source = source_of(target)
    if plan is None:
        assert budget is not None
        plan, _ = plan_source(source, Request(budget, "auto", "given", None, 0, None))
    elif plan.fingerprint != source.graph.fingerprint:
        raise FingerprintError(
            f"the plan was made for graph {plan.fingerprint[:12]}, and {target!r:.200} is "
            f"{source.graph.fingerprint[:12]}: plan it again."
        )
    limit = plan.budget if budget is None else parse_bytes(budget, whole=whole_bytes(source.graph))
    call = built.model, built.args, built.kwargs
    tape = record_step(*call)
    walker = Walker(tape, measured_costs(tape, *call))
    hints = hints_of(source.graph, plan)
    if to in ("torchtitan", "megatron"):
        chosen, text = choose_setting(Search(walker, limit, hints), to)
        text = ("[activation_checkpoint]\n" if to == "torchtitan" else "") + text
    else:
        chosen = choose(walker, cast("Target", to), limit, hints)
        text = written(walker, chosen, type(built.model).__name__, output.stem)
    write_whole(output, text.encode())
    row = {"target": to, "budget_bytes": limit} | _figures(chosen, walker, plan)
    if check:
        ran = shown(Player(*call), Player(*call, imported(output).apply))
        row["wrong"] = findings(chosen.promise, ran)
    return row


def _figures(chosen: ChosenForm, walker: Walker, plan: Plan) -> dict[str, Any]:
    promise, said = chosen.promise, plan.forecast
    more, planned = 100 * (promise.ratio - 1), said.tdi_percent
    return {
        "forecast_bytes": promise.total,
        "forecast_peak_bytes": promise.peak,
        "whole_bytes": walker.promise(()).total,
        "more_time_percent": round(more, 2),
        "plan_bytes": said.total,
        "plan_more_time_percent": round(planned, 2),
        "coarser": promise.total > said.total or more > planned,
        "modules": len(chosen.form),
        "results_kept": sum(len(region.saved) for region in chosen.form),
        "regions": [region._asdict() for region in chosen.form],
    }


def written(walker: Walker, chosen: ChosenForm, model: str, stem: str) -> str:
    """The text of a Python file for a form."""
    statistics = {path: [one[:2] for one in walker.statistics(path)] for path, _ in chosen.form}
    return python_file(chosen.form, chosen.promise, statistics, model=model, stem=stem, layers=chosen.layers)


def hints_of(graph: Graph, plan: Plan) -> Hints:
    """What a plan computes again, and what it keeps for the backward."""
    base = {op.variant: op.id for op in graph.ops if op.variant >= 0}
    steps = [step.op for step in plan.schedule.steps if isinstance(step, Compute)]
    again = {op for op, times in Counter(base.get(op, op) for op in steps).items() if times > 1}
    names = [(op.module, op.target) for op in graph.ops]
    computed = frozenset(names[op] for op in again)
    late = {storage for op in graph.ops if op.phase is Phase.BACKWARD for storage in op.reads}
    kept = {op.id for op in graph.ops if op.id not in again and not late.isdisjoint(op.creates)}
    return Hints(computed, frozenset(names[op] for op in kept) - computed)
