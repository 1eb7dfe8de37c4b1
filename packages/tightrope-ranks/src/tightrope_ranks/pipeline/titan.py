"""A layout written for torchtitan, which then runs it.

Idea        Degrees, types, recomputation and parts of the model are its settings; the order of computations
            is a schedule in torch's own form, a file next to the settings.
Source      torchtitan 0.2, whose settings are TOML; 0.3 takes the same names as arguments.
Guarantee   What is written has the degrees and micro-batches of the plan, and a pipeline's stages and orders.
Complexity  Linear in the computations.
Gaps        Every n-th layer is computed again there, so it may be more of them than the plan says; what lies
            before and behind the layers never is. It goes by torchtitan's names for Llama.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.core import TightropeError
from tightrope.core.units import Bytes
from tightrope.core.writing import write_whole
from tightrope_ranks.pipeline.emit import emitted, orders_of
from tightrope_ranks.pipeline.language import Action, write_csv
from tightrope_ranks.pipeline.segments import LAYER_NAME, is_layer
from tightrope_ranks.pipeline.starts import bare
from tightrope_ranks.values.ranks import StageWork

if TYPE_CHECKING:
    from tightrope_ranks.pipeline.estimate import RanksEstimate

BEFORE, AFTER = ("tok_embeddings",), ("norm", "output")
"""What torchtitan calls the rest of a Llama."""

Settings = dict[str, dict[str, Any]]


def titan_settings(found: "RanksEstimate", schedule: str = "") -> Settings:
    """Return the sections of torchtitan's settings for a layout.

    Args:
        found: what was estimated, from a micro-batch of (rows, tokens).
        schedule: file of the order of computations; needed for pipelines.

    Raises:
        TightropeError: torchtitan cannot run the plan.
    """
    if len(found.batch) < 2:
        raise TightropeError("torchtitan trains on rows of tokens: give a micro-batch of (rows, tokens).")
    layout, plan, (rows, length) = found.layout, found.plan, found.batch[:2]
    divided = plan.work.sharded or layout.by_layer
    if any(emitted(plan.work, rank).again for rank in plan.ranks):
        raise TightropeError(
            "The plan computes whole stages again, and torchtitan cannot: give more bytes, or ranks."
        )
    count = layout.micro_batches
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if divided else layout.replicas,
        "data_parallel_shard_degree": layout.replicas if divided else 1,
        "fsdp_reshard_after_forward": "always" if layout.by_layer else "never",
        "tensor_parallel_degree": layout.tensor,
        "context_parallel_degree": layout.context,
        "pipeline_parallel_degree": layout.pipeline,
    }
    if layout.expert > 1:
        if not divided:
            raise TightropeError("torchtitan divides experts among sharded replicas alone: give sharded.")
        parallelism |= {
            "expert_parallel_degree": layout.expert,
            "expert_tensor_parallel_degree": layout.tensor,
        }
    training: dict[str, Any] = {"seq_len": length, "dtype": "float32"}
    training["mixed_precision_param"] = "bfloat16" if found.computes == "bfloat16" else "float32"
    if layout.pipeline == 1:
        training |= {"local_batch_size": rows, "global_batch_size": rows * count * layout.replicas}
    else:
        training["local_batch_size"] = rows * count
        parallelism |= {
            "pipeline_parallel_schedule": "PipelineScheduleMulti",
            "pipeline_parallel_schedule_csv": schedule,
            "pipeline_parallel_microbatch_size": rows,
            "module_fqns_per_model_part": _parts(found),
        }
    return {
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": _again(found),
    }


def write_titan(found: "RanksEstimate", path: Path) -> list[Path]:
    """Write settings, and for a pipeline the schedule next to them; return the files.

    Raises:
        TightropeError: see `titan_settings`.
    """
    schedule = path.with_suffix(".csv")
    several = found.layout.pipeline > 1
    settings = titan_settings(found, str(schedule) if several else "")
    text = "# For torchtitan 0.2; model, optimizer and data are to be added.\n"
    for section, values in settings.items():
        text += f"\n[{section}]\n" + "".join(f"{name} = {_toml(one)}\n" for name, one in values.items())
    if several:
        write_whole(schedule, write_csv(bare(orders_of(found.plan))))
    write_whole(path, text)
    return [path, schedule] if several else [path]


def bytes_alone(found: "RanksEstimate") -> tuple[Bytes, ...]:
    """Tell the most bytes of every rank of the pipeline where torch's own runtime runs the schedule.

    Torch takes a buffer per micro-batch for everything that a stage will receive, and keeps what it has sent
    until the step ends. Divided parameters stay whole from their first use, and so do their gradients.

    Returns:
        Per rank; without a pipeline what the plan says. Loss and outputs that the caller keeps are left out.
    """
    work = found.plan.work
    if work.num_ranks == 1:
        return tuple(take.peak for take in found.takes)
    return tuple(_alone(work, rank, row) for rank, row in enumerate(bare(orders_of(found.plan))))


def _alone(work: StageWork, rank: int, row: Sequence[Action]) -> Bytes:
    """Add up what one rank holds, computation by computation."""
    mine = [work.stages[stage] for stage in work.local(rank)]
    sizes = {
        stage: (cost.input if stage else 0, cost.output if stage + 1 < len(work.stages) else 0)
        for stage, cost in enumerate(work.stages)
    }
    live = work.held(rank) + work.num_micro_batches * sum(sum(sizes[stage]) for stage in work.local(rank))
    if work.sharded:
        live += sum(cost.parameters + cost.whole_gradients for cost in mine)
    most = live
    for stage, kind, _ in row:
        cost = work.stages[stage]
        if kind != "W":  # an output, or the gradient of an input
            live += sizes[stage][kind == "F"]
        if kind == "F":
            live += cost.saved
        most = max(most, live + cost.work)
        live -= {"F": 0, "B": cost.saved, "I": cost.saved - cost.half, "W": cost.half}[kind]
    return most


def _again(found: "RanksEstimate") -> dict[str, Any]:
    """Compute at least as many layers again as the plan does."""
    again = found.layout.again
    if not again:
        return {"mode": "none"}
    stages = [sum(map(is_layer, found.names[a:b])) for take in found.takes for a, b in take.layers]
    every = max(1, sum(stages) // again)
    while every > 1 and sum(number // every for number in stages) < again:
        every -= 1
    return {"mode": "full"} if every == 1 else {"mode": "selective", "selective_ac_option": str(every)}


def _parts(found: "RanksEstimate") -> list[list[str]]:
    """Name what lies in each stage, as torchtitan finds it in the model."""
    stages: dict[int, list[str]] = {}
    for take in found.takes:
        for stage, (first, end) in zip(take.stages, take.layers, strict=True):
            stages[stage] = [part for name in found.names[first:end] for part in _named(name)]
    return [stages[stage] for stage in sorted(stages)]


def _named(name: str) -> tuple[str, ...]:
    if name.startswith("layer "):
        return (name.removeprefix("layer "),)  # of a Sequential
    layer = LAYER_NAME.fullmatch(name)
    if layer:
        return (f"layers.{layer[1]}",)
    return BEFORE if name.startswith("before") else AFTER


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int) else json.dumps(str(value))
