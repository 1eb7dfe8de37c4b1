"""B7: a plan that torch alone runs on four ranks, from the files that are written for torchtitan."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed import pipelining

from benchmarks.micro.rows import Row
from tightrope.core import DeviceLink, Machine, Tier
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.titan import bytes_alone, write_titan

RANKS, NUM, ROWS, LENGTH, WIDTH, MICRO = 4, 8, 4, 64, 256, 16
READ = "import sys; from torchtitan.config import ConfigManager; ConfigManager().parse_args(sys.argv[1:])"


class Wide(torch.nn.Module):
    """A part that is wider inside, with a skip connection."""

    def __init__(self, seed: int, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(torch.tanh(self.up(x)))
        return found


def told() -> RanksEstimate:
    """Forecast the step."""
    links = (DeviceLink("any", 1e-6, 1e10),)
    machine = Machine(
        "four", (Tier("ram", 2**33, read=1e10, write=1e10),), {"matmul": 1e10}, devices=RANKS, links=links
    )
    options = PipelineOptions(ascending=True, split=False, again=False, seconds=1.0)
    return estimate_ranks(
        [Wide(seed) for seed in range(NUM)], torch.empty(ROWS, LENGTH, WIDTH), ranks=RANKS, machine=machine,
        pipeline=RANKS, micro_batches=MICRO, options=options,
    )  # fmt: skip


def batch() -> torch.Tensor:
    """Inputs, and targets at once."""
    return torch.randn(MICRO * ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def step(rank: int, num_ranks: int, file: str, parts: list[list[str]]) -> tuple[int, list[torch.Tensor]]:
    """Run torch's own schedule from a file; return the most bytes above what was there, and gradients."""
    mine = [stage for stage in range(len(parts)) if stage % num_ranks == rank]
    before = allocator().stats().charged
    modules = [torch.nn.Sequential(*(Wide(int(name)) for name in parts[stage])) for stage in mine]
    for parameter in (p for module in modules for p in module.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    stages = [
        pipelining.PipelineStage(module, stage, len(parts), torch.device("cpu"))
        for stage, module in zip(mine, modules, strict=True)
    ]
    kind: Any = pipelining.schedules._PipelineScheduleRuntime
    schedule = kind(stages, MICRO, loss_fn=torch.nn.functional.mse_loss, scale_grads=False)
    schedule._load_csv(file)
    x = batch()
    outside = x.untyped_storage().nbytes()
    allocator().reset_peaks()
    targets = {"target": x} if len(parts) - 1 in mine else {}
    schedule.step(*([x] if 0 in mine else []), **targets, return_outputs=False)  # as torchtitan does
    most = allocator().stats().charged_peak - before - outside
    return most, [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def alone() -> list[list[torch.Tensor]]:
    """Gradients of every layer, by one process."""
    layers = [Wide(seed) for seed in range(NUM)]
    for x in batch().chunk(MICRO):
        torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(x), x).backward()  # type: ignore[no-untyped-call]
    return [[p.grad for p in layer.parameters() if p.grad is not None] for layer in layers]


def rows(quick: bool) -> list[Row]:
    """B7: read by torchtitan, run by torch."""
    del quick
    found = told()
    with tempfile.TemporaryDirectory() as folder:
        from tightrope_ranks.pipeline.titan import titan_settings

        file, schedule = write_titan(found, Path(folder) / "run.toml")
        parts = titan_settings(found, str(schedule))["parallelism"]["module_fqns_per_model_part"]
        answers = run_ranks(step, RANKS, str(schedule), parts)
        read = _read(file)
    wanted = alone()
    equal = True
    for rank, (_, gradients) in enumerate(answers):
        names = [int(n) for stage in range(rank, len(parts), RANKS) for n in parts[stage]]
        right = [one for name in names for one in wanted[name]]
        equal &= all(torch.equal(a, b) for a, b in zip(gradients, right, strict=True))
    shares = [most / told for (most, _), told in zip(answers, bytes_alone(found), strict=True)]
    said = ", ".join(f"{share:.3f}" for share in shares)
    return [
        Row(
            "B7",
            "torch alone runs the files on 4 ranks: gradients of one process, within 10 % of the bytes that "
            "are forecast for torch's own runtime",
            f"equal bits: {equal}; bytes over forecast per rank: {said}; {read}",
            equal and all(abs(share - 1) <= 0.1 for share in shares) and "refused" not in read,
        )
    ]


def _read(file: Path) -> str:
    """Let torchtitan's own loader read the settings."""
    if importlib.util.find_spec("torchtitan") is None:
        return "torchtitan is not installed here, so its loader was not tried"
    asked = [sys.executable, "-c", READ, "--job.config_file", str(file)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return (
        "torchtitan reads them" if not done.returncode else f"torchtitan refused them: {done.stderr[-200:]}"
    )
