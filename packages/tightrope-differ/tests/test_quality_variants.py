"""Forms of nets compute what they should, and the search chooses the cheapest that works."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from tightrope.core import TightropeError
from tightrope_differ.nets.variants import bytes_of, low_rank, pruned, variants
from tightrope_differ.quality import Application, find_region
from tightrope_differ.quality.choose import choose, flops_of, forms_of


def net(channels: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.Conv2d(channels, 32, 3, padding=(1, 0), dilation=(1, 2)), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2),
    ).eval()  # fmt: skip


SAMPLE = torch.randn(4, 3, 16, 20, generator=torch.Generator().manual_seed(1))


def test_a_split_at_full_rank_computes_the_same() -> None:
    whole, split = net(), low_rank(net(), 1.0)
    assert [type(one) for one in split].count(nn.Sequential) == 4
    assert torch.allclose(whole(SAMPLE), split(SAMPLE), atol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_a_split_never_costs_more_and_is_the_nearest_of_its_rank(share: float) -> None:
    split = low_rank(net(), share)
    assert flops_of(split, SAMPLE) <= flops_of(net(), SAMPLE)
    assert split(SAMPLE).shape == (4, 2)
    layer = nn.Linear(24, 40)
    first, second = low_rank(nn.Sequential(layer), 0.25)[0]
    left, sizes, right = torch.linalg.svd(layer.weight)
    assert torch.allclose(second.weight @ first.weight, left[:, :6] * sizes[:6] @ right[:6], atol=1e-5)


def test_what_cannot_be_split_stays() -> None:
    layers = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding_mode="reflect"), nn.ConvTranspose2d(8, 8, 3), nn.Linear(2, 2),
    )  # fmt: skip
    assert not [one for one in low_rank(layers, 0.25) if isinstance(one, nn.Sequential)]


def test_a_net_of_one_layer_is_split() -> None:
    assert [tuple(one.weight.shape) for one in low_rank(nn.Linear(64, 64), 0.25).children()] == [
        (16, 64), (64, 16),
    ]  # fmt: skip


def test_forms_run_and_are_smaller() -> None:
    pytest.importorskip("torch_pruning")
    made = {one.name: one.net for one in variants(net(), SAMPLE)}
    assert len(made) == 12
    assert {one(SAMPLE).shape for one in made.values()} == {(4, 2)}
    assert torch.equal(made["as it is"](SAMPLE), net()(SAMPLE))
    assert bytes_of(made["pruned 75%"]) < bytes_of(made["pruned 50%"]) < bytes_of(made["as it is"])
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(960, 8), nn.ReLU(), nn.Linear(8, 2))
    assert not [one.name for one in variants(fixed, SAMPLE) if "input" in one.name]


def test_pruning_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope_differ.nets.variants.find_spec", lambda name: None)
    with pytest.raises(TightropeError, match=r"pip install 'tightrope-differ\[prune\]'"):
        pruned(net(), SAMPLE, 0.5)
    assert [one.name for one in variants(net(), SAMPLE)] == [
        "as it is", "rank 25%", "input 1/2", "rank 25%, input 1/2"
    ]  # fmt: skip


def application(**more: Any) -> Application:
    """Errors are those of the products of nets whose sizes are their errors."""

    @cache
    def error(one: nn.Module) -> float:
        return 1 / (1 + flops_of(one, SAMPLE) / 20_000)

    def measure(nets: dict[str, nn.Module]) -> dict[str, float]:
        return {name: error(one) for name, one in nets.items()}

    given: dict[str, Any] = {
        "nets": {"a": net(), "b": net(8)},
        "measure": measure,
        "perceive": measure,
        "samples": {"a": SAMPLE, "b": SAMPLE},
    }
    axes = {"a": (0.0, 1.0), "b": (0.0, 1.0)}
    return Application(axes, dict, lambda e: 0.12 - e["a"] * 0.6 - e["b"] * 0.4, **(given | more))


@pytest.mark.parametrize("goal", ["flops", "bytes"])
def test_the_choice_is_the_cheapest_in_the_region_and_needs_few_runs(goal: Any) -> None:
    app = application()
    assert app.measure is not None
    forms, region = forms_of(app), find_region("app", app, budget=20)
    guided, unguided = (choose(app, forms, one, goal=goal, most_runs=200) for one in (region, None))
    works = [
        sum(getattr(form, goal) for form in choice)
        for choice in product(*forms.values())
        if app.run(app.measure({name: one.net for name, one in zip(forms, choice, strict=True)})) > 0
    ]
    assert getattr(unguided.tried[-1], goal) == min(works)
    assert getattr(guided.tried[-1], goal) <= 1.5 * min(works)
    assert guided.nets
    runs = [sum(one.margin is not None for one in found.tried) for found in (guided, unguided)]
    assert runs[0] == 1 < runs[1]
    few = choose(app, forms, None, goal=goal, most_runs=1)
    assert (few.nets, [one.broken for one in few.tried]) == ({}, [[], ["runs"]])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"nets": {}}, "no nets, measure and perceive"),
        ({"measure": None}, "no nets, measure and perceive"),
        ({"samples": {"a": SAMPLE}}, "'b' is no torch.nn.Module with a batch"),
        ({"samples": {"a": SAMPLE, "b": SAMPLE[:, :1]}}, "'b' fails on its sample: RuntimeError"),
        (
            {"nets": {"a": nn.LSTM(20, 2)}, "samples": {"a": SAMPLE[0]}},
            "'a' returns a tuple: return one tensor",
        ),
        ({"tune": lambda name, one: 1 / 0}, r"tune fails for 'a', .*: ZeroDivisionError"),
    ],
)
def test_applications_without_what_is_needed_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        forms_of(application(**more))


def test_functions_that_fail_are_named_with_the_choice() -> None:
    app = application()
    forms, region = forms_of(app), find_region("app", app, budget=9)
    for name in ("measure", "perceive"):
        with pytest.raises(TightropeError, match=f"{name} fails for a .*; b .*: ZeroDivisionError"):
            choose(replace(app, **{name: lambda nets: 1 / 0}), forms, region if name == "measure" else None)
    with pytest.raises(TightropeError, match="no value of the metric 'b'"):
        choose(replace(app, measure=lambda nets: {"a": 0.0}), forms, region)
