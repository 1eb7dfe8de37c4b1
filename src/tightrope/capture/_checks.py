"""Run each adapter of `tightrope.capture._probes` on something small, and compare what it does.

Traces of a few ops take some milliseconds each; no check draws a random number, warns, or compiles C++.
"""

import contextvars
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType
from typing import Any, Final

import torch
import torch.fx

from tightrope.capture import _compiled, _eager, _guards, _inductor, _norms, _torch
from tightrope.capture._probes import CAPTURE, gone
from tightrope.capture.api import capture_program
from tightrope.capture.dynamo import make_backend
from tightrope.capture.program import Program
from tightrope.core import TightropeError


def broken(adapters: Sequence[str] = CAPTURE) -> dict[str, str]:
    """Find the adapters that do not work on the installed torch, with the reason.

    Where names are gone the others are not run: they would fail for the same reason.
    """
    found = gone(tuple(adapters))
    if found:
        return found
    with warnings.catch_warnings(), torch.enable_grad(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        for name in adapters:
            try:
                if not CHECKS[name]():
                    found[name] = "it does something else than it did"
            except Exception as error:  # whatever another torch raises
                line = " ".join(str(error).split())[:200].rstrip(".")
                found[name] = f"{type(error).__name__}: {line}"
    return found


class _SeenCall(TightropeError):
    """Ends a capture once the program is there."""


@contextmanager
def _traceable(
    function: Callable[..., Any], backend: Any, *, dynamic: bool = False, traced: Any = None
) -> Iterator[Callable[..., Any]]:
    """Give a function, traced as one of the user's, and forget what was compiled for it."""
    code = function.__code__
    function.__code__ = code.replace(co_filename="<tightrope check>")
    forget = _torch.own_code(function)
    try:
        with nullcontext() if traced is None else _compiled.telling(traced):
            yield _compiled.compile_with(function, backend, dynamic=dynamic)
    finally:
        forget()
        function.__code__ = code


def _traced(function: Callable[..., Any], *given: Any) -> str:
    """List the calls of the graph that Dynamo makes of a function."""
    calls: list[str] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        calls.extend(getattr(node.target, "__name__", str(node.target)) for node in module.graph.nodes)
        return module.forward

    with _traceable(function, backend) as run:
        run(*given)
    return " ".join(calls)


def _ops(model: torch.nn.Module, given: torch.Tensor) -> list[str]:
    return [op.target for op in capture_program(model, (given,))[0].graph.ops]


def _storages() -> bool:
    tensor = torch.ones(2)
    gone = _torch.watch_storage(tensor)
    same = _torch.storage_at(_torch.storage_key(tensor)).data_ptr() == tensor.data_ptr()
    there = not gone()
    del tensor
    return same and there and gone()


def _ops_that_run() -> bool:
    with _eager.kernels_called() as called:
        inside = _eager.innermost_mode() is not None
        torch.ones(2).neg()
    leaves = _eager.tensors_in({"a": [torch.ones(1)]})
    return inside and "aten.neg.default" in called and len(leaves) == 1


def _running_backward() -> bool:
    seen: list[tuple[bool, int]] = []

    class Behind(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return given.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            seen.append((_torch.keeps_graph(), _torch.num_that_run(seen)))
            return gradient

    class Marked(Behind):
        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    inner: Any = Marked.apply(torch.ones(2, requires_grad=True))  # type: ignore[no-untyped-call]
    inner.grad_fn.by_group = seen
    outer: Any = Behind.apply(inner)  # type: ignore[no-untyped-call]
    outer.sum().backward(retain_graph=True)
    outer.sum().backward()
    return seen == [(True, 1), (False, 1)]


def _shapes_without_values() -> bool:
    with _torch.shapes_only() as fake:
        made = fake([torch.ones(2)])[0].neg()
        with _torch.real_tensors():
            real = torch.ones(2)
    with _torch.copied_without_values(torch.nn.Linear(2, 2)) as copied:
        kind = type(copied.weight)
    (stand_in,) = _torch.without_values([torch.ones(3)])
    fakes = [type(one) is not torch.Tensor for one in (made, stand_in)]
    return all(fakes) and type(real) is torch.Tensor and kind is not torch.nn.Parameter


def _settings_of_calls() -> bool:
    import torch._dynamo.config as config

    began: list[bool] = []
    inside: list[bool] = []
    names = ("optimize_ddp", "skip_nnmodule_hook_guards", "use_numpy_random_stream", "allow_rnn")
    before = [getattr(config, name) for name in names]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg()

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        inside.append(config.recompile_limit == _compiled.RECOMPILE_LIMIT)
        inside.extend(getattr(config, name) for name in names)
        return module.forward

    with _traceable(function, backend, traced=began.append) as run:
        run(torch.ones(2))
    restored = [getattr(config, name) for name in names] == before
    return inside == [True, False, False, True, True] and True in began and not began[-1] and restored


def _joint_graphs() -> bool:
    import torch._functorch.config as functorch

    with _compiled.tracing_joint_graphs():
        settings = functorch.check_custom_op_aliasing, functorch.backward_pass_autocast
    program, _ = capture_program(_TwoEnds(), (torch.ones(2, 2, requires_grad=True),))
    return settings == (False, "off") and set(program.ends) == {0, 1} and program.start.read == {1}


class _TwoEnds(torch.nn.Module):
    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = given.tanh()
        return hidden, hidden.sum()


def _code_that_is_traced() -> bool:
    traces: list[tuple[CodeType, ...]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg()

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        traces.append(_torch.traced_code())
        return module.forward

    forget = _torch.own_code(function)
    run = _compiled.compile_with(function, backend)
    for _ in range(2):
        run(torch.ones(2))
        run(torch.ones(2))
        forget()
    return len(traces) == 2 and all(function.__code__ in codes for codes in traces)


def _calls_of_loggers() -> bool:
    log = logging.getLogger("tightrope check")

    def function(x: torch.Tensor) -> torch.Tensor:
        log.debug("a step")
        return x.neg()

    return "neg" in _traced(function, torch.ones(2))


def _is_refused(function: Callable[..., Any]) -> bool:
    try:
        _traced(function, torch.ones(2))
    except _torch.unsupported_errors():
        return True
    return False


def _refusals() -> bool:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.neg()

    return _is_refused(function)


def _order_of_norms() -> bool:
    mixed = torch.zeros(2), torch.zeros(3, dtype=torch.float64), torch.zeros(1)
    return "".join(map(str, _norms.order_of_norms(mixed))) in ("021", "102")


def _what_a_trace_is_told() -> bool:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg() if torch.compiler.is_compiling() else x.exp()

    return "exp" in _traced(function, torch.ones(2)).split()


def _rows_of_tensors() -> bool:
    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = x
        return first + second  # type: ignore[no-any-return]

    return "unbind" in _traced(function, torch.ones(2))


def _context_variables() -> bool:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("tightrope check", default=1)

    def function(x: torch.Tensor) -> torch.Tensor:
        token = variable.set(2)
        found = x.neg() if variable.get() == 2 else x.exp()
        variable.reset(token)
        return found

    def left_set(x: torch.Tensor) -> torch.Tensor:
        variable.set(3)
        return x.neg()

    return "neg" in _traced(function, torch.ones(2)) and _is_refused(left_set) and variable.get() == 1


def _fast_attention() -> bool:
    from torch.nn.modules import activation

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg() if activation._is_make_fx_tracing() else x.exp()  # type: ignore[no-untyped-call]

    return "exp" in _traced(function, torch.ones(2)).split()


def _kernels_of_eager() -> bool:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softshrink(), torch.nn.Dropout(0.5))
    found = _ops(model, torch.ones(2, 2))
    return {"aten.softshrink.default", "tightrope.dropout"} <= set(found)


def _layouts_of_norms() -> bool:
    ones = torch.ones(4)
    with _torch.shapes_only() as fake, _norms.norms_laid_out():
        given, scale = fake((torch.ones(2, 3, 4).transpose(1, 2), ones))
        found = torch.ops.aten.native_batch_norm.default(given, scale, scale, scale, scale, True, 0.1, 1e-5)
    return bool(found[0].is_contiguous())


def _meta_as_cpu() -> bool:
    with _eager.meta_as_cpu():
        (found,) = _torch.without_values([torch.ones(2, device="meta")])
    return found.device == torch.device("cpu")  # type: ignore[no-any-return]


def _branches_on_constants() -> bool:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg() if torch.ones(2).sum() > 1 else x.exp()

    return "neg" in _traced(function, torch.ones(2)).split()


def _random_objects() -> bool:
    own = random.Random(0)
    before = own.getstate()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * own.random()

    return _is_refused(function) and own.getstate() == before


def _derivatives_of_functions() -> bool:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(given: torch.Tensor) -> torch.Tensor:
            return given * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Keep nothing."""

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda given: Doubled.apply(given).sum())(x)  # type: ignore[no-any-return, no-untyped-call]

    return _is_refused(function)


def _overlaps() -> bool:
    whole = torch.ones(4)
    return _guards.overlapping([whole[:2], whole[1:]]) == {0, 1} and not _guards.overlapping(
        [whole[:2], whole[2:]]
    )


def _forbidden_calls() -> bool:
    from torch._dynamo import decorators

    def function(x: torch.Tensor) -> torch.Tensor:
        decorators.mark_static_address(x)
        return x.neg()

    return "neg" in _traced(function, torch.ones(2))


def _sizes_as_symbols() -> bool:
    programs: list[Program] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum()

    def host(program: Program, _: Any) -> Any:
        programs.append(program)
        raise _SeenCall

    try:
        with _traceable(function, make_backend(host, name="check"), dynamic=True) as run:
            run(torch.ones(5, requires_grad=True))
    except Exception as error:  # Dynamo wraps it
        if not isinstance(_torch.cause_in_backend(error), _SeenCall):
            raise
    (program,) = programs
    other = program.resizable.at((9,)) if program.resizable is not None else program
    return program.sizes == (5,) and other.sizes == (9,) and len(other.graph.ops) == len(program.graph.ops)


def _loops() -> bool:
    given = (torch.Size((64,)), (1,), torch.float32)
    text = _inductor.write(_inductor.Loops("check", lambda args: (args[0].exp().neg(),), [given]))
    return not isinstance(text, str) and len(text[0].kernels) == 1


CHECKS: Final[dict[str, Callable[[], bool]]] = {
    "storages": _storages,
    "ops that run": _ops_that_run,
    "running backward": _running_backward,
    "shapes without values": _shapes_without_values,
    "settings of calls": _settings_of_calls,
    "joint graphs": _joint_graphs,
    "code that is traced": _code_that_is_traced,
    "calls of loggers": _calls_of_loggers,
    "refusals of torch": _refusals,
    "order of norms": _order_of_norms,
    "what a trace is told": _what_a_trace_is_told,
    "rows of tensors": _rows_of_tensors,
    "context variables": _context_variables,
    "fast attention": _fast_attention,
    "kernels of eager": _kernels_of_eager,
    "layouts of norms": _layouts_of_norms,
    "tensors of the meta device": _meta_as_cpu,
    "branches on constants": _branches_on_constants,
    "random objects": _random_objects,
    "derivatives of functions": _derivatives_of_functions,
    "overlaps": _overlaps,
    "forbidden calls": _forbidden_calls,
    "sizes as symbols": _sizes_as_symbols,
    "loops": _loops,
}
"""Adapter -> what tells whether it works."""
