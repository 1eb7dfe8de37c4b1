"""Choose the cheapest forms of an application's nets with which it still works.

Idea        Every net has forms, and a choice is one form of each. Choices are tried from the cheapest. The
            region says of most, by measured metrics alone, that the application would fail: it runs for few.
            A guided search runs the choice that decides most others: what works settles all that cost
            more, what fails all that are nowhere better.
Guarantee   The application ran with the forms that are chosen, and worked; on a board, with the bits of the
            board, within all limits. If it is monotone, a guided search within its budget finds the cheapest.
Complexity  Forms of all nets are made and trained again once; a measurement per choice that is cheaper than
            the chosen one, and a run per choice in the region.
Gaps        A choice in the undecided part of the box is not tried. Costs are counted, not timed. If margins
            of the best nets are near 0, noise decides: a guided search may end without a choice that works.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tightrope.core import TightropeError
from tightrope_differ.lines import quiet, where_it_failed
from tightrope_differ.nets.board import Board, LoweredNets
from tightrope_differ.nets.variants import NetVariant, bytes_of, variants
from tightrope_differ.quality.region import limit_of, region_of, scaled
from tightrope_differ.quality.search import Application, metrics_of, next_candidate
from tightrope_differ.values.quality import QualityRegion, QualityRun, TriedVariant, in_order

Goal: TypeAlias = Literal["flops", "bytes"]


class _Form(NamedTuple):
    """A variant with its cost: floating-point operations on the sample, and bytes."""

    name: str
    net: nn.Module
    flops: int
    bytes: int


class VariantSearch(NamedTuple):
    """What was tried, in order; if the last works, these are its nets by name, and as C for the board."""

    tried: list[TriedVariant]
    nets: dict[str, nn.Module]
    lowered: LoweredNets | None = None


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
        try:
            with torch.no_grad():
                answer = net.eval()(app.samples[name])
        except Exception as error:  # of the user's net
            raise TightropeError(
                f"the net {name!r:.60} fails on its sample: {where_it_failed(error)}."
            ) from error
        if not isinstance(answer, torch.Tensor):
            raise TightropeError(
                f"the net {name!r:.60} returns a {type(answer).__name__}: return one tensor."
            )
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


class _Candidate(NamedTuple):
    """A choice of one form of each net."""

    name: str
    nets: dict[str, nn.Module]
    flops: int
    bytes: int


def _candidates(forms: Mapping[str, Sequence[_Form]], goal: Goal) -> list[_Candidate]:
    """List all choices, the cheapest first."""
    found = []
    for choice in product(*forms.values()):
        named = dict(zip(forms, choice, strict=True))
        flops, size = sum(form.flops for form in choice), sum(form.bytes for form in choice)
        name = "; ".join(f"{net} {form.name}" for net, form in named.items())
        found.append(_Candidate(name, {net: form.net for net, form in named.items()}, flops, size))
    return sorted(found, key=lambda one: (getattr(one, goal), one.name))


def _values(app: Application, nets: dict[str, nn.Module], name: str) -> dict[str, float]:
    assert app.measure is not None
    try:
        return {metric: float(value) for metric, value in app.measure(nets).items()}
    except Exception as error:  # of the user's function
        raise TightropeError(f"measure fails for {name}: {where_it_failed(error)}.") from error


def _margin(app: Application, nets: dict[str, nn.Module], name: str) -> float:
    assert app.perceive is not None
    try:
        perceives = app.perceive(nets)
    except Exception as error:  # of the user's function
        raise TightropeError(f"perceive fails for {name}: {where_it_failed(error)}.") from error
    return app.margin(perceives, name)


def search_guided(
    target: str,
    app: Application,
    forms: Mapping[str, Sequence[_Form]],
    *,
    goal: Goal = "flops",
    budget: int = 20,
) -> tuple[QualityRegion, VariantSearch]:
    """Find the cheapest choice of forms that works, by runs with nets alone.

    Args:
        target: name of the application.
        app: with nets; errors are not injected.
        forms: of `forms_of`.
        goal: what is made small.
        budget: runs of the application.

    Returns:
        The region of these runs, and the choices up to the one that works, the cheapest first.

    Raises:
        TightropeError: a function of the application fails, or a metric is missing.
    """
    metrics, candidates = metrics_of(app), _candidates(forms, goal)
    names = [one.name for one in metrics]
    values = [_values(app, one.nets, one.name) for one in candidates]
    seen = np.array([in_order(names, one) for one in values])
    places = np.maximum([scaled(metrics, row) for row in seen], 0.0)  # better than best is best
    inside = np.flatnonzero((places <= 1).all(1))
    held = np.where(places > 0, seen, [one.best for one in metrics])
    region, margins = region_of(target, metrics, []), dict[int, float]()
    while len(margins) < budget and (found := next_candidate(region, places[inside])) is not None:
        at = int(inside[found])
        margins[at] = _margin(app, candidates[at].nets, candidates[at].name)
        run = QualityRun(held[at].tolist(), margins[at])
        region = region_of(target, metrics, [*region.runs, run])
    limit, tried = limit_of(region), list[TriedVariant]()
    for at, one in enumerate(candidates):
        margin, allowed = margins.get(at), limit.allows(in_order(names, values[at]))
        broken = [] if allowed else ["quality"]
        if allowed and margin is None:  # the budget ended before
            broken = ["runs"]
        tried.append(TriedVariant(one.name, one.flops, one.bytes, values[at], margin, broken))
        if allowed and margin is not None and margin > 0:
            return region, VariantSearch(tried, one.nets)
    return region, VariantSearch(tried, {})


def choose(
    app: Application,
    forms: Mapping[str, Sequence[_Form]],
    region: QualityRegion | None,
    *,
    goal: Goal = "flops",
    most_runs: int = 50,
    board: Board | None = None,
) -> VariantSearch:
    """Find the cheapest choice of forms with which the application works, on a board within its limits.

    Args:
        app: with nets.
        forms: of `forms_of`.
        region: choices outside of it are not run; None = every choice is run.
        goal: what is added up over all nets.
        most_runs: of the application, or nets written for the board, before the search ends; the form that
            would be next is said not to have run.
        board: nets run as C for it, and are measured so.

    Raises:
        TightropeError: a function of the application fails, or the board has no kernel for an op.
    """
    limit = None if region is None else limit_of(region)
    tried: list[TriedVariant] = []
    left = most_runs
    for one in _candidates(forms, goal):
        nets, lowered, figures, values, broken = one.nets, None, None, {}, []
        if limit is not None:
            values = _values(app, nets, one.name)
            broken = [] if limit.allows(in_order(limit.metrics, values)) else ["quality"]
        if not broken and not left:
            tried.append(TriedVariant(one.name, one.flops, one.bytes, values, None, ["runs"]))
            break
        left -= not broken
        if board is not None and not broken:
            lowered = board.lowered(nets, app.samples)
            nets, figures = lowered.nets(), lowered.figures
            broken = figures.broken(board.limits, board.machine.flash)
            if limit is not None:
                values = _values(app, nets, one.name)
                broken += [] if limit.allows(in_order(limit.metrics, values)) else ["quality"]
        margin = None if broken else _margin(app, nets, one.name)
        tried.append(TriedVariant(one.name, one.flops, one.bytes, values, margin, broken, figures))
        if margin is not None and margin > 0:
            return VariantSearch(tried, one.nets, lowered)
    return VariantSearch(tried, {})
