"""FSDP2 in two processes: where and in which order a model is compiled, and what is refused."""

import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import tightrope
from tests.integrations.composing import updates
from tests.integrations.owned_loops import NUM_STEPS
from tests.run.training import Blocks, Seen, batches, built
from tightrope.capture._torch import reset_dynamo
from tightrope.core import TightropeError
from tightrope.run.compile import compiled_of

BUDGET = "64MiB"


class Block(nn.Module):
    """A block with code of its own, which torch's tracing enters where it does not enter `nn.Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


def loop(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches(2 * NUM_STEPS)[distributed.get_rank() :: 2]:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        for parameter in model.parameters():
            assert isinstance(parameter.grad, DTensor)
            see(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    see(*model.parameters(), torch.get_rng_state())


def blocks_of(model: Any) -> list[nn.Module]:
    return list(model.layers)


def budgeted(*models: nn.Module) -> None:
    for model in models:
        tightrope.compile(model, budget=BUDGET, progress=False)


def divided(build: Callable[[], nn.Module], order: str) -> nn.Module:
    """A model, compiled as a whole or block by block, before or after it is divided; or as it is."""
    model = built(build)
    parts = blocks_of(model) if "block by block" in order else [model]
    if "before" in order:
        budgeted(*parts)
    for block in blocks_of(model):
        fully_shard(block)
    fully_shard(model)
    if "after" in order:
        budgeted(*parts)
    torch.manual_seed(7)
    return model


ORDERS = {
    Own: ["before", "after", "block by block, before", "block by block, after"],
    Blocks: ["before"],  # blocks without code of their own
}


def orders() -> dict[str, Any]:
    found = {}
    for build, wanted_orders in ORDERS.items():
        plain, see = divided(build, "plain"), Seen()
        loop(plain, see)
        wanted = see.bits
        for order in wanted_orders:
            model, see = divided(build, order), Seen()
            with updates(NUM_STEPS):
                loop(model, see)
            report = tightrope.report(blocks_of(model)[0] if "block" in order else model)
            assert report.enforced
            assert 0 < report.observed_total <= report.budget
            num_graphs = len(compiled_of(model).calls.captured) if "block" not in order else 1
            found[f"{build.__name__} {order}"] = [see.bits == wanted, report.level, num_graphs <= 4]
            del model
            gc.collect()
    return found


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(TightropeError) as caught:
        call()
    return str(caught.value)


def refusals() -> dict[str, Any]:
    x, y = batches(1)[0]
    found = {}
    for asked in ({"budget": "60%"}, {"budget": BUDGET, "verify": "eager"}):
        model = divided(Own, "plain")
        tightrope.compile(model, progress=False, **asked)  # type: ignore[arg-type]
        found[str(asked)] = refusal(lambda model=model: model(x))  # type: ignore[misc]
    model = divided(Own, "plain")
    step = tightrope.step(lambda x, y: functional.cross_entropy(model(x), y), model=model, budget=BUDGET)
    found["step"] = refusal(lambda: step(x, y))
    reset_dynamo()
    options = {"budget": BUDGET, "progress": False}
    named = torch.compile(divided(Own, "plain"), backend="tightrope", options=options)
    found["by name"] = refusal(lambda: functional.cross_entropy(named(x), y).backward())
    reset_dynamo()
    model = divided(Own, "after")
    loss = functional.cross_entropy(model(x), y)
    with torch.no_grad():
        blocks_of(model)[0].up.weight.mul_(2)  # type: ignore[union-attr, operator]
    found["changed"] = refusal(loss.backward)
    return found


def work(rank: int, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {"orders": orders, "refusals": refusals}[what]()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def in_two(folder: Path, what: str) -> dict[str, Any]:
    torch.multiprocessing.spawn(work, args=(str(folder), what), nprocs=2)
    one, other = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other
    return dict(one)


@pytest.mark.slow
def test_values_are_those_of_plain_torch_in_every_order(tmp_path: Path) -> None:
    found = in_two(tmp_path, "orders")
    assert found == {
        f"{net.__name__} {order}": [True, "L1", True] for net, orders in ORDERS.items() for order in orders
    }


@pytest.mark.slow
def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    found = in_two(tmp_path, "refusals")
    said = "fully_shard divides this FSDPOwn (4 modules)"
    for text, instead in zip(
        found.values(), ("Give bytes", 'verify="graph"', "tightrope.compile"), strict=False
    ):
        assert said in text
        assert instead in text
    assert "in place of torch.compile" in found["by name"]
    assert "changed in place between forward and backward" in found["changed"]
