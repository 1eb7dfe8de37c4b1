"""Rewriting: rules are proved, extraction is exact, models stay equal, and plans do not grow."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.forms.prove import CLOSE, Draw, example_of, prove
from tightrope.cli import main
from tightrope.core import TightropeError
from tightrope_forms import compiled
from tightrope_forms.compiled import rewritten_for_inference, solve_part
from tightrope_forms.rewrite.egraph import ClassId, EGraph, Spec, aten, saturate
from tightrope_forms.rewrite.extract import Choice, CostWeights, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, exported, sections
from tightrope_forms.rewrite.rules import RULES
from tightrope_forms.rewrite.search import backtracked, restarted, steepest
from tightrope_forms.rewrite.substitute import GraphForm


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_proved_forward_and_backward(name: str) -> None:
    assert prove(name, RULES[name], example_of(name), times=8) <= CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_proved_a_thousand_times(name: str) -> None:
    assert prove(name, RULES[name], example_of(name), times=1000, seed=1) <= CLOSE


def test_planted_wrong_rules_are_caught() -> None:
    def nearly(g: EGraph) -> Iterator[list[tuple[ClassId, ClassId]]]:  # right forward at 0 alone
        for one, (x,), _ in g.all_by(aten.silu.default):
            yield [(one, g.make(aten.gelu.default, x))]

    def right_forward_alone(g: EGraph) -> Iterator[list[tuple[ClassId, ClassId]]]:
        for one, (x,), _ in g.all_by(aten.silu.default):
            yield [(one, g.make(aten.silu.default, g.make(aten.detach.default, x)))]

    def silent(g: EGraph) -> Iterator[list[tuple[ClassId, ClassId]]]:
        yield from ()

    def silu(g: EGraph, d: Draw, r: random.Random) -> ClassId:
        return g.make(aten.silu.default, d(3, r.randint(1, 4)))

    for apply, said in (
        (nearly, "is wrong by"),
        (right_forward_alone, "is wrong by|does not require"),
        (silent, "does not apply to its example 0"),
    ):
        with pytest.raises((TightropeError, RuntimeError), match=said):
            prove("planted", apply, silu, times=3)


def test_a_constant_that_is_off_is_no_gelu() -> None:
    graph = EGraph()
    x = graph.leaf(Spec((3,), (1,), torch.float64, True))
    inner = graph.make(aten.erf.default, graph.make(aten.mul.Tensor, x, 0.7071))
    graph.make(aten.mul.Tensor, graph.make(aten.mul.Tensor, x, 0.5), graph.make(aten.add.Tensor, inner, 1.0))
    assert saturate(graph, {name: rule for name, rule in RULES.items() if "gelu" in name})
    assert not graph.applied


def grown(seed: int) -> tuple[EGraph, ClassId]:
    """Make a random term over products and sums of matrices, and saturate it."""
    draw, graph = random.Random(seed), EGraph()
    leaves = [
        graph.leaf(Spec((6, 6), (6, 1), torch.float32, True), held=draw.random() < 0.5) for _ in range(3)
    ]
    pool = list(leaves)
    for _ in range(5):
        kind = draw.choice(("linear", "add", "matmul", "relu", "mul"))
        one, two = draw.choice(pool), draw.choice(pool)
        pool.append(
            {
                "linear": lambda a, b: graph.make(aten.linear.default, a, draw.choice(leaves)),
                "add": lambda a, b: graph.make(aten.add.Tensor, a, b),
                "matmul": lambda a, b: graph.make(aten.matmul.default, a, b),
                "relu": lambda a, b: graph.make(aten.relu.default, a),
                "mul": lambda a, b: graph.make(aten.mul.Tensor, a, graph.make(aten.sigmoid.default, a)),
            }[kind](one, two)
        )
    root = graph.make(aten.cat.default, pool[-3:], 1)
    assert saturate(graph, RULES, most_nodes=400, rounds=12)
    return graph, graph.find(root)


def cheapest(costs: FormCosts) -> float:
    """Try every choice of a node for every class with several."""
    several = [(one, list(nodes)) for one, nodes in costs.graph.nodes.items() if len(nodes) > 1]
    given: Choice = costs.given()
    names = [one for one, _ in several]
    return min(
        costs.of({**given, **dict(zip(names, nodes, strict=True))})
        for nodes in itertools.product(*(nodes for _, nodes in several))
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("weights", [CostWeights(1, 0), CostWeights(1, 50), CostWeights(0.01, 1)])
def test_extraction_is_that_of_brute_force_and_search_is_never_better(
    seed: int, weights: CostWeights
) -> None:
    graph, root = grown(seed)
    costs = FormCosts(graph, [root], [], weights)
    found = extract(costs)
    assert found.status == "optimal"
    assert found.cost == pytest.approx(costs.of(found.choice))
    assert found.cost <= costs.of(costs.given()) + 1e-12
    form = GraphForm(costs, costs.given())
    assert form.cost == pytest.approx(costs.of(costs.given()))
    for one in (steepest(form), backtracked(form, budget=20), restarted(form, restarts=2)):
        assert found.cost * (1 - 1e-6) <= one.cost <= form.cost
    combinations = 1
    for nodes in graph.nodes.values():
        combinations *= len(nodes)
    if combinations <= 3000:
        assert found.cost == pytest.approx(cheapest(costs), rel=1e-6)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        layers = [
            nn.Sequential(nn.Linear(48, 48), Swish(), nn.Linear(48, 48), nn.Dropout(0.1))
            for _ in range(depth)
        ]
        self.layers, self.norm = nn.ModuleList(layers), nn.BatchNorm1d(48)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.norm(x).square().mean() * scale


def test_parts_are_proved_and_none_is_worse() -> None:
    module = exported(Net(2), (torch.randn(4, 48),), {})
    for part in sections(module, ExportedValues(module)):
        if (solved := solve_part(part, CostWeights(1.0, 1.0))) is not None:
            assert solved.found.status == "optimal"
            assert solved.found.cost <= solved.costs.of(solved.costs.given())


SCRIPT = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x * torch.sigmoid(x)
        return x.sum()


def build():
    return Net(), (torch.ones(128, 64),)
"""


