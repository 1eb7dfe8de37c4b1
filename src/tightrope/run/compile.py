"""`compile`: a byte budget for a model, in any training loop.

The model object stays what it is: same class, parameters, ``state_dict`` and hooks. Only its calls change, by
torch's own per-module compile slot. Each new input shape is captured and planned once.
"""

import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import torch

from tightrope.capture.api import check_model
from tightrope.capture.dynamo import Host, Runner
from tightrope.capture.program import Program
from tightrope.core import Machine, TightropeError
from tightrope.core.arguments import check_search, refuse_argument
from tightrope.core.collector import collector_paused
from tightrope.core.units import shown
from tightrope.run.base.arguments import AS_EAGER, check_fallback, check_switches, check_verify, parse_budget
from tightrope.run.base.never_called import expect_call
from tightrope.run.base.pending_backwards import drain_failed
from tightrope.run.base.shapes import Shape, check_shapes
from tightrope.run.base.state import state_of
from tightrope.run.base.status import StatusLine
from tightrope.run.execute.paging import paging_of
from tightrope.run.execute.untested import Loss, cannot_capture, loss_of
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.compiled import CompiledModel
from tightrope.run.session.equal_forms import finder
from tightrope.run.session.levels import Levels, entries_of, only_plain
from tightrope.run.session.unit import Settings
from tightrope.run.verify.eager import EagerTwin, Sampling


def check_example(example: object) -> None:
    """Refuse what is neither a tuple of positional nor a dict of keyword arguments."""
    if isinstance(example, dict) and not all(isinstance(name, str) for name in example):
        refuse_argument("example", example, "the names of keyword arguments, each with its value")
    if example is not None and not isinstance(example, dict | tuple | list):
        refuse_argument(
            "example", example, "a tuple of inputs, such as example=(x,), or a dict of them by name"
        )


