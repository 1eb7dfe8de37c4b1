"""The command ``streams``: which frame runs on which processor before its deadline."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import TightropeError, parse_bytes
from tightrope.core.writing import write_whole
from tightrope_fleet.values.work import broken, promise_table

_EPILOG = """\b
Examples:
  tightrope streams VR_gaming Dual_8K-WS_OS
  tightrope streams AR_gaming Dual_8K-WS_OS --policy latency --rules compatible --json
  tightrope streams VR_gaming Quad_8K-WS_OS_WS_OS --arena 200MB --page-rate 20GB --page timeline.html
  tightrope streams kitchen board --file kitchen.toml --at-least 90
  tightrope streams list"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("streams", short_help="Plan streams of frames with deadlines.", epilog=_EPILOG)(streams)


def streams(
    scenario: Annotated[str, typer.Argument(help="The name of a scenario, or list: print all.")],
    machine: Annotated[str, typer.Argument(help="The name of a machine.")] = "",
    file: Annotated[
        Path | None, typer.Option(help="TOML file with scenarios and machines; default: XRBench's.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="search, or a rule: latency (the reference's), energy-delay, deadline.")
    ] = "search",
    rules: Annotated[str, typer.Option(help="strict, or compatible with XRBench's reference.")] = "strict",
    arena: Annotated[
        str | None, typer.Option(help="Bytes that weights and activations share, such as 200MB.")
    ] = None,
    page_rate: Annotated[
        str | None, typer.Option(help="Bytes per second of weights that come in, such as 20GB.")
    ] = None,
    horizon: Annotated[float, typer.Option(min=1, max=1e6, help="Length of the run, ms.")] = 700.0,
    moves: Annotated[
        int, typer.Option(min=0, max=10**8, help="Effort of the search, plans tried.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the search and of the requests.")] = 0,
    at_least: Annotated[float | None, typer.Option(min=0, max=100, help="Score to reach.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write plan and run here as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with the timeline here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan where and when frames run, and which are dropped; simulate and judge the plan.

    Exit code 0: within the arena, and --at-least is reached; 3: not; 2: error.
    """
    check_outputs([output, page], [file])
    import msgspec

    from tightrope_fleet.streams import POLICIES, read_library, xrbench
    from tightrope_fleet.streams.show import stream_promises

    library = xrbench() if file is None else read_library(file)
    if scenario == "list" and not machine:
        _list(library, json)
        return
    asked = library.scenario(scenario)
    if rules not in ("strict", "compatible"):
        raise TightropeError(f"--rules {rules!r:.40}: take strict or compatible.")
    if policy != "search" and policy not in POLICIES:
        raise TightropeError(f"--policy {policy!r:.40}: take search, {', '.join(POLICIES)}.")
    if not machine:
        raise TightropeError(
            f"no machine is given for {scenario!r:.40}: write one behind it: {', '.join(library.machines)}."
        )
    board = library.machine(machine)
    if arena is not None:
        board = msgspec.structs.replace(board, arena=parse_bytes(arena, name="--arena"))
    if page_rate is not None:
        board = msgspec.structs.replace(board, page_rate=float(parse_bytes(page_rate, name="--page-rate")))
    chosen: Literal["strict", "compatible"] = "compatible" if rules == "compatible" else "strict"
    case, plan, run, total = _solve(asked, board, chosen, policy, (round(horizon * 1e6), moves, seed))
    promises = stream_promises(board, total, run, plan=plan, least=at_least)
    if output is not None:
        write_whole(output, msgspec.json.encode({"plan": plan, "run": run}))
    if page is not None:
        write_whole(page, _page(case.scenario, board, run, total, promises))
    bound = plan.upper_bound if plan else None
    if json:
        facts = {"scenario": scenario, "machine": machine, "rules": rules, "policy": policy, "seed": seed}
        figures = {"score": total.total, "upper_bound": bound, "models": total.models, "promises": promises}
        emit_json({**facts, **figures})
    else:
        _say(scenario, machine, total, promises, bound, seed)
    if broken(promises):
        raise typer.Exit(DOES_NOT_FIT)


def _page(scenario: Any, machine: Any, run: Any, total: Any, promises: Any) -> str:
    """Draw the timeline, above the promises and each model's figures."""
    from tightrope_fleet.streams.show import draw_streams
    from tightrope_shared.draw import work_page

    rows = [[one.name, f"{one.score:.2f}", str(one.num_done), str(one.num_dropped)] for one in total.models]
    return work_page(
        f"{scenario.name} on {machine.name}",
        [("Timeline", draw_streams(scenario, machine, run))],
        [
            ("Promises", ("limit", "asked", "forecast", "observed", ""), promise_table(promises)),
            ("Models", ("model", "score", "done", "dropped"), rows),
        ],
    )


def _solve(
    scenario: Any,
    machine: Any,
    rules: Literal["strict", "compatible"],
    policy: str,
    effort: tuple[int, int, int],
) -> tuple[Any, Any, Any, Any]:
    """Expand, plan or apply a policy, simulate, judge."""
    from tightrope_fleet.judge.streams import check_stream_plan, check_stream_run
    from tightrope_fleet.streams import (
        POLICIES,
        StreamOptions,
        expand,
        plan_streams,
        run_plan,
        score,
        simulate,
    )

    horizon, moves, seed = effort
    case = expand(scenario, machine, rules=rules, horizon=horizon, seed=seed)
    plan = None
    if policy == "search":
        plan = plan_streams(case, options=StreamOptions(moves=moves, seed=seed), progress=_progress())
        run = run_plan(case, plan)
        check_stream_plan(scenario, machine, plan, run)
    else:
        run = simulate(case, POLICIES[policy](case))
        check_stream_run(scenario, machine, run)
    return case, plan, run, score(scenario, run)


def _progress() -> Callable[[float, float], None] | None:
    """A line on standard error while plans are tried, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(share: float, best: float) -> None:
        sys.stderr.write(f"\r{100 * share:.0f} % of the effort, score {best:.2f} \x1b[K")
        sys.stderr.flush()

    return show


def _list(library: Any, json: bool) -> None:
    if json:
        emit_json({"scenarios": list(library.scenarios.values()), "machines": list(library.machines)})
        return
    for scenario in library.scenarios.values():
        models = ", ".join(f"{model.name} {model.fps:g}" for model in scenario.models)
        console().print(f"{scenario.name}: {models}", markup=False, soft_wrap=True)
    console().print(f"machines: {', '.join(library.machines)}", markup=False, soft_wrap=True)


def _say(scenario: str, machine: str, total: Any, promises: Any, bound: float | None, seed: int) -> None:
    show = console()
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    above = "" if bound is None else f"; no plan scores more than {bound:.2f}"
    show.print(f"{scenario} on {machine}: score {total.total:.2f}{above}; judged; seed {seed}", markup=False)
    for one in total.models:
        show.print(
            f"  {one.name}: {one.score:.2f}; {one.num_done} done, {one.num_dropped} dropped, "
            f"{one.num_open} open; "
            f"real-time {one.realtime:.3f}, energy {one.energy:.3f}",
            markup=False,
            soft_wrap=True,
        )
    for limit, asked, forecast, observed, holds in promise_table(promises):
        if asked != "-":
            show.print(f"  {limit} {asked}: forecast {forecast}, observed {observed}: {holds}", markup=False)
