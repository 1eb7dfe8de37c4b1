"""Search by one rule after another: forms are equal, edits cost what they say, and the agent learns."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from benchmarks.forms.branches import BranchedBlock
from benchmarks.forms.search import best_known, net_costs
from benchmarks.forms.terms import random_term
from tightrope.core import TightropeError
from tightrope.run.base.arguments import REWRITING
from tightrope_forms.compiled import Solved, equal_part, rewritten_for_inference
from tightrope_forms.rewrite import agent, substitute
from tightrope_forms.rewrite.agent import EditPolicy, load_policy, save_policy, train, walked
from tightrope_forms.rewrite.egraph import aten
from tightrope_forms.rewrite.search import backtracked, restarted, steepest
from tightrope_forms.rewrite.substitute import GraphForm, searched


def start(costs: Any) -> GraphForm:
    return GraphForm(costs, costs.given())


@pytest.mark.parametrize("seed", range(4))
def test_an_edit_costs_what_it_says_and_keeps_the_values(seed: int) -> None:
    draw = random.Random(seed)

    def wander(form: GraphForm) -> GraphForm:
        for _ in range(5):
            if form.edits:
                edit = draw.choice(form.edits)
                after = form.edited(edit)
                assert after is not None
                assert after.cost == pytest.approx(edit.cost)
                assert len(after.order) == len(form.order) + len(edit.added) - len(edit.removed)
                form = after
        return form

    costs = random_term(seed, 8)
    both, found = searched(costs, wander)
    assert found.cost <= both.of(both.given())
    choice = wander(start(random_term(seed, 8))).within(both.graph, both.roots)
    assert equal_part(Solved(both, found._replace(choice=both.given() | choice)))


def test_a_wrong_edit_is_seen_by_the_check_of_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(g: Any) -> Any:
        for one, (x, _), _ in g.all_by(aten.add.Tensor):
            yield [(one, x)]

    costs, found = searched(net_costs(1, width=4, size=6), steepest)
    assert equal_part(Solved(costs, found))
    monkeypatch.setattr(substitute, "RULES", {"a + b = a": wrong})
    costs, found = searched(net_costs(1, width=4, size=6), steepest)
    assert found.cost < costs.of(costs.given())
    assert not equal_part(Solved(costs, found))


def test_greedy_misses_what_costs_more_for_a_while() -> None:
    form, (best, status) = start(net_costs(1)), best_known(1)
    assert status == "optimal"
    assert steepest(form).cost > best * 1.01
    for found in (restarted(form, restarts=20), backtracked(form, alpha=2.0)):
        assert best * (1 - 1e-6) <= found.cost <= best * (1 + 1e-4)
    assert backtracked(form, end=0.0) is form


def test_the_agent_learns_the_best_known_form_and_its_policy_fits_a_longer_net(tmp_path: Path) -> None:
    form, best = start(net_costs(1)), best_known(1)[0]
    drawn = torch.get_rng_state()
    made = train([form], episodes=160)
    assert torch.equal(drawn, torch.get_rng_state())
    assert made.best[0].cost <= best * (1 + 1e-4)
    assert made.costs == sorted(made.costs, reverse=True)
    assert made.costs == train([form], episodes=160).costs  # the same seed
    save_policy(made.policy, tmp_path / "policy.json")
    policy, longer = load_policy(tmp_path / "policy.json"), start(net_costs(2))
    found = walked(longer, policy=policy)
    assert found.key == walked(longer, policy=made.policy).key
    torch.manual_seed(0)
    assert found.cost < min(walked(longer, policy=EditPolicy(), seed=seed).cost for seed in range(3))


def test_edits_are_scored_alone_in_any_number() -> None:
    forms = [start(net_costs(depth, width=4, size=6)) for depth in (1, 2, 1)]
    torch.manual_seed(0)
    policy, seen = EditPolicy(), [agent.sight(form) for form in forms]
    scores, values = policy(agent.joined(seen))
    apart = [policy(one) for one in seen]
    torch.testing.assert_close(scores, torch.cat([one for one, _ in apart]))
    torch.testing.assert_close(values, torch.cat([one for _, one in apart]))
    assert len(apart[1][0]) == 1 + len(forms[1].edits) > len(apart[0][0])


@pytest.mark.parametrize("written", [b"no", b"{}", b'{"first.weight": "x"}', None])
def test_what_is_no_policy_is_refused(written: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    if written is not None:
        path.write_bytes(written)
    with pytest.raises(TightropeError, match="is no policy of rewriting"):
        load_policy(path)
    save_policy(EditPolicy(), path)
    found = json.loads(path.read_text())
    found["first.bias"][0] = 1e39  # no number of float32
    path.write_text(json.dumps(found))
    with pytest.raises(TightropeError, match="not finite"):
        load_policy(path)
    path.write_bytes(path.read_bytes() + b" " * (1 << 22))
    with pytest.raises(TightropeError, match=r"it has \d+ bytes"):
        load_policy(path)


@pytest.mark.parametrize("method", REWRITING)
def test_every_method_merges_branches_for_inference(method: str) -> None:
    torch.manual_seed(0)
    model, x = BranchedBlock(16).eval(), torch.randn(1, 16, 20, 20)
    form, rules = rewritten_for_inference(model, x, method=method)
    assert any("conv(x, A) + conv(x, B)" in one for one in rules)
    with torch.no_grad():
        torch.testing.assert_close(form(x), model(x), rtol=1e-5, atol=1e-5)


def test_methods_and_policies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = partial(rewritten_for_inference, BranchedBlock(4).eval(), torch.randn(1, 4, 9, 9))
    with pytest.raises(TightropeError, match="choose from exact, backtracking, restarts, agent"):
        wrong(method="best")
    with pytest.raises(TightropeError, match="reads no policy"):
        wrong(policy=tmp_path / "policy.json")
    with pytest.raises(TightropeError, match="one of exact, backtracking, restarts, agent"):
        tightrope.compile(nn.Linear(2, 2), budget="100%", rewrite="best")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.one, self.two):
            x = layer(x)
            x = x * torch.sigmoid(x)
        return x.sum()


@pytest.mark.parametrize("method", REWRITING[1:])
def test_a_training_step_is_planned_in_the_form_that_a_search_found(method: str) -> None:
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(128, 64)
    model(x).backward()
    right = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    tightrope.compile(model, budget="100%", rewrite=method, progress=False)
    model(x).backward()
    assert "x * sigmoid(x) = silu(x) (2x)" in tightrope.report(model).form
    for one, grad in zip(model.parameters(), right, strict=True):
        torch.testing.assert_close(one.grad, grad, rtol=1e-4, atol=1e-4)
