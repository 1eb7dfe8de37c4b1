"""Choose the cheapest forms of an application's nets with which it still works.

Idea        Every net has forms, and a choice is one form of each. Choices are tried from the cheapest. The
            region says of most, by measured metrics alone, that the application would fail: it runs for few.
Guarantee   The application ran with the forms that are chosen, and worked.
Complexity  Forms of all nets are made and trained again once; a measurement per choice that is cheaper than
            the chosen one, and a run per choice in the region.
Gaps        A choice in the undecided part of the box is not tried. Costs are counted, not timed.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tightrope.core import TightropeError
from tightrope_differ.parity.lowerings import quiet
from tightrope_differ.parity.pipeline import where_it_failed
from tightrope_differ.quality.region import contains
from tightrope_differ.quality.search import Application
from tightrope_differ.quality.variants import NetVariant, bytes_of, variants
from tightrope_differ.values.quality import QualityRegion, TriedVariant

Goal: TypeAlias = Literal["flops", "bytes"]


class _Form(NamedTuple):
    """A variant with its cost: floating-point operations on the sample, and bytes."""

    name: str
    net: nn.Module
    flops: int
    bytes: int


class VariantSearch(NamedTuple):
    """What was tried, in order; if the last works, these are its nets by name."""

    tried: list[TriedVariant]
    nets: dict[str, nn.Module]


def forms_of(app: Application) -> dict[str, list[_Form]]:
    """Make the forms of all nets, and train them again where the application says how.

    Raises:
        TightropeError: the application has no nets, or a function of it fails.
    """
    if not app.nets or app.measure is None or app.perceive is None:
        raise TightropeError("the application has no nets, measure and perceive: give all three.")
    found: dict[str, list[_Form]] = {}
    for name, net in app.nets.items():
        if name not in app.samples or not isinstance(net, nn.Module):
            raise TightropeError(f"the net {name!r:.60} is no torch.nn.Module with a batch in samples.")
        found[name] = []
        with quiet():
            for one in variants(net, app.samples[name]):
                made = one.net if one.name == "as it is" or app.tune is None else _tuned(app.tune, name, one)
                counted = flops_of(made, app.samples[name])
                found[name].append(_Form(one.name, made.eval(), counted, bytes_of(made)))
    return found


def _tuned(tune: Callable[[str, Any], Any], name: str, one: NetVariant) -> nn.Module:
    try:
        made: nn.Module = tune(name, one.net)
    except Exception as error:  # of the user's function
        raise TightropeError(f"tune fails for {name!r}, {one.name}: {where_it_failed(error)}.") from error
    return made


def flops_of(net: nn.Module, sample: torch.Tensor) -> int:
    """Count the floating-point operations of matrix products and convolutions on a batch."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(sample)
    return int(counter.get_total_flops())


def choose(
    app: Application,
    forms: Mapping[str, Sequence[_Form]],
    region: QualityRegion | None,
    *,
    goal: Goal = "flops",
    most_runs: int = 50,
) -> VariantSearch:
    """Find the cheapest choice of forms with which the application works.

    Args:
        app: with nets.
        forms: of `forms_of`.
        region: choices outside of it are not run; None = every choice is run.
        goal: what is added up over all nets.
        most_runs: of the application, before the search ends without a choice.

    Raises:
        TightropeError: a function of the application fails.
    """
    assert app.measure is not None
    assert app.perceive is not None
    choices = sorted(
        product(*forms.values()), key=lambda one: (_cost(one, goal), [form.name for form in one])
    )
    tried: list[TriedVariant] = []
    for choice in choices:
        nets: dict[str, nn.Module] = {name: form.net for name, form in zip(forms, choice, strict=True)}
        named = "; ".join(f"{name} {form.name}" for name, form in zip(forms, choice, strict=True))
        values: dict[str, float] = {}
        if region is not None:
            try:
                values = {name: float(value) for name, value in app.measure(nets).items()}
            except Exception as error:  # of the user's function
                raise TightropeError(f"measure fails for {named}: {where_it_failed(error)}.") from error
        margin = None
        if region is None or contains(region, values):
            if sum(one.margin is not None for one in tried) == most_runs:
                return VariantSearch(tried, {})
            try:
                perceives = app.perceive(nets)
            except Exception as error:  # of the user's function
                raise TightropeError(f"perceive fails for {named}: {where_it_failed(error)}.") from error
            margin = app.margin(perceives, named)
        tried.append(TriedVariant(named, _cost(choice, "flops"), _cost(choice, "bytes"), values, margin))
        if margin is not None and margin > 0:
            return VariantSearch(tried, nets)
    return VariantSearch(tried, {})


def _cost(choice: Sequence[_Form], goal: Goal) -> int:
    return sum(form.flops if goal == "flops" else form.bytes for form in choice)
