"""Rewrite a model: export it, saturate, extract, and take the form whose plan is the smallest.

Idea        Bytes that are kept are a guess at what a plan needs. So forms are extracted with several weights
            of time and bytes. Every form is captured, and the planner says what it needs at most and at
            least.
Guarantee   A budget that held still holds: no form is taken whose smallest plan found is larger than the
            budget, or than that of the model.
Complexity  An export, and a capture and a plan per form; parts that are alike are solved once.
            A form is taken where results, gradients and buffers of the example equal those of the model,
            within the tolerance of a fused step.
Gaps        Results differ by rounding. The smallest plan is that which the planner finds.
"""

import copy
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tightrope.capture import capture
from tightrope.core import Bytes, InfeasibleError, TightropeError, parse_bytes
from tightrope.fuse.tolerance import WHOLE_STEP, difference, tolerance
from tightrope.plan import whole_bytes
from tightrope.plan.api import plan
from tightrope_forms.rewrite._torch import tree_leaves
from tightrope_forms.rewrite.egraph import saturate
from tightrope_forms.rewrite.extract import CostWeights, Extracted, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, Section, emitted, exported, sections
from tightrope_forms.rewrite.rules import RULES

WEIGHTS: Final = (CostWeights(1.0, 1.0), CostWeights(0.01, 1.0), CostWeights(1.0, 0.0))
MOST_NODES: Final = 500
SECONDS: Final = 60.0
_SECONDS: Final = 5.0  # for one part


class RewrittenModel(NamedTuple):
    """An equal form of a model."""

    model: nn.Module  # with the parameters of the one that was given, or that one where no form is smaller
    rules: dict[str, int]  # that made it, with the number of places
    kept: Bytes  # that it keeps for its backward, as modelled, by parts that are solved
    kept_before: Bytes
    whole: tuple[Bytes, Bytes]  # what the given order needs, before and after
    smallest: tuple[Bytes, Bytes]  # of the plans that were found, before and after
    solved: tuple[int, int, int]  # parts, how many of them differ, and how many were proved optimal
    said: str  # what else happened, or nothing


class Solved(NamedTuple):
    """A part, priced with every form that rules give, and the one that was extracted."""

    costs: FormCosts
    found: Extracted

    def rules(self) -> list[str]:
        """Name the rules whose nodes the form needs."""
        choice, why = self.found.choice, self.costs.graph.why
        return [why[choice[one]] for one in self.costs.needed(choice) or [] if choice[one] in why]


def solve_part(part: Section, weights: CostWeights, *, end: float = math.inf) -> Solved | None:
    """Saturate and extract one part until some time; None where it has no ops."""
    if not part.roots:
        return None
    if not part.graph.applied:
        saturate(part.graph, RULES, most_nodes=MOST_NODES, end=end)
    roots = [part.classes[one] for one in part.roots]
    costs = FormCosts(part.graph, roots, [part.classes[one] for one in part.kept], weights)
    return Solved(costs, extract(costs, seconds=min(_SECONDS, end - time.monotonic())))


def smallest_plan(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bytes, Bytes]:
    """Capture a step; return what its order needs, and the smallest budget that the planner finds."""
    graph = capture(model, *args, **kwargs)
    whole = whole_bytes(graph)
    try:
        plan(graph, budget=1)
    except InfeasibleError as error:
        return whole, min(whole, error.smallest_found or whole)
    return whole, whole


