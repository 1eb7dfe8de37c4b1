"""`step`: a whole training step under a byte budget, as one call.

Forward, backward and update are one plan, with no return to the user in between. A gradient dies
as soon as the update has used it, so the step needs less memory than a planned model with
``optimizer.step()`` after it, or recomputes less in the same memory.

    call:    step(*batch) .............................................................. loss
    arena:   [ forward | backward, each update right behind its gradient ] [ idle ]
    limit:   [ on, always ........................................................ ]
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture._compiled import compile_with
from tightrope.capture._eager import said_of
from tightrope.capture.announce import GradientGroups
from tightrope.capture.api import check_model
from tightrope.capture.dynamo import make_backend
from tightrope.capture.failures import uncaptured
from tightrope.capture.optim import Updates
from tightrope.capture.program import Program
from tightrope.capture.whole import trained_positions
from tightrope.core import CaptureError, InfeasibleError, TightropeError
from tightrope.core.arguments import check_search, refuse_argument
from tightrope.price.device import device_named, device_of
from tightrope.run.base.arguments import (
    AS_EAGER,
    check_clip,
    check_switches,
    check_verify,
    parse_budget,
    parse_chunk,
)
from tightrope.run.base.sharded import refuse_divided
from tightrope.run.base.status import StatusLine, build_native
from tightrope.run.base.weak import weakly
from tightrope.run.compile import plan_small
from tightrope.run.execute.prepared import Proof
from tightrope.run.execute.untested import cannot_capture
from tightrope.run.ledger.accounts import Accounts, accounts
from tightrope.run.report import Report, planned_report, proofs
from tightrope.run.session.fused import faster_form
from tightrope.run.session.levels import mode_left
from tightrope.run.session.on_gpu import refuse_step_on_gpu
from tightrope.run.session.unit import Settings
from tightrope.run.session.units import ANOTHER_GRAPH
from tightrope.run.session.whole_step import WholeStep
from tightrope.run.verify.eager import Sampling
from tightrope.run.verify.eager_step import EagerStep

_UPDATES = "the optimizer updates other parameters, or in another way"
"""Shapes (and train/eval) that one step may be planned for."""


def step(
    fn: Callable[..., Any],
    *,
    budget: str | int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    clip_norm: float | None = None,
    norm_type: float | str = 2.0,
    clip_value: float | None = None,
    verify: str | None = "first",
    fuse: bool = False,
    seed: int = 0,
    seconds: float | None = None,
    progress: bool | None = None,
    overwrite: bool = True,
    chunk: str | int = "auto",
) -> "TrainingStep":
    """Hold whole training steps (forward, backward, update) to a number of bytes.

    The budget is the total on the device during the step: parameters, buffers, optimizer state,
    inputs, activations, gradients and temporaries, placed at planned addresses. Losses, buffers and
    random streams are bit-equal to the captured graph without a plan; parameters and optimizer
    state to ``optimizer.step()`` with ``foreach=False`` on its gradients.

    With an optimizer, every call updates its parameters and leaves no gradients behind; state is in
    ``optimizer.state``, hyperparameters are read from its groups at every call, so learning rate
    schedulers and ``state_dict`` work as ever; the optimizer's step hooks run after the update.
    Gradients of parameters outside the optimizer, or of all without one, are written to ``.grad``,
    or added to what is there.

    Args:
        fn: called as ``fn(*batch)``, closing over the model; returns the scalar loss, or a tuple
            that begins with it, the rest being handed back detached.
        budget: ``"8GiB"``, ``"300 MB"``, bytes, or ``"60%"`` of what the unplanned step needs.
        model: whose parameters ``fn`` trains; names them in messages.
        optimizer: `torch.optim.SGD`, `torch.optim.Adam` or `torch.optim.AdamW`.
        clip_norm: clip what the optimizer uses as ``torch.nn.utils.clip_grad_norm_(parameters, clip_norm,
            norm_type)`` does, bit for bit; the norm that it returns is then in ``total_norm``. Gradients
            wait until all are known, or are made again where bytes are short.
        norm_type: kind of the norm: 2.0, or ``"inf"``, for example.
        clip_value: clip as ``clip_grad_value_(parameters, clip_value)`` does, which takes no more bytes.
        verify: ``"first"`` checks every plan in its first run, value by value where something is computed
            again; ``"graph"`` also compares with the captured graph without a plan, ``"eager"`` the first two
            runs and every 97th with an eager step, ``"always"`` every run; None checks nothing.
        fuse: run stretches of the plan as loops, compiled, where that is faster; equal within a tolerance.
        seed: of the plan search.
        seconds: of plan search; default: until the default effort is spent.
        progress: on standard error; default: on a terminal, elsewhere one line per plan; False = nothing.
        overwrite: let ops write results over inputs that nothing needs any more: fewer bytes, same bits.
        chunk: where no plan fits otherwise, split a loss over many classes into chunks of rows; sums over
            rows are then equal within a tolerance. ``"auto"`` = as many as it takes (none where ``verify``
            compares with eager), a number = so many (refused where an op is in the way), False = never.

    Returns:
        A callable that runs one training step per call.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        TightropeError: the optimizer is not one of those, another argument is wrong, or torch is too new.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 8)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> train = step(lambda x: model(x).square().mean(), budget="64MiB", model=model, optimizer=sgd)
        >>> train(torch.ones(2, 8)).requires_grad
        False
    """
    if not callable(fn):
        refuse_argument("fn", fn, "a function that returns the loss, called as fn(*batch)")
    check_model(model)
    check_verify(verify, ("first", "graph", *AS_EAGER))
    check_search(seed=seed, seconds=seconds, progress=progress)
    check_switches(fuse, overwrite, verify)
    clip = check_clip(clip_norm, norm_type, clip_value, optimizer)
    settings = Settings(
        parse_budget(budget, None), verify=verify, seed=seed, seconds=seconds, fuse=fuse,
        writes=overwrite, chunk=parse_chunk(chunk, verify),
    )  # fmt: skip
    return TrainingStep(fn, model, Updates(optimizer, clip), settings, status=StatusLine(shown=progress))


class TrainingStep:
    """A training step that is planned at its first call, and once per input shape; made by `step`.

    An error that is raised while a step runs (not while it is planned or checked) may leave some
    parameters updated and others not.

    Attributes:
        fn: as given.
        model: as given.
        wholes: one per captured graph, in order of capture.
        last: the one that ran last.
        before_run: called with it and its arguments right before it runs.
        past: proofs of plans for what the optimizer wanted before.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        model: torch.nn.Module,
        updates: Updates,
        settings: Settings,
        *,
        status: StatusLine,
    ) -> None:
        self.fn = fn
        self.model, self.updates, self.settings, self.status = model, updates, settings, status
        refuse_step_on_gpu(device_of(model.parameters()))
        if reason := cannot_capture(status, plan_small):
            raise CaptureError(
                f"{reason} Use tightrope.compile(model, budget=...), which runs without a capture."
            )
        build_native(status)
        self.accounts: Accounts = accounts()
        self.before_run: Callable[[WholeStep, list[Any]], None] | None = None
        self.accounts.search()
        self.wholes: list[WholeStep] = []
        self.last: WholeStep | None = None
        self.past: list[Proof] = []
        sampling = Sampling(always=settings.verify == "always")
        eager = EagerStep(fn, model, updates, self.accounts, sampling)
        self._twin = eager if settings.verify in AS_EAGER else None
        backend = make_backend(partial(_host, weakref.ref(self)), name=type(model).__name__, alone=True)
        self._planned = compile_with(_detaching(fn), backend)

    def __del__(self) -> None:
        for whole in self.__dict__.get("wholes", ()):
            whole.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one training step.

        Returns:
            What the function returns, detached.

        Raises:
            CaptureError: at the first call with inputs of these shapes: the step is not one graph.
            InfeasibleError: likewise: no plan fits the budget.
            VerificationError: at the first call: results differ from the reference.
            TightropeError: parameters of the optimizer have gradients already, or were replaced.
        """
        if not self.wholes:
            refuse_divided(self.model, "tightrope.step", "Use tightrope.compile and optimizer.step().")
        if (mode := mode_left()) is not None:
            raise TightropeError(f"{said_of(mode)}: call the step outside of it.")
        self.accounts.mark()
        if self._twin is not None:
            self._twin.begin()
        try:
            with torch.enable_grad():
                result = self._planned(*args, **kwargs)
        except InfeasibleError:
            if not any(whole.num_steps for whole in self.wholes):
                self.accounts.release(self)  # until it is called again
            raise
        except _torch.unsupported_errors() as error:
            raise uncaptured(error, "the step", call="step(x, y)") from error
        except Exception as error:
            cause = _torch.cause_in_backend(error)
            if cause is None or cause is error:
                raise
        else:
            found = _handed_out(result)
            if self._twin is not None and self.last is not None:
                self._twin.compare(found, self.last.calls.recent[0], self.last.total_norm, args, kwargs)
            return found
        cause.__context__ = None  # the frames of the capture would hold memory
        try:
            raise cause.with_traceback(None)
        finally:
            del cause  # it holds this frame

    @property
    def total_norm(self) -> torch.Tensor | None:
        """Norm of all gradients of the last step before clipping; None without ``clip_norm``."""
        return None if self.last is None else self.last.total_norm

    def report(self) -> Report:
        """Describe the plan and the last step.

        Raises:
            TightropeError: no step has run yet.
        """
        if self.last is None:
            raise TightropeError("no training step has run yet: call the step first.")
        others = [proof for whole in self.wholes if whole is not self.last for proof in proofs(whole.calls)]
        found = planned_report(self.last.calls)
        every = sorted((*self.past, *others, *found.proofs), key=lambda proof: proof.judged)
        return replace(found, proofs=tuple(every))

    def renew(
        self, number: int, program: Program, real: Sequence[Any], *, why: str = _UPDATES, plain: bool = False
    ) -> None:
        """Take a captured graph in again."""
        self.past += proofs(self.wholes[number].calls)
        self.wholes[number].close()
        self.wholes[number] = self.whole(program, real, why=why, plain=plain)

    def whole(self, program: Program, real: Sequence[Any], *, why: str, plain: bool = False) -> WholeStep:
        """Take a captured graph in; unless ``plain``, a fused one in the form that takes least time."""
        refuse_step_on_gpu(device_named(program.graph.environment))  # it may have moved
        form = None
        if self.settings.fuse and not plain:
            form = faster_form(program, real, self.accounts.allocator, self.status)
        make = partial(
            WholeStep, program, real, self.settings, self.accounts, self.status,
            updates=self.updates, parameters=_parameters(program, real, self.updates), labels=self._labels(),
        )  # fmt: skip
        if form is not None:
            with suppress(InfeasibleError):
                return make(why=why, form=form)
            why = form.misfit
        return make(why=why)

    def use(self, whole: WholeStep) -> WholeStep:
        """Hold the process to the budget for a run, and learn of its plan."""
        self.last, whole.calls.when_fits = whole, weakly(weakref.ref(self), TrainingStep._planned_to_run)
        budget = max(whole.calls.budget for whole in self.wholes)
        self.accounts.hold(self, budget, name=f"the step of {type(self.model).__name__}")
        return whole

    def _planned_to_run(self) -> None:
        if self._twin is not None and self.last is not None:
            unit = self.last.calls.last_unit(self.last.number)
            assert unit is not None
            assert unit.prepared is not None
            self._twin.planned(unit.prepared.proof)

    def _labels(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self.model.named_parameters()}


class Stopped(BaseException):
    """Leaves a step that is not to run, from ``before_run``; no handler of errors may take it for one."""


class _StepGraph:
    """One captured graph; see `tightrope.capture.dynamo.Runner`.

    Dynamo remembers it for ever, so everything that holds memory belongs to the step. The plan is
    made anew when the optimizer changes which tensors or temporaries it needs, as when a weight
    decay becomes zero or a parameter group is added.
    """

    def __init__(self, owner: TrainingStep, program: Program, real: Sequence[Any]) -> None:
        self.owner, self.program, self.number = weakref.ref(owner), program, len(owner.wholes)
        owner.accounts.survey()
        why = ANOTHER_GRAPH if owner.wholes else "first plan"
        owner.wholes.append(owner.whole(program, real, why=why))

    def forward(self, args: list[Any]) -> list[Any]:
        """Run the whole step."""
        owner = self.owner()
        assert owner is not None
        if owner.wholes[self.number].outdated():
            owner.renew(self.number, self.program, args)
        if owner.last is not None:
            owner.last.total_norm = None
        whole = owner.use(owner.wholes[self.number])
        if owner.before_run is not None:
            owner.before_run(whole, args)
        said = whole.rewritten_as
        given = list(args) if said else []
        try:
            return [*whole.run(args), torch.empty(0)]
        except InfeasibleError:  # before anything ran
            if not given:
                raise
        owner.renew(self.number, self.program, given, why=f"{said}, it does not fit", plain=True)
        return [*owner.use(owner.wholes[self.number]).run(given), torch.empty(0)]

    def backward(self, args: list[Any], by_group: GradientGroups | None = None) -> list[Any]:
        """Not used: the loss is handed out detached."""
        raise TightropeError("the backward of a step runs inside it: its loss is detached.")

    def inference(self, args: list[Any]) -> list[Any]:
        """Not used: programs without a backward are refused."""
        raise TightropeError("this program has a backward.")


def _host(reference: "weakref.ref[TrainingStep]", program: Program, real: Sequence[Any]) -> _StepGraph:
    owner = reference()
    assert owner is not None
    if not program.has_backward:
        raise CaptureError(
            "the loss does not depend on any parameter that requires a gradient. The function must return "
            "the loss alone or first in a tuple."
        )
    return _StepGraph(owner, program, real)


def _parameters(program: Program, real: Sequence[Any], updates: Updates) -> dict[int, torch.Tensor]:
    """What is trained, by position among the inputs of the graph."""
    groups = updates.groups()
    found: dict[int, torch.Tensor] = {}
    for position in trained_positions(program):
        tensor = real[position]
        if not isinstance(tensor, torch.nn.Parameter) and tensor not in groups:
            raise CaptureError(
                f"an input of shape {tuple(tensor.shape)} requires a gradient and is no parameter: "
                "detach it, or use tightrope.compile for its gradient."
            )
        if not tensor.numel():
            raise CaptureError("a parameter without elements requires a gradient: freeze it.")
        found[position] = tensor
    if groups and not any(tensor in groups for tensor in found.values()):
        raise TightropeError(
            "the optimizer holds none of the parameters that the loss depends on: nothing would be trained. "
            "Make it from the parameters of the model that the function calls."
        )
    return found


def _detaching(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Cut everything but the loss off the autograd graph, so that only the loss has a tangent.

    A result without a loss becomes None before anything is planned.
    """

    def whole_step(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        several = isinstance(result, tuple | list) and len(result) > 0
        if not isinstance(result[0] if several else result, torch.Tensor):
            return None
        if several:
            return (result[0], *[_detached(item) for item in result[1:]])
        return result

    return whole_step


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, tuple | list):
        return type(value)([_detached(item) for item in value])
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    return value


def _handed_out(result: Any) -> Any:
    if result is None:
        raise CaptureError(
            "the function of the step returned no loss. It must return a tensor with one element, alone or "
            "first in a tuple."
        )
    return (result[0].detach(), *result[1:]) if isinstance(result, tuple) else result.detach()
