"""Choose among a captured call and its equal forms, for `compile(..., rewrite=True)` and `plan --rewrite`.

Idea        What Dynamo captured is exported, and cut into parts that are saturated and extracted. Bytes that
            are kept are a guess at what a plan needs. So forms are extracted with several weights of time
            and bytes, traced as the call was, and planned for the same room; see `tightrope.run.session`.
Guarantee   The planned peak is at most that of the call as captured, and so is the planned time, up to the
            scatter of measured prices. A part is rewritten after its form gave the results and gradients of
            its ops on random numbers, within the tolerance of a fused step.
Complexity  An export; a run of each part that differs, in both forms; a trace and a plan per form.
Gaps        Calls with a backward of their own, autocast or constants stay as captured. So do those that write
            in place, but for inputs that nothing else reads.
"""

import copy
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import Tensor, fx, nn

from tightrope.capture._torch import real_tensors, without_values
from tightrope.capture.program import Program
from tightrope.core import Bytes, Flag, Forecast, InfeasibleError, TightropeError
from tightrope.fuse.tolerance import WHOLE_STEP, difference, tolerance
from tightrope.price.device import device_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.session.equal_forms import PlanForm
from tightrope_forms.rewrite._torch import constant_fold, preserve_node_meta, tracing, tree_leaves
from tightrope_forms.rewrite.egraph import ClassId, Spec, saturate, thawed
from tightrope_forms.rewrite.extract import Choice, CostWeights, Extracted, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, Section, emitted, exported, sections
from tightrope_forms.rewrite.rules import RULES
from tightrope_forms.rewrite.search import Walk, walk_of
from tightrope_forms.rewrite.substitute import searched

WEIGHTS: Final = (CostWeights(1.0, 1.0), CostWeights(0.01, 1.0), CostWeights(1.0, 0.0))
_SECONDS, _SECONDS_OF_PART = 60.0, 5.0  # of search for the forms of a call, of extraction from a part
_SCATTER: Final = 1.02  # times the time of a plan: within this, measured prices differ from run to run
_WORTH: Final = 0.99  # times time and bytes of a plan: a form must be below
_SHARES: Final = 0.0, 1.0, 0.9, 0.8, 0.7  # of the bytes of the call as captured; 0 = the room is the limit
Rules = tuple[str, ...]


def chosen_form(
    program: Program, real: Sequence[Any], planned: PlanForm, *, method: str = "exact"
) -> tuple[Program, str, Bytes]:
    """Choose what is planned for a call; see `tightrope.run.session.equal_forms.ChooseForm`."""
    walk = walk_of(method)
    before, named = _tried(planned, program)  # a refusal is said where it is planned, if no form names less
    try:
        found = _traced_forms(program, real, walk)
    except TightropeError as error:
        return program, f"not rewritten: {error}", 0
    best, least = (program, "not rewritten: no form has a smaller plan", 0), _WORTH
    for other, rules in found:
        if before is None:
            after, smallest = _tried(planned, other)
            most, price, saved = 0, 0.0, "as captured nothing fits"
            if after is None and least and smallest < named:
                said = f"rewritten for the smallest budget: {', '.join(rules)}"  # where it runs after all
                named, best = smallest, (other, said, 0)
        else:
            after, most, price = _cheapest(planned, other, before)
            if after is not None:
                took = f"{before.ns / 1e6:.1f} -> {after.ns / 1e6:.1f} ms"
                saved = f"planned {before.total:,} -> {after.total:,} B, {took}"
        if after is not None and price < least:
            said = f"rewritten, {saved}: {', '.join(rules)}"
            other.call.name = f"{program.graph.name}, {said}"
            graph = msgspec.structs.replace(other.graph, name=other.call.name)
            best, least = (replace(other, graph=graph), said, most), price
    return best


def _cheapest(planned: PlanForm, form: Program, before: Forecast) -> tuple[Forecast | None, Bytes, float]:
    """Plan a form for the room, and for fewer bytes while that lowers time times bytes.

    No plan has a higher peak than the call as captured, or takes more time, up to scatter.

    Returns:
        The forecast, what its plans may take at most, and time times bytes over those of the call; or None.
    """
    best: tuple[Forecast | None, Bytes, float] = None, 0, math.inf
    for share in _SHARES:
        most = int(share * before.total)
        if best[0] is not None and best[0].total <= most:
            continue  # as it is
        after, _ = _tried(planned, form, most)
        if after is None or after.ns > _SCATTER * before.ns:
            break
        price = after.ns / max(before.ns, 1) * after.total / before.total
        if after.total <= before.total and price >= best[2]:
            break
        if after.total <= before.total:
            best = after, most or before.total, price
    return best


