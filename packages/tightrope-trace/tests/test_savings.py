"""What fewer bytes cost: the interval holds the optimum of brute force, and a cheap op is no price."""

import msgspec
import pytest
import torch
from torch import nn

import tightrope
from tests.plan.bound_oracle import least_time, plain_graph, priced, training_graph
from tightrope.core import BudgetPoint, Graph, JudgeError, Summary, Trace, format_bytes, format_time
from tightrope.plan import plan_curve, solve, whole_bytes
from tightrope.record import forecast
from tightrope_trace import explain
from tightrope_trace.savings import Price, price_of


def curved(graph: Graph) -> Trace:
    """The forecast of a plan at 100 %, with plans for a few other budgets."""
    plan = solve(graph, budget=2 * whole_bytes(graph))
    return forecast(graph, plan, others=plan_curve(graph, shares=(100, 85, 70, 55, 40), seconds=5))


def taken(trace: Trace) -> int:
    return trace.summary.persistent + trace.summary.arena + trace.summary.outside


def test_nothing_is_proved_of_fused_plans() -> None:
    """Bounds are those of plans op by op; a fused plan may be faster than any of them."""
    points = (BudgetPoint(80, 80, 130, ns_bound=110), BudgetPoint(100, 100, 100, ns_bound=100))
    plan = Summary(budget=100, arena=100, ns=90, base_ns=100, curve=points, stretches=2)
    assert price_of(Trace("forecast", (), summary=plan), 20) == Price(0, 40, 80)


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(24))
def test_the_interval_always_holds_the_price_of_the_fastest_plan(seed: int) -> None:
    graph = training_graph(seed, depth=3) if seed % 2 else plain_graph(seed, num_ops=7)
    trace = curved(graph)
    total, now = taken(trace), trace.summary.ns
    for save in range(1, total - graph.persistent):
        fastest, price = least_time(graph, total - save), price_of(trace, save)
        assert price is not None
        if fastest is None:
            assert price.most_ns is None
            continue
        true = max(0, fastest - now)
        assert price.least_ns is not None, "said to be impossible"
        assert price.least_ns <= true
        assert price.most_ns is None or true <= price.most_ns
        assert not price.exact or true == price.least_ns == price.most_ns


def test_most_of_these_intervals_are_narrow_and_many_exact() -> None:
    found: list[Price] = []
    for seed in range(1, 24, 2):
        trace = curved(training_graph(seed, depth=3))
        found += [
            price for one in trace.summary.curve[:-1] if (price := price_of(trace, taken(trace) - one.total))
        ]
    known = [price for price in found if price.most_ns is not None]
    assert len(known) > len(found) // 2
    assert sum(price.exact for price in known) > len(known) // 2
    assert any(price.exact and price.most_ns for price in known)


def test_a_tensor_that_a_cheap_op_makes_costs_what_its_inputs_cost() -> None:
    layers = [
        layer
        for wide in (4, 8, 8, 8)
        for layer in (nn.Conv2d(wide, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    graph = priced(tightrope.capture(nn.Sequential(*layers), torch.ones(4, 4, 32, 32)))
    plan = solve(graph, budget=2 * whole_bytes(graph))
    for share in (5, 10, 20):
        save = plan.forecast.total * share // 100
        less = solve(graph, budget=plan.forecast.total - save, bound=True)
        saving = explain(forecast(graph, plan, others=(less,)), save=save).saving
        more = less.forecast.ns - plan.forecast.ns
        least = less.certificate.ns_bound - plan.forecast.ns
        assert 0 < least <= more
        assert saving.price == Price(least, more, less.budget)
        assert saving.bytes >= save
        assert 20 * saving.ns < more
        exactly = f"{format_time(more)} more, exactly: the plan for {format_bytes(less.budget)}"
        assert (exactly in str(saving)) == less.certificate.proved


def test_a_price_relies_on_no_plan_that_does_not_hold() -> None:
    graph = training_graph(3, depth=3)
    plan = solve(graph, budget=2 * whole_bytes(graph))
    said = msgspec.structs.replace(plan.forecast, ns=plan.forecast.ns - 1)
    wrong = msgspec.structs.replace(plan, forecast=said, budget=plan.budget - 1)
    with pytest.raises(JudgeError, match="does not hold for its graph"):
        forecast(graph, plan, others=(wrong,))


def test_without_a_plan_or_its_times_there_is_no_price() -> None:
    graph = training_graph(3, depth=3)
    free = msgspec.structs.replace(graph, ops=tuple(msgspec.structs.replace(op, ns=0) for op in graph.ops))
    timeless = explain(forecast(free, solve(free, budget=2 * whole_bytes(free))), save=1).saving
    assert timeless.price is None
    assert "not known without a plan's prices" in str(timeless)
    alone = forecast(graph, solve(graph, budget=2 * whole_bytes(graph)))
    assert price_of(msgspec.structs.replace(alone, summary=Summary(producer="eager")), 1) is None
    price = price_of(alone, 1)
    assert price == Price(0)
    assert "an unknown time: no plan that small is known here" in str(explain(alone, save=1).saving)
    impossible = explain(alone, save=taken(alone)).saving
    assert impossible.price == Price(None)
    assert "not possible, no plan takes so little (proved)" in str(impossible)
