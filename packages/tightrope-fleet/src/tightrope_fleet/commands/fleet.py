"""The commands ``fleet``, federated training on many devices, and ``select``, the best under noise."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import Bytes, TightropeError, parse_bytes, printable
from tightrope.core.writing import write_whole
from tightrope_fleet.values.work import broken, promise_table

_FLEET = """\b
Examples:
  tightrope fleet phones.toml --devices 400 --size 26KB --samples 150 --cohort 10 --steps 120
  tightrope fleet phones.toml --step train.py:build --able-limit 0.5 --hours-limit 4 --json
  tightrope fleet phones.toml --mode async --fashion --error-limit 0.25 --page phones.html"""
_SELECT = """\b
Examples:
  tightrope select timings.csv --logs
  tightrope select errors.csv --noise-sd 0.03 --tolerance 0.01 --json
  tightrope select optuna.db --study resnet"""

_SMALL_MODEL: Final[Bytes] = 26_000
"""Bytes of a model of which nothing is said."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("fleet", short_help="Forecast federated training on a fleet, and run it.", epilog=_FLEET)(
        fleet
    )
    app.command("select", short_help="Choose among candidates by noisy measurements.", epilog=_SELECT)(select)


def fleet(
    profile: Annotated[Path, typer.Argument(metavar="FLEET", help="Kinds of devices, TOML.")],
    devices: Annotated[int, typer.Option(min=2, max=100_000, help="Devices of the fleet.")] = 400,
    step: Annotated[
        str | None,
        typer.Option(
            help="A graph, or FILE.py:FUNCTION that returns (model, inputs) or (model, inputs, optimizer). "
            "The step is planned under the bytes of every kind; an optimizer adds its update."
        ),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Bytes of the model, each way; default: those of --step, or 26KB.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of a task.")] = 150,
    mode: Annotated[str, typer.Option(help="sync (FedAvg) or async (FedBuff).")] = "sync",
    cohort: Annotated[int, typer.Option(help="Results that make a step.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps of the server.")] = 120,
    concurrency: Annotated[int, typer.Option(help="Devices that train at any time, async.")] = 20,
    pause: Annotated[
        float, typer.Option(min=0, max=1e6, help="Seconds between rounds, sync: others have come by then.")
    ] = 0,
    hours: Annotated[
        float, typer.Option(min=0.1, max=10_000, help="How long availability is drawn for.")
    ] = 48,
    fashion: Annotated[bool, typer.Option("--fashion", help="Train on Fashion-MNIST, in truth.")] = False,
    hours_limit: Annotated[float | None, typer.Option(help="Virtual hours at most.")] = None,
    bytes_limit: Annotated[str | None, typer.Option(help="Bytes at most, all devices, both ways.")] = None,
    joules_limit: Annotated[float | None, typer.Option(help="Joules of devices at most.")] = None,
    able_limit: Annotated[float | None, typer.Option(help="Share of devices with room, at least.")] = None,
    error_limit: Annotated[
        float | None, typer.Option(help="Share of wrong answers at most, --fashion.")
    ] = None,
    drawing: Annotated[Path | None, typer.Option(help="Write right answers over time here, SVG.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with curves and limits here.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn.")] = 0,
    json: Json = False,
) -> None:
    """Forecast federated training on a fleet: who can take part, time, bytes, energy; or train.

    With --step, a plan decides whether devices have room for the step. Without it, only the weights are
    compared with their memory. Exit code 0: all limits hold; 3: no-go; 2: error.
    """
    from tightrope_fleet.devices.fleet import make_devices, read_fleet

    check_outputs([drawing, page])
    if mode not in ("sync", "async"):
        raise TightropeError(f"--mode {mode!r:.40}: give sync or async.")
    total = None if bytes_limit is None else parse_bytes(bytes_limit, name="--bytes-limit")
    given = None if size is None else parse_bytes(size, name="--size")
    if drawing is not None and not fashion:
        raise TightropeError("--drawing shows what was learnt: add --fashion.")
    _check_cohort(mode, cohort, devices)
    kinds = read_fleet(profile)

    from tightrope_fleet.devices.drawing import draw_curves, fleet_page
    from tightrope_fleet.devices.job import FleetLimits, run_fleet
    from tightrope_fleet.devices.memory import holding_factors
    from tightrope_fleet.devices.rounds import RoundPlan

    limits = FleetLimits(hours_limit, total, joules_limit, error_limit, able_limit)
    made = make_devices(kinds, devices, hours=hours, seed=seed)
    fits, weights = _fits(step, kinds)
    amount = weights if given is None else given
    counts = [samples] * devices
    training = None
    if fashion:
        training, counts = _fashion(devices, samples, seed, every=max(steps // 60, 1))
        amount = 4 * training.shape.size
    plan = RoundPlan(
        mode, cohort, steps, amount, samples, concurrency=concurrency, seed=seed,  # type: ignore[arg-type]
        factors=tuple(fit.factor for fit in fits) or holding_factors(kinds, amount), pause_s=pause,
    )  # fmt: skip
    if sys.stderr.isatty() and fashion:
        sys.stderr.write("training ...\n")
    result = run_fleet(made, counts, plan, limits, fits=fits, training=training)
    if drawing is not None:
        write_whole(drawing, draw_curves({mode: result.curve}))
    if page is not None:
        write_whole(page, fleet_page(result, mode))
    _answer(result, fits, seed, json=json)


def _answer(result: Any, fits: Any, seed: int, *, json: bool) -> None:
    """Print the answer, and leave with the exit code for no-go."""
    go = False if broken(result.promises) else True if fits else None
    if json:
        emit_json(_facts(result, fits, go=go, seed=seed))
    else:
        _say(result, fits, go, seed)
    if go is False:
        raise typer.Exit(DOES_NOT_FIT)


def _say(result: Any, fits: Any, go: bool | None, seed: int) -> None:
    from tightrope.cli.show import rows

    for fit in fits:
        state = (
            "as it is"
            if fit.factor == 1
            else f"planned, {fit.factor:.2f} times as long"
            if fit.factor
            else "no room"
        )
        console().print(f"{fit.kind}: {fit.bytes} bytes, the step takes {fit.whole}: {state}", markup=False)
    rows(console(), ("limit", "asked", "forecast", "observed", "state"), promise_table(result.promises))
    log = result.log
    failed = ", ".join(one.limit for one in broken(result.promises))
    answer = f"no-go, as limits do not hold ({failed})" if failed else "go"
    if go is None:
        answer = "limits hold; whether devices have room for the step is unknown without --step"
    console().print(
        f"{answer}: {log.started} tasks = {log.succeeded} succeeded + "
        f"{log.interrupted} interrupted + "
        f"{log.stale} stale + {log.running} running; seed {seed}, log {log.hash[:16]}"
    )


def _check_cohort(mode: str, cohort: int, devices: int) -> None:
    if mode == "sync" and cohort > devices:
        raise TightropeError(
            f"--cohort {cohort}: the fleet has {devices} devices. Ask for fewer, or raise --devices."
        )


def _facts(result: Any, fits: Any, *, go: bool | None, seed: int) -> dict[str, Any]:
    import msgspec

    tasks = ("started", "succeeded", "interrupted", "stale", "running")
    kinds = ("kind", "bytes", "whole", "planned", "factor")
    return {
        "go": go,
        "seed": seed,
        "log": result.log.hash,
        "promises": msgspec.to_builtins(result.promises),
        "tasks": {name: getattr(result.log, name) for name in tasks},
        "kinds": [{name: getattr(fit, name) for name in kinds} for fit in fits],
    }


def _fits(step: str | None, kinds: Any) -> tuple[Any, Bytes]:
    """Plan a step under the bytes of every kind; give the bytes of its parameters too."""
    if step is None:
        return (), _SMALL_MODEL
    from tightrope.core import Kind
    from tightrope_fleet.commands.step import step_graph_of
    from tightrope_fleet.devices.memory import fit_kinds

    graph = step_graph_of(step)
    return fit_kinds(graph, kinds), sum(one.size for one in graph.storages if one.kind is Kind.PARAMETER)


def _fashion(devices: int, samples: int, seed: int, *, every: int) -> tuple[Any, list[int]]:
    import torch

    from tightrope_fleet.devices.learning import ClientPool, NetShape, read_fashion, share_samples
    from tightrope_fleet.devices.train import FederatedTraining

    (x, y), (xt, yt) = read_fashion(), read_fashion(kind="t10k")
    parts = share_samples(y, devices, 0.1, seed)
    pool = ClientPool(torch.from_numpy(x), torch.from_numpy(y), parts, 10)
    test = torch.from_numpy(xt), torch.from_numpy(yt)
    training = FederatedTraining(NetShape(196, 32, 10), pool, test, samples, every=every, seed=seed)
    return training, [len(part) for part in parts]


def select(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="CSV: candidate, value, predicted, a row per measurement; or Optuna's SQLite or journal.",
        ),
    ],
    study: Annotated[str, typer.Option(help="Name of the study, where a file has several.")] = "",
    noise_sd: Annotated[
        float | None,
        typer.Option(help="Of one measurement, until repeated ones tell; default: 5 % of the middle value."),
    ] = None,
    prior_sd: Annotated[
        float | None, typer.Option(help="Of predictions around the truth; default: 10 % of the middle value.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="How much worse the choice may be; default: 2 % of the middle value."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="At which it is enough.")] = 0.95,
    logs: Annotated[
        bool, typer.Option("--logs", help="Values are positive, errors relative: times.")
    ] = False,
    json: Json = False,
) -> None:
    """Choose among candidates by noisy measurements, lower is better; say what to measure next.

    An empty value means not measured yet. Exit code 0: sure enough; 3: measure on; 2: error.
    """
    import math

    from tightrope_fleet.select import Selector

    found = _measurements(table, study, logs=logs)
    names, prior = found.names, found.prior
    spreads = [noise_sd, prior_sd, tolerance]
    if None in spreads:
        unit = found.scale(logs=logs)
        shares = (0.05, 0.1, 0.02)
        spreads = [part * unit if one is None else one for one, part in zip(spreads, shares, strict=True)]
    noise_sd, prior_sd, tolerance = (float(one or 0) for one in spreads)
    if not 0 < prior_sd < math.inf:
        raise TightropeError(f"--prior-sd {prior_sd:g}: give a number above 0.")
    selector = Selector(
        len(names), prior=prior, prior_sd=prior_sd if prior else math.inf, noise_sd=noise_sd,
        tolerance=tolerance, confidence=confidence, logs=logs, max_looks=10**9,
    )  # fmt: skip
    for candidate, value in found.looks:
        selector.tell(candidate, value)
    chosen, following = selector.choose(), selector.ask()
    more = None if following is None else names[following]
    if json:
        emit_json(
            {
                "choice": names[chosen.candidate], "confidence": chosen.confidence, "looks": chosen.looks,
                "regret_bound": chosen.regret_bound if math.isfinite(chosen.regret_bound) else None,
                "measure": more, "noise_sd": noise_sd, "tolerance": tolerance,
                "num_left_out": found.num_left_out,
            }
        )  # fmt: skip
    else:
        console().print(
            f"{printable(names[chosen.candidate])}: nobody is better by more than {tolerance:g} with "
            f"{chosen.confidence:.1%}, "
            f"after {chosen.looks} measurements"
            + (f"; measure {printable(more)} next" if more else "")
            + (f"; {found.num_left_out} trials without a value were left out" * bool(found.num_left_out)),
            markup=False,
        )
    if more is not None:
        raise typer.Exit(DOES_NOT_FIT)


def _measurements(table: Path, study: str, *, logs: bool) -> Any:
    """Read a CSV table, or a study of Optuna: a database, or a journal."""
    from tightrope.core.files import read_file
    from tightrope_fleet.select.measurements import MAX_TABLE_BYTES, read_measurements
    from tightrope_fleet.select.optuna_study import MAGIC, read_study

    data = read_file(table, limit=8 * MAX_TABLE_BYTES)
    if not data.startswith((MAGIC, b'{"op_code"')):
        if study:
            raise TightropeError(f"--study {study!r:.60} is of Optuna's files, and {str(table)!r} is none.")
        return read_measurements(table, logs=logs)
    found = read_study(table, data, study=study)
    if logs and (found.maximize or min(value for _, value in found.looks) <= 0):
        raise TightropeError("--logs needs values above 0 that are minimized: leave it out.")
    return found