def _tried(planned: PlanForm, program: Program, most: Bytes = 0) -> tuple[Forecast | None, float]:
    """Plan; return the forecast, or None and the smallest total that a refusal found."""
    try:
        return planned(program, most).forecast, math.inf
    except InfeasibleError as error:
        return None, error.smallest_found or math.inf
    except torch.OutOfMemoryError:
        return None, math.inf


def _traced_forms(program: Program, real: Sequence[Any], walk: Walk | None) -> list[tuple[Program, Rules]]:
    """Trace a call in its forms, each with the rules that made it; an error says why it stays as captured."""
    call, found = program.call, []
    for bad, why in (
        (any(enabled for _, enabled, _ in call.casting), "autocast chooses the types of its ops."),
        (bool(program.constants), "it has tensors that are no inputs."),
        (bool(program.sizes), "its sizes may change."),
        (call.shares, "it writes in place into memory that inputs share."),
        (any(isinstance(one, Tensor) and one.is_meta for one in real), "it is on the meta device."),
    ):
        if bad:
            raise TightropeError(why)
    with accounts(device_of(real)).aside(), real_tensors(), torch.enable_grad():
        computed = [given for given, _ in call.uses.split or ()]  # gradients come to each use
        for module, rules in forms(call.module, without_values(real), computed, walk):
            form = copy.copy(call)
            form.module, form.told, form.uses = module, [*call.told, *rules], copy.copy(call.uses)
            try:
                other = form.traced_from(program.start, without_values(real))
            except RuntimeError:  # a view of what is laid out otherwise now
                continue
            if _outside(other) == _outside(program) and not other.constants:
                found.append((other, rules))
    return found


def _outside(program: Program) -> tuple[Any, ...]:
    """Say what is seen outside: outputs and random numbers with their layouts, and what is written."""
    ops = (op for op in program.graph.ops if Flag.RANDOM in op.flags)
    drawn = [(op.target, *((one.view.shape, one.view.strides) for one in op.results)) for op in ops]
    return program.ends, program.strides, program.changed, drawn