def rewrite(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    budget: str | Bytes | None = None,
    seconds: float = SECONDS,
) -> RewrittenModel:
    """Return the form of a model whose plan is the smallest.

    Args:
        model: in the mode in which it will run.
        args: of an example call; sizes are those of the form.
        kwargs: of it.
        budget: for which a plan is wanted: of forms that fit, that which needs the fewest bytes in the given
            order. None = forms must not raise the smallest budget.
        seconds: of search. A form is planned only where as much is left as the plan of the model took.

    Raises:
        TightropeError: the model cannot be exported or captured.

    Example:
        >>> class Swish(nn.Module):
        ...     def forward(self, x):
        ...         return (x * torch.sigmoid(x)).sum()
        >>> found = rewrite(nn.Sequential(nn.Linear(8, 8), Swish()), (torch.ones(4, 8),))
        >>> found.rules
        {'x * sigmoid(x) = silu(x)': 1}
    """
    named, start = kwargs or {}, time.monotonic()
    before = smallest_plan(model, tuple(args), named)
    module = exported(model, tuple(args), named)
    parts = sections(module, ExportedValues(module))
    unlike = {part.key: part for part in reversed(parts)}
    most = before[1] if budget is None else max(parse_bytes(budget, whole=before[0]), before[1])
    a_form, end, said = time.monotonic() - start, start + seconds, ""

    def score(sizes: tuple[Bytes, Bytes]) -> Bytes:
        return sum(sizes) if budget is None else sizes[0]

    best: tuple[nn.Module, tuple[Bytes, Bytes], list[Solved]] = (model, before, [])
    for weights in WEIGHTS:
        solved = {key: solve_part(part, weights, end=end - a_form) for key, part in unlike.items()}
        found = [solved[part.key] for part in parts]
        forms = [(one.costs.graph, one.found.choice) if one and one.rules() else None for one in found]
        if time.monotonic() + a_form > end:  # for its capture and its plan
            said = f"; {seconds:g} seconds ended the search"
            break
        if (other := emitted(module, parts, forms)) is not None:
            after = smallest_plan(other, tuple(args), named)
            if score(after) < score(best[1]) and after[1] <= most:
                if equal(model, other, args, named):
                    best = (other, after, [one for one in found if one is not None])
                else:
                    said = "; a form gave other values or gradients, and was not taken"
    made, after, taken = best
    proved = {id(one.costs.graph): one.found.status == "optimal" for one in taken}
    return RewrittenModel(
        made,
        dict(Counter(name for one in taken for name in one.rules())),
        sum(one.costs.bytes(one.found.choice) for one in taken),
        sum(one.costs.bytes(one.costs.given()) for one in taken),
        (before[0], after[0]),
        (before[1], after[1]),
        (len(parts), len(unlike), sum(proved.values())),
        said,
    )


def equal(model: nn.Module, other: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Run two models; tell whether results, gradients and buffers are equal within a tolerance.

    Parameters, buffers and arguments are copied before: they stay as they are.
    """
    found = []
    for one in (model, other):
        named = sorted((*one.named_parameters(), *one.named_buffers()))
        state = {name: x.detach().clone().requires_grad_(x.requires_grad) for name, x in named}
        given, options = copy.deepcopy((tuple(args), kwargs))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            made = torch.func.functional_call(one, state, given, options)
            made = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
            roots = [x for x in made if x.requires_grad]
            backs = [torch.linspace(-1, 2, x.numel()).view(x.shape).to(x.dtype) for x in roots]
            torch.autograd.backward(roots, backs)
        results = (x.grad if x.requires_grad else x for x in state.values())
        found.append([x.detach() for x in (*made, *results) if x is not None])
    largest = max((float(x.abs().max()) for x in found[0] if x.is_floating_point() and x.numel()), default=0)
    return len(found[0]) == len(found[1]) and all(
        one.shape == two.shape and (
            difference(two, one) <= WHOLE_STEP
            or float((two - one).abs().max()) <= tolerance(one.dtype) * largest  # 0 but for rounding
        )
        for one, two in zip(*found, strict=True)
    )  # fmt: skip


def rewritten(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], budget: str, seconds: float | None
) -> tuple[nn.Module, str]:
    """Rewrite for the command line: return the model, and a line that says what was done.

    Raises:
        TightropeError: the model has tensors on the meta device, or cannot be exported.
    """
    if any(one.is_meta for one in (*model.parameters(), *model.buffers())):
        raise TightropeError("The model is on the meta device. Rewriting exports it: build it on the CPU.")
    with torch.random.fork_rng(devices=[]):
        found = rewrite(model, args, kwargs, budget=budget, seconds=seconds or SECONDS)
    uses = ", ".join(f"{name} ({count}x)" for name, count in sorted(found.rules.items()))
    whole, smallest = (" -> ".join(f"{one:,}" for one in sizes) for sizes in (found.whole, found.smallest))
    did = f"{uses}: {whole} B, smallest {smallest} B" if uses else "no form has a smaller plan"
    return found.model, f"rewrite: {did}{found.said}"
