"""Two processes that train one model with DistributedDataParallel."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional
from training import Blocks, Seen, batches, budget_for, built, held, num_recomputed, play

import tightrope

WORLD = 2


def loop(model: nn.Module, see: Seen) -> None:
    rank = distributed.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(2 * WORLD * 2)
    for step in range(3):
        optimizer.zero_grad()
        x, y = data[WORLD * step + rank]
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()
    for micro in range(2):
        x, y = data[micro]
        if micro == 0:
            with model.no_sync():  # type: ignore[operator]
                functional.cross_entropy(model(x), y).backward()
        else:
            functional.cross_entropy(model(x), y).backward()
    see.gradients(model)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    parallel = nn.parallel.DistributedDataParallel
    wanted = play(parallel(built(Blocks)), loop)
    model = built(Blocks)
    x = batches(1)[0][0]
    tightrope.compile(model, budget=budget_for(model, (x,), share=0.3) + (1 << 20), progress=False)
    found = play(parallel(model), loop)
    held(model)
    result = {"equal": found == wanted, "values": len(found), "recomputed": num_recomputed(model)}
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_get_the_gradients_of_eager(tmp_path: Path) -> None:
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=WORLD)
    for rank in range(WORLD):
        result = json.loads((tmp_path / f"{rank}.json").read_text())
        assert result["equal"]
        assert result["values"] > 100