class _Captured(nn.Module):
    """A captured module that is run op by op, so that ops keep their lines."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        with preserve_node_meta():
            return fx.Interpreter(self.module).run(*args)


def forms(
    module: fx.GraphModule, inputs: Sequence[Any], fixed: Collection[int] = (), walk: Walk | None = None
) -> Iterator[tuple[fx.GraphModule, Rules]]:
    """Find forms of a captured module, given inputs without values, each with the rules that made it.

    What reads ``fixed`` inputs stays as it is.

    Raises:
        TightropeError: it has a backward of its own, does not export, or writes in place.
    """
    if any("autograd_function" in str(node.target) for node in module.graph.nodes):
        raise TightropeError("it has an autograd function of its own, which is kept.")
    if sum(isinstance(one, fx.GraphModule) for one in module.modules()) > 1:
        raise TightropeError("it has graphs inside, such as checkpoints.")
    with tracing(None):  # no part of the capture that is under way
        whole = exported(_Captured(module), tuple(inputs), {})
    yield from _forms(whole, ExportedValues(whole, fixed), WEIGHTS, walk)


def _forms(
    whole: fx.GraphModule, values: ExportedValues, every: Sequence[CostWeights], walk: Walk | None = None,
    *, frozen: bool = False,
) -> Iterator[tuple[fx.GraphModule, Rules]]:  # fmt: skip
    values.refuse_writes()
    end, parts = time.monotonic() + _SECONDS, sections(whole, values)
    unlike = {part.key: part for part in reversed(parts)}
    right: dict[tuple[int, str], bool] = {}
    made: set[str] = set()
    for weights in every:
        solved: dict[str, Solved] = {}
        for key, part in unlike.items():
            if (
                one := solve_part(part, weights, end=end, frozen=frozen, walk=walk)
            ) is not None and one.rules():
                choice = id(one.costs.graph), repr(sorted(one.found.choice.items()))
                if choice not in right:
                    right[choice] = equal_part(one)
                if right[choice]:
                    solved[key] = one
        found = [solved.get(part.key) for part in parts]
        taken = [one and (one.costs.graph, one.found.choice) for one in found]
        other = emitted(whole, parts, taken)
        if other is not None and other.code not in made:
            made.add(other.code)
            count = Counter(name for one in found if one is not None for name in one.rules())
            yield other, tuple(f"{name} ({num}x)" for name, num in sorted(count.items()))


def rewritten_for_inference(
    model: nn.Module, *args: Tensor, method: str = "exact", policy: str | Path | None = None
) -> tuple[fx.GraphModule, Rules]:
    """Rewrite a model whose weights stay, for inference on tensors of these sizes.

    Branches of convolutions and batch norms become one convolution, and what weights alone make is computed
    once. Results are those of the model up to rounding, which was compared on ``args``.

    Args:
        model: in evaluation mode; its weights are copied where a rule changes them.
        args: an example of its inputs, on which both forms run.
        method: ``exact`` extraction, or a search: ``backtracking``, ``restarts`` or ``agent``.
        policy: a file of `tightrope_forms.rewrite.agent.save_policy`, for the agent.

    Returns:
        The form, and the rules that made it, with how often each was used.

    Raises:
        TightropeError: no form was found, it trains, it does not export, or values differ.

    Example:
        >>> block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        >>> rewritten_for_inference(block, torch.ones(1, 3, 8, 8))[1]
        ('batch_norm(conv(x, A)) = conv(x, A s) (1x)',)
    """
    if not isinstance(model, nn.Module):
        raise TightropeError(f"model={model!r:.60} is no torch.nn.Module.")
    if any(one.training for one in model.modules()):
        raise TightropeError("the model trains. Call model.eval() first.")
    walk = walk_of(method, policy)
    with torch.no_grad():
        whole = exported(model, args, {})
        found = _forms(whole, ExportedValues(whole, frozen=True), [CostWeights(1.0, 0.0)], walk, frozen=True)
        form, rules = next(found, (whole, ()))
        if not rules:
            raise TightropeError("no form of this model is faster by our rules.")
        constant_fold(form.eval())
        both = [[x for x in tree_leaves(one(*args)) if isinstance(x, Tensor)] for one in (form, model)]
        far = max(map(difference, *both), default=0.0)
    if not far <= WHOLE_STEP:
        raise TightropeError(f"the form differs from the model by {far:.1e} on this example. Use the model.")
    return form, rules


class Solved(NamedTuple):
    """A part, priced with every form that rules give, and the one that was extracted."""

    costs: FormCosts
    found: Extracted

    def rules(self) -> list[str]:
        """Name the rules whose nodes the form needs."""
        choice, why = self.found.choice, self.costs.graph.why
        return [why[choice[one]] for one in self.costs.needed(choice) or [] if choice[one] in why]


def solve_part(
    part: Section, weights: CostWeights, *, end: float = math.inf, frozen: bool = False,
    walk: Walk | None = None,
) -> Solved | None:  # fmt: skip
    """Find the cheapest form of a part until some time, by extraction or a walk; None where it has no ops."""
    if not part.roots:
        return None
    if walk is None and not part.graph.applied:
        saturate(part.graph, RULES, end=end)
    roots = [part.classes[one] for one in part.roots]
    costs = FormCosts(part.graph, roots, [part.classes[one] for one in part.kept], weights, frozen=frozen)
    left = min(_SECONDS_OF_PART, end - time.monotonic())
    if walk is None:
        return Solved(costs, extract(costs, seconds=left))
    return Solved(*searched(costs, partial(walk, end=time.monotonic() + left)))


def equal_part(one: Solved) -> bool:
    """Run a part and its form on random numbers; tell whether results and gradients are close."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        every, values = one.costs.graph.nodes.items(), one.costs.graph.values
        leaves = {at: _drawn_leaf(values[at]) for at, some in every if any(n.op == "leaf" for n in some)}
        try:
            right, found = (_run(one, choice, leaves) for choice in (one.costs.given(), one.found.choice))
        except RuntimeError:  # a view of what is laid out otherwise now
            return False
    largest = max((float(x.abs().max()) for x in right if x.is_floating_point() and x.numel()), default=0)
    return all(
        difference(x, y) <= WHOLE_STEP
        or float((x - y).abs().max()) <= tolerance(y.dtype) * largest  # 0 but for rounding
        for x, y in zip(found, right, strict=True)
    )


def _drawn_leaf(spec: Spec) -> Tensor:
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
    if spec.dtype.is_floating_point and spec.shape[1:] == () and not spec.grad:
        return made.uniform_(0.5, 1.5)  # such as variances
    made = made.normal_() if spec.dtype.is_floating_point else made.zero_()  # as indices, 0 is always right
    return made.requires_grad_(spec.grad)


def _run(one: Solved, choice: Choice, leaves: dict[ClassId, Tensor]) -> list[Tensor]:
    """Return results, and gradients of the leaves."""
    find, values = one.costs.graph.find, dict[ClassId, Any](leaves)
    for at in one.costs.needed(choice) or []:
        if (node := choice[at]).op != "leaf":
            given, named = thawed(node.args, [values[find(child)] for child in node.children])
            values[at] = node.op(*given, **named)
    results = [values[root] for root in one.costs.roots if isinstance(values[root], Tensor)]
    roots, wanted = ([x for x in some if x.requires_grad] for some in (results, leaves.values()))
    backs = [torch.linspace(-1, 2, x.numel()).view(x.shape).to(x) for x in roots]
    grads = torch.autograd.grad(roots, wanted, backs, materialize_grads=True) if roots and wanted else ()
    return [x.detach() for x in (*results, *grads)]
