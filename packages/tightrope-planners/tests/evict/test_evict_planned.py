"""Plans that eviction follows: known steps at run time, and the simulator's decisions on the same log."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from tightrope.run.evict import context
from tightrope.run.evict.context import Eviction, evict
from tightrope.run.evict.core import options_block
from tightrope.run.evict.policies import COOP
from tightrope_planners.evict.arena import Decision, decisions_of
from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.evict.simulate import simulate

Loop = Callable[[Callable[[int], int]], list[Tensor]]


def _net() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def training(steps: int) -> Loop:
    """Make a loop whose step ``k`` trains on as many rows as it is told."""
    torch.manual_seed(1)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(7)

    def loop(rows: Callable[[int], int]) -> list[Tensor]:
        losses = []
        for step in range(steps):
            optimizer.zero_grad()
            batch = torch.randn(rows(step), 64)
            loss = functional.cross_entropy(model(batch), torch.zeros(rows(step), dtype=torch.long))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            optimizer.step()
            del loss, batch
        return [*losses, *(one.detach() for one in model.parameters()), torch.get_rng_state()]

    return loop


def run(
    budget: int, policy: str, rows: Callable[[int], int], steps: int = 6
) -> tuple[list[Tensor], Eviction]:
    loop = training(steps)
    with evict(budget, policy=policy, poison=True) as eviction:
        found = loop(rows)
    return found, eviction


def peak() -> int:
    return run(2**28, "coop", lambda _: 256, 2)[1].statistics().high_water


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_step_that_came_twice_is_followed_with_the_bits_of_eager() -> None:
    expected, budget = training(6)(lambda _: 256), peak() * 6 // 10
    found, eviction = run(budget, "planned", lambda _: 256)
    assert same(found, expected)
    assert eviction.num_followed == 4
    assert eviction.statistics().high_water <= budget
    assert eviction.num_recomputed > 0


def test_a_followed_step_that_turns_out_another_goes_on_without_a_plan() -> None:
    def rows(step: int) -> int:
        return 256 if step != 3 else 192

    expected, budget = training(6)(rows), peak() * 6 // 10
    found, eviction = run(budget, "planned", rows)
    assert same(found, expected)
    assert eviction.num_followed == 3


def test_two_sizes_that_alternate_have_a_plan_each() -> None:
    def rows(step: int) -> int:
        return 256 - 64 * (step % 2)

    expected, budget = training(8)(rows), peak() * 6 // 10
    found, eviction = run(budget, "planned", rows, 8)
    assert same(found, expected)
    assert eviction.num_followed == 4


def test_steps_without_an_optimizer_end_where_the_loop_says() -> None:
    weight = torch.randn(64, 64)

    def step() -> Tensor:
        kept = [torch.ones(64, 64)]
        for _ in range(8):
            kept.append((kept[-1] @ weight).tanh())
        return torch.stack([one.sum() for one in reversed(kept)])

    expected = step()
    with evict(7 * 64 * 64 * 4, policy="planned") as eviction:
        for _ in range(4):
            assert torch.equal(step(), expected)
            eviction.end_step()
    assert eviction.num_followed == 2
    with pytest.raises(tightrope.TightropeError, match="not in use"):
        eviction.end_step()


def _decided(decisions: tuple[Decision, ...]) -> list[tuple[object, ...]]:
    return [
        (d.request, d.start, d.end, d.cost, [(v.bytes, v.cost, v.distance) for v in d.victims])
        for d in decisions
    ]


def test_the_simulator_decides_on_the_log_as_the_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "options_block", lambda size, policy: options_block(size, policy, log=True))
    budget, weight = 9 * 64 * 64 * 4, torch.randn(64, 64)
    logs: list[EvictionLog] = []
    with evict(budget, policy="planned") as eviction:
        kept = [weight.add(1)]
        for at in range(24):
            kept.append((kept[-1].mul(weight) if at % 3 else kept[-1].add(weight)).tanh())
        for at in (1, 20, 4, 9, 14, 3):
            kept.append(kept[at].add(kept[-1]))
        watch = eviction._watch
        assert watch is not None
        assert watch.follower is not None
        logs.append(watch.follower.record.log())
        observed = decisions_of(watch.arena)
        again = eviction.num_recomputed
        del kept
    simulated = simulate(logs[0], budget, COOP, decisions=True, informed=False)
    assert again > 0
    assert simulated.again_ops == again
    assert _decided(simulated.decisions) == _decided(observed)
