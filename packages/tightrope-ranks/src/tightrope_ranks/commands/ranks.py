"""The command ``ranks``: layout, schedule, bytes and time per rank, without running anything."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tightrope.cli import show
from tightrope.cli.asked import STATES, check_asked
from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import InfeasibleError, Machine, TightropeError, format_bytes, format_time
from tightrope.core.units import shown
from tightrope.core.writing import write_whole

if TYPE_CHECKING:
    from tightrope_ranks.pipeline.estimate import RanksEstimate
    from tightrope_ranks.pipeline.expert_costs import ExpertsTold

_EXAMPLES: Final = """\b
Examples:
  tightrope ranks layers.py:build --ranks 64 --machine cluster.toml --budget 40GiB
  tightrope ranks layers.py:build --ranks 64 --machine cluster.toml --pipeline 8 --sharded --json
  tightrope ranks layers.py:build --ranks 64 --machine cluster.toml --page ranks.html
  tightrope ranks train.py:build --ranks 512 --machine cluster.toml --tensor any --torchtitan run.toml"""
_EIGHT_BIT: Final = {"adam8bit": "adam", "adamw8bit": "adamw"}
"""Optimizers that keep a byte per element of each state."""
PRECISION_NAMES: Final = ("model", "fp32", "bf16", "bf16-fp32-gradients", "autocast")
"""Read before torch is imported."""
DIMENSIONS: Final = "pipeline x replicas x context x tensor"
NOTE: Final = (
    "times are modelled and not measured: the profile's rates, or the shares of them that its efficiency "
    "says, a backward twice its forward, of fused attention 2.5 times; gradients of replicas are summed in "
    "one ring per layer, over the slowest link that a group spans, once a step, or per micro-batch where "
    "layers are gathered; kept tensors are exact, the kernels' own work space, a loss outside the model and "
    "the update are not included"
)


@dataclass(frozen=True, slots=True)
class AskedRanks:
    """What is asked about a step on many ranks; see `tightrope_ranks.estimate`."""

    target: str
    ranks: int
    machine: Machine | None
    budget: str | None
    optimizer: str
    pipeline: int | None
    micro_batches: int | None
    sharded: bool
    page: Path | None = None
    precision: str = "model"
    tensor: int | None = 1
    context: int | None = 1
    torchtitan: Path | None = None
    expert: int | None = 1


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("ranks", short_help="Forecast a training step on many ranks.", epilog=_EXAMPLES)(ranks)


def ranks(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns (model, inputs).")
    ],
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="Plan for so many ranks; budget: per rank.")],
    machine: Annotated[
        str | None,
        typer.Option(help="A profile or a TOML file, with devices, [[links]] and [flops]; needed here."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Bytes of a rank; default: the machine's memory.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="none, sgd, momentum, adam[w] or adam[w]8bit: its state counts.")
    ] = "adamw",
    precision: Annotated[
        str, typer.Option(help="model, fp32, bf16, bf16-fp32-gradients or autocast: types of the step.")
    ] = "model",
    pipeline: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of the ranks for stages; the rest: replicas.")
    ] = None,
    tensor: Annotated[
        str, typer.Option(help="Ranks that divide every layer, as 8; any: what is fastest in a node.")
    ] = "1",
    context: Annotated[
        str, typer.Option(help="Ranks that divide the sequence, as 2; any: what is fastest.")
    ] = "1",
    expert: Annotated[
        str, typer.Option(help="Ranks that divide experts, of the replicas, as 8; any: what is fastest.")
    ] = "1",
    micro_batches: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="Of a step, over all replicas.")
    ] = None,
    sharded: Annotated[bool, typer.Option("--sharded", help="Replicas divide parameters and state.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write a page of the ranks here.")] = None,
    torchtitan: Annotated[
        Path | None, typer.Option(help="Write settings of torchtitan here, as layout.toml.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell whether a training step fits on many ranks: layout, schedule, bytes and time of each.

    The function builds the model, on any device or on meta: a torch.nn.Sequential, or any with a list
    of layers. The inputs are one micro-batch. Nothing is run: times are modelled. Exit code 0: a layout
    fits; 3: none does.
    """
    from tightrope.cli.machines import find_machine

    check_outputs([page, torchtitan])
    check_asked(budget, _EIGHT_BIT.get(optimizer, optimizer))
    profile = find_machine(machine) if machine is not None else None
    inner = (_ways("tensor", tensor), _ways("context", context))
    asked = AskedRanks(
        target,
        ranks,
        profile,
        budget,
        optimizer,
        pipeline,
        micro_batches,
        sharded,
        page,
        precision,
        *inner,
        torchtitan,
        _ways("expert", expert),
    )
    answer_ranks(asked, json=json)


