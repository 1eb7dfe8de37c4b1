"""Settings of torchtitan say what the plan says, and torch runs their schedule."""

import importlib.util
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tightrope.core import DeviceLink, Machine, Tier, TightropeError
from tightrope_ranks.pipeline.emit import orders_of
from tightrope_ranks.pipeline.estimate import RanksEstimate, estimate_ranks
from tightrope_ranks.pipeline.language import read_csv
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.starts import bare
from tightrope_ranks.pipeline.titan import bytes_alone, titan_settings, write_titan

QUICK = PipelineOptions(ascending=True, split=False, again=False, seconds=0.0)
AGAIN = PipelineOptions(ascending=True, split=False, seconds=0.0)
WIDTH, NUM = 32, 8
READ = """
import sys
from torchtitan.config import ConfigManager
read = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
print(read.parallelism.tensor_parallel_degree, len(read.parallelism.module_fqns_per_model_part))
"""


class Model(nn.Module):
    """Embedding, layers, head; all of it torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(NUM)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def told(options: PipelineOptions = QUICK, **given: object) -> RanksEstimate:
    links = (DeviceLink("inside", 1e-6, 1e11, span=4), DeviceLink("between", 1e-5, 1e10, level=1))
    hbm = Tier("hbm", 2**30, read=1e11, write=1e11)
    machine = Machine("cluster", (hbm,), {"matmul": 1e12}, devices=16, links=links)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    return estimate_ranks(Model(), tokens, ranks=16, machine=machine, options=options, **given)  # type: ignore[arg-type]


def test_what_is_written_is_the_plan(tmp_path: Path) -> None:
    found = told(pipeline=4, tensor=2, sharded=True, precision="bf16")
    files = write_titan(found, tmp_path / "run.toml")
    assert [one.name for one in files] == ["run.toml", "run.csv"]
    read = tomllib.loads(files[0].read_text())
    parallelism, training = read["parallelism"], read["training"]
    degrees = ("pipeline_parallel", "tensor_parallel", "context_parallel", "data_parallel_shard")
    assert [parallelism[f"{name}_degree"] for name in degrees] == [4, 2, 1, 2]
    assert training["local_batch_size"] == 2 * found.layout.micro_batches
    assert (training["seq_len"], training["mixed_precision_param"]) == (16, "bfloat16")
    assert read["activation_checkpoint"] == {"mode": "none"}
    parts = [name for part in parallelism["module_fqns_per_model_part"] for name in part]
    assert parts == ["tok_embeddings", *(f"layers.{k}" for k in range(NUM)), "norm", "output"]
    assert len(parallelism["module_fqns_per_model_part"]) == len(found.plan.work.stages)
    assert read_csv(Path(parallelism["pipeline_parallel_schedule_csv"]).read_text()) == bare(
        orders_of(found.plan)
    )


def test_without_a_pipeline_micro_batches_are_accumulated(tmp_path: Path) -> None:
    (file,) = write_titan(told(pipeline=1, micro_batches=64), tmp_path / "run.toml")
    read = tomllib.loads(file.read_text())
    assert read["training"]["local_batch_size"] == 2
    assert read["training"]["global_batch_size"] == 2 * 64
    assert read["parallelism"]["data_parallel_replicate_degree"] == 16


def test_torch_alone_takes_a_buffer_for_everything_that_it_receives() -> None:
    found = told(pipeline=4)
    stages, count = found.plan.work.stages, found.layout.micro_batches
    for take, alone in zip(found.takes, bytes_alone(found), strict=True):
        received = sum(
            stages[one].input + stages[one].output for one in take.stages if 0 < one < len(stages) - 1
        )
        assert alone >= take.held + count * received
        assert (
            take.peak
            < alone
            < take.peak + 2 * count * sum(stages[one].input + stages[one].output for one in take.stages)
        )
    whole = told(pipeline=1, micro_batches=64)
    assert bytes_alone(whole) == (whole.takes[0].peak,)


def test_at_least_as_many_layers_are_computed_again() -> None:
    found = told(pipeline=2)
    parts = titan_settings(found)["parallelism"]["module_fqns_per_model_part"]
    sizes = [sum(name.startswith("layers.") for name in part) for part in parts]
    assert sum(sizes) == NUM
    modes = set()
    for again in range(1, NUM + 1):
        asked = replace(found, layout=replace(found.layout, again=again))
        said = titan_settings(asked)["activation_checkpoint"]
        every = int(said.get("selective_ac_option", 1))
        assert sum(size // every for size in sizes) >= again
        assert (every == 1) == (said["mode"] == "full")
        modes.add(said["mode"])
    assert modes == {"selective", "full"}


def test_layers_that_a_budget_calls_for_are_computed_again() -> None:
    most = max(one.peak for one in told(pipeline=1).takes)
    found = told(AGAIN, pipeline=1, budget=int(0.85 * most))
    assert found.layout.again > 0
    assert titan_settings(found)["activation_checkpoint"]["mode"] == "full"


def test_a_batch_without_tokens_is_refused() -> None:
    layers = [nn.Linear(4, 4) for _ in range(2)]
    machine = Machine("one", (Tier("ram", 2**20),), {"matmul": 1e12})
    found = estimate_ranks(layers, torch.ones(4), ranks=1, machine=machine, options=QUICK)
    with pytest.raises(TightropeError, match=r"give a micro-batch of \(rows, tokens\)"):
        titan_settings(found)


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_torchtitan_reads_it(tmp_path: Path) -> None:
    found = told(pipeline=4, tensor=2, sharded=True)
    file = write_titan(found, tmp_path / "run.toml")[0]
    done = subprocess.run([sys.executable, "-c", READ, file], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["2", str(len(found.plan.work.stages))]
