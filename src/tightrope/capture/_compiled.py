"""Functions of ours that Dynamo compiles; private names of torch for that.

Idea        Dynamo calls back for code that it has no graph of, and only then is torch changed: a call of
            what is compiled already compares its guards and runs.
Guarantee   What this module changes for a trace is as it was between two such conversions, for any thread.
Gaps        While one thread traces, others see the changed classes; what they trace is told apart by
            `tightrope.capture._eager`.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

from tightrope.capture._eager import traced_as_eager
from tightrope.capture._torch import NOT_A_LEAF

RECOMPILE_LIMIT: Final = 256
"""Every new shape is a new plan, so that many may be captured of one function."""
_THREAD = threading.local()


def compile_with(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    *,
    whole: bool = True,
    dynamic: bool = False,
    begin: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Let Dynamo compile a function for a backend as `torch.compile` does, and as eager computes it.

    Args:
        function: compiled when it is called.
        backend: given its graphs.
        whole: as one graph, else as a sequence.
        dynamic: with sizes that are symbols.
        begin: called before each trace.
    """
    import torch._dynamo

    context = torch._dynamo.optimize(backend, nopython=whole, dynamic=dynamic)
    if hasattr(context, "callback"):  # not where torch.compile is switched off
        context.callback = _Converting(context.callback, begin, whole=whole)
    found: Callable[..., Any] = context(function)
    return found


class _Converting:
    """Stands for what the interpreter calls for code that has no graph yet: Dynamo's own callback.

    Args:
        convert: that callback.
        begin: see `compile_with`.
        whole: see there.
    """

    def __init__(self, convert: Any, begin: Callable[[], None], *, whole: bool) -> None:
        self._convert, self._begin, self._whole = convert, begin, whole

    def __call__(self, *args: Any) -> Any:
        self._begin()
        with tracing(whole=self._whole):
            return self._convert(*args)


@contextmanager
def tracing(*, whole: bool = True) -> Iterator[None]:
    """Settings of a trace of ours.

    The limit on recompilations is raised. Dynamo does not cut graphs inside DistributedDataParallel: one plan
    per step needs one graph. Hooks are guarded, so that one which comes or goes later is seen. Numpy draws
    from its own generator, which no graph can hold. Recurrent layers are traced where the ``whole`` call is
    to be one graph. Log calls in model code are passed over: they would break the graph, and make no tensor.
    """
    import torch._dynamo.config as config

    settings: dict[str, Any] = {
        "recompile_limit": RECOMPILE_LIMIT,
        "accumulated_recompile_limit": 4 * RECOMPILE_LIMIT,
        "optimize_ddp": False,
        "skip_nnmodule_hook_guards": False,
        "use_numpy_random_stream": True,
        "allow_rnn": whole,
        "specialize_float": True,
        **logs_ignored(),
    }
    with (
        config.patch(**settings), tracing_joint_graphs(), traced_as_eager(whole=whole), _without_warnings(),
        _broken_log_left_out(),
    ):  # fmt: skip
        tell(True)
        try:
            yield
        finally:
            tell(False)


@contextmanager
def tracing_joint_graphs() -> Iterator[None]:
    """Settings for AOTAutograd alone.

    As in eager, a backward runs outside of autocast. The check of custom ops at the first run is off: it runs
    ops under a dispatch mode, in which they make other allocations than ever after.
    """
    import torch._functorch.config as functorch
    from torch._functorch._aot_autograd import runtime_wrappers

    wanted: dict[str, Any] = {"check_custom_op_aliasing": False, "backward_pass_autocast": "off"}
    with (
        functorch.patch(**{name: value for name, value in wanted.items() if hasattr(functorch, name)}),
        patch.object(runtime_wrappers._FirstInvocationContext, "__init__", _is_no_first_run),
    ):
        yield


def _is_no_first_run(check: Any) -> None:
    check._is_first = False


@contextmanager
def telling(traced: Callable[[bool], None]) -> Iterator[None]:
    """Tell ``traced`` when a trace begins in this thread (True), and when code may run again (False)."""
    outer, _THREAD.traced = getattr(_THREAD, "traced", None), traced
    try:
        traced(False)
        yield
    finally:
        _THREAD.traced = outer


def tell(begins: bool) -> None:
    """Tell who wants to know that a trace begins, or ended."""
    if (traced := getattr(_THREAD, "traced", None)) is not None:
        traced(begins)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence warnings that Dynamo causes, for itself: of custom autograd.Functions, of computed inputs.

    The filters are touched while a graph is traced and at no other time: each change makes Python
    forget which warnings it has shown.
    """
    text = "<class 'torch.autograd.function.Function'> should not be instantiated"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=text, category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=f"{NOT_A_LEAF}|Error detected in ")  # no backward
        yield


def logs_ignored() -> dict[str, Any]:
    """Write the setting by which Dynamo passes over log calls."""
    import torch._dynamo.config as config

    names = ("debug", "info", "warning", "error", "critical", "exception", "log", "warning_once", "info_once")
    methods = {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}
    setting = (
        "ignore_logging_functions" if hasattr(config, "ignore_logging_functions") else "ignore_logger_methods"
    )
    return {setting: set(getattr(config, setting)) | methods}


@contextmanager
def _broken_log_left_out() -> Iterator[None]:
    """Let Dynamo leave its settings out of its own log where it cannot write functions down (torch 2.11)."""
    from torch._dynamo import utils

    name, broken = "_get_dynamo_config_for_logging", False
    try:
        getattr(utils, name, str)()
    except TypeError:
        broken = True
    with patch.object(utils, name, lambda: None) if broken else nullcontext():
        yield