def _ways(name: str, asked: str) -> int | None:
    """Read a number of ranks; None where any will do."""
    if asked == "any":
        return None
    if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:8]) <= 1024 or len(asked) > 4:
        raise TightropeError(f"--{name} {shown(asked)}: give a number from 1 to 1024, or any.")
    return int(asked)


def answer_ranks(asked: AskedRanks, *, json: bool) -> None:
    """Print the answer; leave with 3 where no layout fits.

    Raises:
        TightropeError: the question cannot be answered; says what to give.
    """
    try:
        found = _estimated(asked)
    except InfeasibleError as error:
        if not json:
            raise
        emit_json(
            {
                "fits": False,
                "ranks": asked.ranks,
                "limit_bytes": error.asked,
                "smallest_found_bytes": error.smallest_found,
                "reason": str(error),
            }
        )
        raise typer.Exit(DOES_NOT_FIT) from error
    if asked.page is not None:
        write_page(found, asked.page, asked.target)
    alone = 0
    if asked.torchtitan is not None:
        from tightrope_ranks.pipeline.titan import bytes_alone, write_titan

        write_titan(found, asked.torchtitan)
        alone = max(bytes_alone(found))
    if json:
        emit_json(described(found) | ({"torchtitan_bytes": alone} if alone else {}))
        return
    _print(found)
    if alone:
        said = f"with these files, torch's own runtime takes at most {format_bytes(alone)} per rank"
        console().print(f"{said}: above the limit" if alone > found.limit else said, markup=False)


def write_page(found: "RanksEstimate", path: Path, name: str) -> None:
    """Write the page with the ranks of one replica side by side."""
    from tightrope_ranks.pipeline.rank_layout import layout_said
    from tightrope_ranks.pipeline.trace import ranks_trace
    from tightrope_ranks.view import ranks_page

    layout = found.layout
    title = f"{name} on {found.ranks} ranks: {layout_said(layout)}"
    write_whole(path, ranks_page(ranks_trace(found.plan, name=name), title=title))


def _estimated(asked: AskedRanks) -> "RanksEstimate":
    check_outputs([asked.page, asked.torchtitan], [Path(asked.target.partition(":")[0])])
    if asked.machine is None:
        raise TightropeError(
            "--ranks needs --machine: a TOML profile with devices, [[links]] and [flops], to compute times "
            "and messages."
        )
    if asked.precision not in PRECISION_NAMES:
        raise TightropeError(f"precision={shown(asked.precision)}: give one of {', '.join(PRECISION_NAMES)}.")
    from tightrope.cli.target import build
    from tightrope.run.base.status import StatusLine

    status = StatusLine(lines=True)
    with StatusLine().slow(f"building the model of {shown(asked.target)}"):
        built = build(asked.target)
    from tightrope_ranks.pipeline.estimate import estimate_ranks
    from tightrope_ranks.pipeline.precision import precision_of

    policy, optimizer = precision_of(asked.precision), asked.optimizer
    if optimizer in _EIGHT_BIT:
        policy, optimizer = policy.eight_bit(), _EIGHT_BIT[optimizer]
    with status.task(f"looking for a layout of {asked.ranks} ranks", 1) as tick:
        return estimate_ranks(
            built.model,
            built.args,
            built.kwargs,
            ranks=asked.ranks,
            machine=asked.machine,
            budget=asked.budget,
            pipeline=asked.pipeline,
            tensor=asked.tensor,
            context=asked.context,
            expert=asked.expert,
            micro_batches=asked.micro_batches,
            optimizer_states=STATES[optimizer],
            precision=policy,
            sharded=asked.sharded,
            progress=tick,
        )


