"""FSDP2 in two processes: what a budget gives there today."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import tightrope
from tests.run.training import Blocks, Seen, batches, built


def loop(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(6)[distributed.get_rank() :: 2]:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        for parameter in model.parameters():
            assert isinstance(parameter.grad, DTensor)
            see(parameter.grad.to_local())
        optimizer.step()
        optimizer.zero_grad()
    see(*(parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)))


def played(*, blocks: bool, budget: str | None) -> tuple[list[str], nn.Module]:
    model = built(Blocks)
    if blocks:
        for layer in model.layers:  # type: ignore[union-attr]
            fully_shard(layer)
    fully_shard(model)
    if budget:
        tightrope.compile(model, budget=budget, progress=False)
    torch.manual_seed(7)
    see = Seen()
    loop(model, see)
    return see.bits, model


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    for blocks in (False, True):
        wanted, _ = played(blocks=blocks, budget=None)
        bits, model = played(blocks=blocks, budget="64MiB")
        report = tightrope.report(model)
        assert report.enforced
        assert 0 < report.observed_total <= report.budget
        found[f"{blocks=}"] = [
            bits == wanted,
            len(bits) > 50,
            report.level,
            "sequence of graphs" in report.why,
        ]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_values_are_equal_and_the_level_is_what_the_page_says(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == {"blocks=False": [True, True, "L1", True], "blocks=True": [True, True, "L0", False]}
