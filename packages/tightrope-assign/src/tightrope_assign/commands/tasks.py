"""The command ``place-tasks``: where and when the tasks of a graph run."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tightrope.cli.output import console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import JudgeError, TightropeError, format_bytes
from tightrope.core.units import format_time
from tightrope.core.writing import write_whole

_EPILOG: Final = """\b
Examples:
  tightrope place-tasks graph.json --cluster cluster.toml
  tightrope place-tasks graph.json --cluster cluster.toml --method exact -o plan.json --page plan.html
  tightrope place-tasks graph.json --cluster cluster.toml --replaces plan.json --without d3 --json"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("place-tasks", short_help="Place tasks that wait for each other.", epilog=_EPILOG)(
        place_tasks
    )


def place_tasks(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="JSON file with tasks and edges.")],
    cluster: Annotated[Path, typer.Option(help="TOML file with devices and links, or a machine profile.")],
    method: Annotated[str, typer.Option(help="auto, heft, search, exact or policy.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.01, max=86_400, help="Of the search and CP-SAT.")] = 10.0,
    policy: Annotated[
        Path | None, typer.Option(help="A trained policy; default: the one that is included.")
    ] = None,
    replaces: Annotated[
        Path | None, typer.Option(help="Plan of before: tasks stay where that costs no time.")
    ] = None,
    without: Annotated[str, typer.Option(help="Devices that are lost, apart by commas.")] = "",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything random.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with devices over time here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decide where and when each task runs, within the bytes of every device, and judge the plan.

    Exit code 0: every task has a place; 3: no assignment within the bytes was found; 2: error.
    """
    check_outputs([output, page], [graph, cluster, policy, replaces])
    if policy is not None and method != "policy":
        raise TightropeError(f"--policy {str(policy)!r:.200} is read by --method policy only: give both.")
    from tightrope_assign.judge.tasks import check_task_plan
    from tightrope_assign.tasks import TaskOptions
    from tightrope_assign.tasks import place_tasks as place
    from tightrope_assign.tasks.show import device_rows, task_page
    from tightrope_assign.values.cluster import read_cluster
    from tightrope_assign.values.files import read_value, write_value
    from tightrope_assign.values.tasks import TaskGraph, TaskPlan, check_tasks

    tasks = read_value(graph, TaskGraph, "task graph")
    whole = read_cluster(cluster)
    old = None
    if replaces is not None:
        old = read_value(replaces, TaskPlan, "task plan")
        check_tasks(tasks, whole)  # the judge takes graphs that can be
        try:
            check_task_plan(tasks, whole, old)
        except JudgeError as error:
            raise JudgeError(f"{str(replaces)!r} does not hold for {str(graph)!r}: {error}") from error
    left = whole.without([name.strip() for name in without.split(",")]) if without else whole
    options = TaskOptions(method=method, seconds=seconds, policy=str(policy or ""), seed=seed)
    plan = place(tasks, left, options=options, replaces=old)
    check_task_plan(tasks, left, plan, replaces=old)
    if output is not None:
        write_whole(output, write_value(plan))
    if page is not None:
        write_whole(page, task_page(tasks, left, plan))
    if json:
        emit_json({"plan": plan, "gap": plan.gap, "devices": device_rows(tasks, left, plan)})
    else:
        _say(plan, device_rows(tasks, left, plan))


def _say(plan: Any, rows: list[dict[str, Any]]) -> None:
    from tightrope_assign.page import row_lines

    show = console()
    best = "proved best by CP-SAT" if plan.proved else f"no plan ends before {format_time(plan.lower_bound)}"
    moved = f"; {format_bytes(plan.moved_bytes)} move" if plan.moved_bytes else ""
    show.print(
        f"{len(plan.placed)} tasks on {len(rows)} devices by {plan.planner}: "
        f"{format_time(plan.makespan)}; {best}{moved}; judged; seed {plan.seed}",
        markup=False,
        soft_wrap=True,
    )
    for line in row_lines(rows, "tasks"):
        show.print(line, markup=False, soft_wrap=True)