def described(found: "RanksEstimate") -> dict[str, Any]:
    """Write an estimate as plain values; ``orders`` are the computations of every rank of the pipeline."""
    from tightrope_ranks.pipeline.emit import orders_of
    from tightrope_ranks.pipeline.starts import bare

    layout, plan = found.layout, found.plan
    return {
        "fits": True,
        "ranks": found.ranks,
        "machine": plan.machine.name,
        "limit_bytes": found.limit,
        "pipeline_ranks": layout.pipeline,
        "replicas": layout.replicas,
        "tensor_ranks": layout.tensor,
        "context_ranks": layout.context,
        "expert_ranks": layout.expert,
        "experts": None if found.experts is None else asdict(found.experts),
        "sharded": plan.work.sharded or layout.by_layer,
        "gathered_by_layer": layout.by_layer,
        "layers_computed_again": layout.again,
        "micro_batches": layout.micro_batches * layout.replicas,
        "micro_batches_per_replica": layout.micro_batches,
        "stages": len(plan.work.stages),
        "schedule": plan.method,
        "estimated_seconds": plan.ns / 1e9,
        "bound_seconds": plan.ns_bound / 1e9,
        "peak_bytes": max(one.peak for one in found.takes),
        "reserved_bytes": found.reserved or None,
        "layer_names": list(found.names),
        "shared_parameters": list(found.shared),
        "per_rank": [
            {
                "rank": one.rank,
                "devices": list(layout.devices(one.rank)),
                "stages": list(one.stages),
                "layers": [list(some) for some in one.layers],
                "peak_bytes": one.peak,
                "held_bytes": one.held,
                "compute_seconds": one.compute_ns / 1e9,
                "exchange_seconds": one.exchange_ns / 1e9,
                "computed_again": one.again,
            }
            for one in found.takes
        ],
        "layouts": [
            {
                "pipeline_ranks": one.layout.pipeline,
                "replicas": one.layout.replicas,
                "tensor_ranks": one.layout.tensor,
                "context_ranks": one.layout.context,
                "expert_ranks": one.layout.expert,
                "micro_batches_per_replica": one.layout.micro_batches,
                "fits": one.ns is not None,
                "estimated_seconds": None if one.ns is None else one.ns / 1e9,
                "bytes": one.peak,
                "said": one.said,
            }
            for one in found.tried
        ],
        "orders": [" ".join(map(str, row)) for row in bare(orders_of(plan))],
        "notes": list(found.notes),
        "note": NOTE,
    }


def _print(found: "RanksEstimate") -> None:
    from tightrope_ranks.pipeline.rank_layout import layout_said

    target, layout, plan = console(), found.layout, found.plan
    divided = ", parameters, gradients and state divided among them" if plan.work.sharded else ""
    if layout.by_layer:
        divided = ", parameters, gradients and state divided among them and gathered layer by layer"
    lines = [
        f"fits: {found.ranks} ranks as {layout_said(layout)}{divided}; limit {format_bytes(found.limit)} per "
        f"rank on {plan.machine.name}",
        f"schedule: {plan.method}, {len(plan.work.stages)} stages, {layout.micro_batches} micro-batches per "
        f"replica, {layout.again} of {len(found.names)} layers computed again inside of their stages",
        f"time of a step: {format_time(plan.ns)}; with these stages none takes less than "
        f"{format_time(plan.ns_bound)}",
    ]
    if found.experts is not None:
        lines.append(_experts_said(found.experts))
    if found.reserved:
        said = (
            f"where torch's own engines run it, torch's CUDA allocator keeps {format_bytes(found.reserved)}"
        )
        lines.append(f"{said} on the fullest rank")
    for line in lines:
        target.print(line, markup=False)
    cells = [
        (
            str(one.rank),
            "{}-{}".format(*layout.devices(one.rank)),
            _named(found.names, one.layers),
            format_bytes(one.peak),
            format_bytes(one.held),
            format_time(one.compute_ns),
            format_time(one.exchange_ns),
            str(one.again),
        )
        for one in found.takes
    ]
    heads = ("rank", "devices", "layers", "most bytes", "held", "computes", "exchanges", "forwards again")
    show.rows(target, heads, cells)
    tried = [
        (
            " x ".join(str(number) for number in one.layout.sizes)
            + (f", experts over {one.layout.expert}" if one.layout.expert > 1 else ""),
            "no" if one.ns is None else format_time(one.ns),
            "" if one.peak is None else format_bytes(one.peak),
            one.said,
        )
        for one in found.tried
    ]
    show.rows(target, (DIMENSIONS, "time", "bytes per rank", "how"), tried)
    if found.shared:
        target.print(
            f"parameters of several layers are held by each, and their gradients not summed between stages "
            f"here: {', '.join(found.shared)}",
            markup=False,
        )
    for line in (*found.notes, NOTE):
        target.print(line, markup=False)


def _experts_said(told: "ExpertsTold") -> str:
    worst = f"{format_bytes(told.worst)} at worst, when a rank takes {format_bytes(told.more)} more"
    return (
        f"experts over {told.ways} ranks: {format_bytes(told.parameters)} of parameters per rank; a layer's "
        f"experts get {format_bytes(told.rows)} of rows per micro-batch, {worst}"
    )


def _named(names: Sequence[str], ranges: Sequence[tuple[int, int]]) -> str:
    """Name ranges of layers, those of stages that follow each other as one."""
    joined: list[list[int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return ", ".join(
        names[a] if a + 1 == b else f"{names[a]} to {names[b - 1].removeprefix('layer ')}" for a, b in joined
    )
