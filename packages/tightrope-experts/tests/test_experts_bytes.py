"""Bytes: what is kept, what no routing changes, and training within a limit while the routing changes."""

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from benchmarks._measure import HighWater
from tightrope.native import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import accounts
from tightrope_experts import MoE, mix, register
from tightrope_experts.products import gather, gather_backward, spread, spread_backward
from tightrope_experts.sizes import ExpertSizes

pytestmark = pytest.mark.skipif(compiler() is None, reason="bytes are counted by the allocator hook")


def glu(before: Tensor) -> Tensor:
    gate, value = before.chunk(2, dim=-1)
    return functional.silu(gate) * value


def grouped(x: Tensor, chosen: Tensor, gates: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Sort, multiply groups, and sum, as plain PyTorch does."""
    flat = chosen.t().reshape(-1)
    order = torch.sort(flat, stable=True).indices
    ends = torch.bincount(flat, minlength=len(up)).cumsum(0).to(torch.int32)
    hidden = glu(functional.grouped_mm(x[order % len(x)], up.transpose(1, 2), offs=ends))
    made = functional.grouped_mm(hidden, down.transpose(1, 2), offs=ends) * gates.t().reshape(-1)[order, None]
    return made[torch.argsort(order)].view(chosen.shape[1], len(x), -1).sum(0)


def kept_by(make, sizes: ExpertSizes) -> int:  # type: ignore[no-untyped-def]
    """Count the bytes that a forward leaves, without its result."""
    torch.manual_seed(0)
    x = torch.randn(sizes.tokens, sizes.dim, requires_grad=True)
    gates, chosen = torch.topk(torch.rand(sizes.tokens, sizes.experts), sizes.k)
    gates = gates.requires_grad_()
    up = torch.randn(sizes.experts, sizes.wide, sizes.dim, requires_grad=True)
    down = torch.randn(sizes.experts, sizes.dim, sizes.hidden, requires_grad=True)
    before = allocator().stats().live
    out = make(x, chosen, gates, up, down)
    return allocator().stats().live - before - out.untyped_storage().nbytes()


@pytest.mark.parametrize("experts", [4, 32])
def test_what_is_kept_is_as_forecast_for_any_number_of_experts_and_45_percent_less_than_grouped(
    experts: int,
) -> None:
    sizes = ExpertSizes(tokens=512, dim=256, hidden=64, experts=experts, k=2)
    own = kept_by(lambda x, c, g, up, down: mix(x, c, g, up, down, glu), sizes)
    plain = kept_by(grouped, sizes)
    assert own + 512 * 2 * (8 + 4) == sizes.kept  # choices and gates were there
    assert own <= 0.55 * plain
    assert sizes.kept_by_autograd == pytest.approx(plain, rel=0.1)


@pytest.mark.parametrize("rows", [16, 1024])
def test_no_routing_changes_what_an_op_allocates(rows: int) -> None:
    torch.manual_seed(0)
    num_tokens, experts, dim, wide = 128, 6, 24, 40
    x, gates = torch.randn(num_tokens, dim), torch.rand(num_tokens, 2)
    up, down = torch.randn(experts, wide, dim), torch.randn(experts, dim, wide)
    biases = torch.randn(experts, wide), torch.randn(experts, dim)
    found = []
    for chosen in (
        torch.rand(num_tokens, experts).topk(2).indices,
        torch.tensor([0, 1]).repeat(num_tokens, 1),
        torch.full((num_tokens, 2), experts),
    ):
        allocator().begin_record()
        hidden = spread(x, chosen, up, biases[0], rows)
        out = gather(hidden, chosen, gates, down, biases[1], rows)
        gather_backward(out, hidden, chosen, gates, down, biases[1], rows)
        spread_backward(hidden, x, chosen, up, biases[0], rows)
        found.append([one.bytes for one in allocator().end_record().events if one.kind == "alloc"])
        del hidden, out
    assert found[0] == found[1] == found[2]


class Pushed(MoE):
    """Experts whose router can be pushed to some of them."""

    def __init__(self, rows: int) -> None:
        super().__init__(48, 32, num_experts=8, k=2, bias=True, rows=rows)
        self.push: Tensor
        self.register_buffer("push", torch.zeros(8))

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        gates, chosen = torch.topk((self.router(tokens) + self.push).softmax(-1), self.k)
        return chosen, gates / gates.sum(-1, keepdim=True)


class Block(nn.Module):
    """A norm and experts, with a skip connection."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(48), Pushed(rows)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(self.norm(x))


def losses(model: nn.Module, x: Tensor, num_steps: int) -> list[float]:
    """Train while tokens go everywhere, to one pair of experts, and to another one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(num_steps):
        for layer in model.modules():
            if isinstance(layer, Pushed):
                layer.push.zero_()
                if step % 3:
                    layer.push[step % 8], layer.push[(step + 1) % 8] = 100.0, 50.0
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def charged() -> int:
    """Count what tests before this one left."""
    gc.collect()
    return accounts().charged()


def unplanned(model: nn.Module, run: Callable[[nn.Module], object]) -> int:
    """Return what a step takes without a plan, leftovers included."""
    run(tightrope.compile(model, budget="100%", progress=False))
    return tightrope.report(model).unplanned


def test_all_tokens_at_one_expert_train_within_the_limit_with_the_bits_of_eager() -> None:
    others = charged()
    torch.manual_seed(0)
    model, x = nn.Sequential(*[Block(64) for _ in range(3)]), torch.randn(32, 32, 48)
    right = losses(copy.deepcopy(model), x, 12)
    whole = unplanned(copy.deepcopy(model), lambda twin: losses(twin, x, 1))
    charged()  # the twin goes, and its limit with it
    with HighWater(allocator()) as counter:
        tightrope.compile(model, budget=others + (whole - others) * 3 // 4, progress=False)
        found = losses(model, x, 12)
    report = tightrope.report(model)
    assert found == right
    assert report.level == "L1"
    assert counter.bytes <= report.budget
    assert report.observed_total <= report.budget
    assert report.divergences == 0


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_a_model_that_loops_over_its_experts_becomes_one_graph(share: float) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    sizes = {
        "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "num_local_experts": 8,
    }  # fmt: skip
    register(rows=64)
    words = torch.randint(128, (16, 64), generator=torch.Generator().manual_seed(1))

    def made() -> nn.Module:
        torch.manual_seed(0)
        built: nn.Module = transformers.AutoModelForCausalLM.from_config(
            transformers.MixtralConfig(**sizes), experts_implementation="tightrope"
        )
        return built

    def train(model: nn.Module) -> list[float]:
        optimizer, rows = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(input_ids=words, labels=words).loss
            loss.backward()
            optimizer.step()
            rows.append(loss.item())
        return rows

    others = charged()
    right, whole = train(made()), unplanned(made(), train)
    charged()
    model = tightrope.compile(made(), budget=others + int(share * (whole - others)), progress=False)
    found = [train(model), right]
    report = tightrope.report(model)
    assert found[0] == found[1]
    assert report.level == "L1"
    assert report.observed_total <= report.budget