def plan_ahead(model: torch.nn.Module, example: Any) -> None:
    """Capture and plan without changing anything: buffers and the random state are put back."""
    if example is None:
        return
    restore = state_of(model)
    try:
        model(**example) if isinstance(example, dict) else model(*example)
    except (TightropeError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the model raises
        said = (str(error).splitlines() or [""])[0][:200]
        raise TightropeError(
            f"example={shown(example)}: the model raises {type(error).__name__} for it ({said}): "
            "give inputs that it takes."
        ) from error
    finally:
        restore()


Model = TypeVar("Model", bound=torch.nn.Module)
_Call: TypeAlias = Callable[..., Any]
_COMPILED: "weakref.WeakKeyDictionary[torch.nn.Module, CompiledModel]" = weakref.WeakKeyDictionary()
_WRAPPED: Final = ("module", "_orig_mod")
"""Where wrappers keep the model: DistributedDataParallel and its like, and `torch.compile`."""


def compiled_of(model: torch.nn.Module) -> CompiledModel:
    """Find what belongs to a model that `compile` compiled, which a wrapper may hold.

    Raises:
        TightropeError: the model was not compiled by `compile`.
    """
    inner: torch.nn.Module | None = model
    while inner is not None:
        if inner in _COMPILED:
            return _COMPILED[inner]
        inner = next((inner._modules[name] for name in _WRAPPED if name in inner._modules), None)
    raise TightropeError(
        f"this {type(model).__name__} was not compiled: call tightrope.compile(model, budget=...) first. "
        'After torch.compile(model, backend="tightrope"), run a training step first.'
    )


def compile(
    model: Model,
    *,
    budget: str | int,
    example: Any = None,
    verify: str | None = "first",
    fuse: bool = False,
    rewrite: bool | str = False,
    machine: Machine | None = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: bool | None = None,
    overwrite: bool = True,
    page_to: str | Path | None = None,
    shapes: "str | Sequence[Shape] | None" = None,
    fallback: str = "auto",
) -> Model:
    """Hold the training steps of ``model`` to a number of bytes, with unchanged results.

    The budget is the total on the device during the step: parameters, buffers, optimizer state, inputs,
    activations, gradients and temporaries. Losses, gradients, buffers and random streams are bit-equal to
    the captured graph without a plan.

    Args:
        model: trained in place; the same object is returned.
        budget: ``"8GiB"``, ``"300 MB"``, bytes, or ``"60%"`` of what the unplanned step needs; where it is
            not one graph, or no plan fits, of what two to eight first steps take, which run unlimited.
        example: inputs, a tuple or a dict by name, to capture and plan with now; default: at the first call.
        verify: ``"first"`` checks every plan in its first run, value by value where something is computed
            again; ``"graph"`` also compares with the captured graph without a plan, ``"eager"`` the first two
            runs and every 97th with the model as it is, ``"always"`` every run; None checks nothing.
        fuse: run stretches of the plan as loops, compiled, where that is faster; equal within a tolerance.
        rewrite: plan a smaller form, equal within a tolerance; or its method. See ``tightrope[forms]``.
        machine: profile to check the budget against; default: this machine.
        seed: of the plan search.
        seconds: of plan search; default: until the default effort is spent.
        progress: on a terminal by default; elsewhere a line per plan, by logger ``tightrope``, to stderr.
        overwrite: let ops write results over inputs that nothing needs any more: fewer bytes, same bits.
        page_to: folder on a disk to which activations may be paged, where that is faster than computing
            them again; a second tier of ``machine`` limits the bytes there and says how fast it is.
        shapes: where inputs change their sizes: ``"bucket"``, or a list of the largest shapes to expect, such
            as ``[(8, 64), (8, 128)]`` of the first tensor or ``{"input_ids": (8, 64)}`` by name. A call is
            captured once for all sizes, and only the largest of each bucket is planned; nothing is padded.
        fallback: what a model that is not one graph, or that no plan fits, runs under, with a warning:
            ``"evict"`` = level E; ``"pieces"`` = a sequence of planned graphs; ``"auto"`` = level L0 if that
            is enough without recomputation, else E; ``"replay"`` = pieces, or L0 where nothing is captured.

    Returns:
        ``model``.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: at the first call (or now, with ``example``): no plan fits.
        ShapeError: in a call that is larger than every shape of the list, with the price of admitting it.
        VerificationError: in the first run of a plan: a value differs from what it was before.
        PagingError: in a step: a page cannot be written, or does not come back as it was.
        TightropeError: another argument is wrong.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
    """
    check_model(model)
    check_verify(verify, ("first", "graph", *AS_EAGER))
    check_switches(fuse, overwrite, verify, rewrite)
    check_fallback(fallback)
    buckets = check_shapes(shapes, fuse=fuse, page_to=page_to)
    check_search(seed=seed, seconds=seconds, progress=progress)
    check_example(example)
    settings = Settings(
        parse_budget(budget, machine), verify, seed, seconds, fuse=fuse, writes=overwrite, fallback=fallback,
        pages=paging_of(page_to, machine, fuse=fuse, seed=seed, seconds=seconds),
        rewrite=finder(method=rewrite) if rewrite else None,
    )  # fmt: skip
    compiled = CompiledModel(model.parameters(), settings, StatusLine(shown=progress), shapes=buckets)
    compiled.many_sizes, compiled.name = shapes is not None, type(model).__name__
    _wrap(model, compiled)
    plan_ahead(model, example)
    return model


@collector_paused()  # the first call imports Dynamo
def _wrap(model: torch.nn.Module, compiled: CompiledModel) -> None:
    """Make calls of a model those of what belongs to it."""
    if (verify := compiled.settings.verify) in AS_EAGER:
        compiled.twin = EagerTwin(weakref.ref(model), compiled.accounts, Sampling(always=verify == "always"))
    compiled.unable = cannot_capture(compiled.status, plan_small)
    ways = (
        only_plain(model)
        if compiled.unable
        else entries_of(model, host_of(weakref.ref(compiled)), compiled.accounts.mark)
    )
    compiled.forget = ways.forget
    _take_over(model, compiled)
    model._compiled_call_impl = Levels(weakref.ref(model), compiled, ways).call
    _COMPILED[model] = compiled
    expect_call(compiled, type(model).__name__, model.parameters())


def plan_small(model: torch.nn.Module, budget: int) -> tuple[Loss, Callable[[], str]]:
    """Plan the small model by which a torch is tried that was not tested."""
    compile(model, budget=budget, progress=False)
    return lambda given: loss_of(model(given)), lambda: compiled_of(model).level


def _take_over(model: torch.nn.Module, compiled: CompiledModel) -> None:
    """Let go of what a model was compiled to before, and hold the process to the new budget if it is held."""
    if model in _COMPILED:
        _COMPILED[model].close()
    drain_failed()
    if not compiled.accounts.budget:
        return
    gc.collect()  # models that nobody uses any more hold the process to their budgets until then
    compiled.accounts.search()
    if compiled.accounts.budget and isinstance(compiled.settings.budget, int):
        compiled.accounts.hold_if_possible(compiled, compiled.settings.budget, RESERVE)


def host_of(reference: "weakref.ref[CompiledModel]") -> Host:
    """Reach the compiled model without keeping it alive: Dynamo remembers every backend for ever."""

    def host(program: Program, real: Sequence[Any]) -> Runner:
        compiled = reference()
        assert compiled is not None
        return compiled.host(program, real)

    return host
