"""`torch.compile(model, backend="tightrope", options={"budget": "8GiB"})`.

For code that owns its call of ``torch.compile`` (trainers that take a backend by name). Every graph
that Dynamo hands over gets a plan of its own under the one budget; `tightrope.compile` is the
better door where there is a choice: it sees the whole call as one graph. `tightrope.report` takes
models of either.
"""

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture._compiled import compile_with
from tightrope.capture._guards import lost_derivative, run_as_it_is
from tightrope.capture.dynamo import make_backend
from tightrope.core import CaptureError, TightropeError
from tightrope.core.arguments import check_search
from tightrope.run.base.arguments import check_switches, check_verify, parse_budget
from tightrope.run.base.status import StatusLine
from tightrope.run.compile import host_of, plan_small
from tightrope.run.execute.untested import cannot_capture, is_untried
from tightrope.run.session.compiled import CompiledModel, note_graph
from tightrope.run.session.unit import Settings

VARIABLE = "TIGHTROPE_BUDGET"
"""Environment variable that holds the budget where options cannot be passed."""

_KNOWN = {"budget": None, "verify": "first", "seed": 0, "seconds": None, "progress": None, "fuse": False}


def backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Plan one graph of Dynamo's under a budget and return what runs it.

    Args:
        module: the graph.
        inputs: its inputs; symbolic sizes are planned once per size that occurs.
        options: ``budget`` (``"8GiB"``, bytes or ``"60%"``; default: the environment variable
            ``TIGHTROPE_BUDGET``), ``verify``, ``seed``, ``seconds``, ``progress`` and ``fuse`` as in
            `tightrope.compile`.

    Raises:
        TightropeError: no budget, or an option that does not exist.
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: no plan fits.

    Example:
        >>> import torch
        >>> model = torch.compile(torch.nn.Linear(8, 8), backend="tightrope", options={"budget": "64MiB"})
        >>> model(torch.ones(2, 8)).sum().backward()
    """
    given = _given(options or {})
    if lost := lost_derivative(module, _torch.traced_code()):
        reason = (
            f"{lost} is a torch.autograd.Function inside of a transform of torch.func: a trace would lose "
            "its own derivative. What calls it runs as it is, without a plan."
        )
        warnings.warn(f"tightrope: {reason}", stacklevel=2)
        raise run_as_it_is(reason)
    if is_untried() or any(_symbolic(value) for value in inputs):
        return _anew(module, given)
    return _planned(module, list(inputs), given)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    flat = {**options, **(options.get("options") or {})}
    flat.pop("options", None)
    check_verify(flat.get("verify", "first"))
    unknown = sorted(set(flat) - set(_KNOWN))
    if unknown:
        raise TightropeError(f"no option is called {unknown[0]!r}; there are: {', '.join(_KNOWN)}.")
    given = {**_KNOWN, **flat}
    check_search(seed=given["seed"], seconds=given["seconds"], progress=given["progress"])
    check_switches(given["fuse"], True, given["verify"])
    if given["budget"] is None:
        given["budget"] = os.environ.get(VARIABLE)
    if given["budget"] is None:
        raise TightropeError(
            'no budget: pass options={"budget": "8GiB"} to torch.compile, '
            f"or set the environment variable {VARIABLE}."
        )
    return given


def _symbolic(value: Any) -> bool:
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _planned(module: torch.fx.GraphModule, inputs: list[Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    wanted = Settings(
        parse_budget(given["budget"], None),
        verify=given["verify"],
        seed=given["seed"],
        seconds=given["seconds"],
        fuse=given["fuse"],
    )
    where = [place for place, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter)]
    parameters = [inputs[place] for place in where]
    compiled = CompiledModel(parameters, wanted, StatusLine(shown=given["progress"]), others=inputs)
    note_graph(compiled, parameters)
    if parameters:  # Dynamo keeps what it compiled, and with it all this, longer than the model
        weakref.finalize(parameters[0], compiled.close)
    compiled.accounts.mark()
    if reason := cannot_capture(compiled.status, plan_small):
        return _without_plan(compiled, module, reason)
    try:
        planned = make_backend(host_of(weakref.ref(compiled)), name="torch.compile")(module, inputs)
    except CaptureError as error:
        planned = _without_plan(compiled, module, str(error))
    mine = list(zip(where, map(weakref.ref, parameters), strict=True))

    @functools.cache
    def elsewhere() -> Callable[..., Any]:
        return _anew(module, given)

    def call(*args: Any) -> Any:
        if any(args[place] is not parameter() for place, parameter in mine):
            return elsewhere()(*args)  # Dynamo uses what it compiled for other models of the same class, too
        compiled.accounts.mark()
        return planned(*args)

    return call


def _without_plan(compiled: CompiledModel, module: torch.fx.GraphModule, reason: str) -> Callable[..., Any]:
    """Run a graph as it is, within the limit, and say why."""
    if not isinstance(compiled.settings.budget, int):
        raise TightropeError(f"a budget in percent needs a planned graph: {reason} Give bytes.")
    compiled.hold()
    warnings.warn(f"tightrope: a graph runs without a plan, within the limit: {reason}", stacklevel=3)
    return module


def _anew(module: torch.fx.GraphModule, given: Mapping[str, Any]) -> Callable[..., Any]:
    """A plan is for one size and one model: trace the graph again for each that occurs.

    A torch that was not tested is tried before, as no trace is under way here.
    """
    plain = torch.fx.GraphModule(module, module.graph)  # Dynamo does not trace its own lazy modules

    def one_call(*args: Any) -> Any:
        return plain(*args)

    def again(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _planned(graph, inputs, given)

    found = compile_with(one_call, again)

    def call(*args: Any) -> Any:
        if is_untried():
            cannot_capture(StatusLine(shown=given["progress"]), plan_small)
        return found(*args)

    return call