def run(*given: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", *given])
    return int(leaving.value.code or 0)


def test_the_command_plans_a_rewritten_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT)
    totals = []
    for option in ((), ("--rewrite",)):
        assert run("net.py:build", "--budget", "100%", "--json", *option) == 0
        said = capsys.readouterr()
        totals.append(json.loads(said.out)["total_bytes"])
    assert "ms: x * sigmoid(x) = silu(x) (3x)" in said.err
    assert totals[1] < totals[0]
    Path("graph.json").write_text("{}")
    assert run("graph.json", "--budget", "100%", "--rewrite") == 2
    assert "give FILE.py:FUNCTION" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("net.py:build", "--budget", "75%"), 0, ": x * sigmoid(x) = silu(x) (3x)"),
        (("net.py:build", "--budget", "30%"), 3, "smallest feasible found"),
        (("net.py:build", "--budget", "100%", "--seconds", "0.001"), 0, "rewritten, planned"),
        (("net.py:wrong", "--budget", "100%"), 0, "not rewritten: it has an autograd function of its own"),
        (("net.py:empty", "--budget", "100%"), 2, "on the meta device"),
        (("net.py:build", "--budget", "no"), 2, "no"),
    ],
)
def test_the_command_holds_its_limits_and_never_takes_another_model(
    given: tuple[str, ...], code: int, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT + ATTACKS)
    assert run(*given, "--rewrite") == code
    printed = capsys.readouterr()
    assert said in " ".join((printed.out + printed.err).split())
    assert "Traceback" not in printed.err


ATTACKS = """

class Own(torch.autograd.Function):  # torch.export looks through it: its backward is lost
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 7 * grad


class Wrong(Net):
    def forward(self, x):
        return super().forward(Own.apply(self.layers[0](x)))


def wrong():
    return Wrong(), (torch.ones(128, 64),)


def empty():
    with torch.device("meta"):
        return Net(), (torch.ones(128, 64),)
"""


def test_a_share_is_of_what_the_model_as_it_was_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT)
    plans = []
    for option in ((), ("--rewrite",)):
        assert run("net.py:build", "--budget", "90%", "--json", *option) == 0
        plans.append(json.loads(capsys.readouterr().out))
    plain, other = plans
    assert other["total_bytes"] <= other["budget_bytes"] <= plain["total_bytes"] <= plain["budget_bytes"]
    shares = [int(share * plain["total_bytes"]) for share in (1.0, 0.9, 0.8, 0.7)]
    assert other["budget_bytes"] in shares, (other["budget_bytes"], shares)


def test_a_match_of_another_type_is_none() -> None:
    graph = EGraph()
    x = graph.leaf(Spec((3,), (1,), torch.int64))
    graph.make(aten.mul.Tensor, graph.make(aten.mul.Tensor, x, 2), 3)  # of whole numbers; x * 6.0 is not
    norm = graph.make(
        aten.rms_norm.default, graph.leaf(Spec((2, 3), (3, 1), torch.bfloat16)), [3], None, 1e-5
    )
    graph.make(aten.mul.Tensor, norm, graph.leaf(Spec((3,), (1,), torch.float32)))
    assert saturate(graph, RULES)
    assert not graph.applied


class Branches(nn.Module):
    """A 3x3 and a strided layer, each with a norm, of which one has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4, affine=k < 2) for k in range(3))
        for one in self.norms:
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.norms
        return torch.relu_(first(self.wide(x)) + second(self.narrow(x)) + third(x))


@pytest.mark.parametrize("frozen", [False, True])
def test_branches_become_one_convolution_for_inference(frozen: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Branches(), Branches()).eval(), torch.randn(2, 4, 9, 9)
    model.requires_grad_(not frozen)
    before = [one.clone() for one in model.state_dict().values()]
    form, rules = rewritten_for_inference(model, x)
    assert "conv(x, A) + conv(x, B) = conv(x, A + pad(B)) (2x)" in rules
    assert len(form.graph.find_nodes(op="call_function", target=aten.conv2d.default)) == 2
    assert not form.graph.find_nodes(op="call_function", target=aten.batch_norm.default)
    for given in (x, torch.randn(2, 4, 9, 9)):
        with torch.no_grad():
            torch.testing.assert_close(form(given), model(given), rtol=1e-5, atol=1e-5)
    assert all(map(torch.equal, before, model.state_dict().values()))


def test_inference_is_refused_where_nothing_is_gained_or_values_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = Branches().eval(), torch.randn(2, 4, 9, 9)
    with pytest.raises(TightropeError, match=r"model\.eval\(\)"):
        rewritten_for_inference(Branches(), x)
    nothing: Any = 42
    with pytest.raises(TightropeError, match=r"model=42 is no torch\.nn\.Module"):
        rewritten_for_inference(nothing, x)
    with pytest.raises(TightropeError, match="no form"):
        rewritten_for_inference(nn.Sequential(nn.Linear(9, 9)).eval(), x)
    with pytest.raises(TightropeError, match=r"torch\.export says"):
        rewritten_for_inference(model, torch.randn(2, 5, 9, 9))
    monkeypatch.setattr(compiled, "difference", lambda *_: float("nan"))
    monkeypatch.setattr(compiled, "equal_part", lambda _: True)
    with pytest.raises(TightropeError, match="differs from the model"):
        rewritten_for_inference(model, x)
