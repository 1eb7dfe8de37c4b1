"""Let what is captured call the kernels that eager calls; private names of torch for that.

While it traces, torch takes other ways in some places: it computes some ops by decompositions written in
Python, leaves out fast paths of modules, indexes tensors that are unpacked, and tells code that asks that it
is compiled. The values differ in their last bits, or the bytes differ. All of this is put back when the trace
is over.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import torch
import torch.fx

from tightrope.capture._branches import known_branches
from tightrope.capture._forbidden import forbidden_calls_known
from tightrope.capture._guards import functions_keep_their_derivatives, overlaps_are_seen
from tightrope.capture._norms import norms_laid_out
from tightrope.capture._random import random_objects_left
from tightrope.capture.for_all import ForAll
from tightrope.capture.recurrent import gru_cell
from tightrope.core import CaptureError

_DECOMPOSED: Final = frozenset(
    f"aten.{name}" for name in ("native_batch_norm.default", "cudnn_batch_norm.default", "one_hot.default")
)
"""Batch norm is recorded in a form that says what it changes; eager checks one-hot against its values."""

_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_NARROW: Final = (torch.bfloat16, torch.float16)
"""Types for which oneDNN has a kernel of an LSTM layer on some processors; it has one for float32 on all."""
_MOST_CELLS: Final = 64
"""Of one call of plain recurrent layers: every one is some ten ops, and ten more in the backward."""

_Asking: TypeAlias = tuple[tuple[str, int, str], ...]
"""Who asked: (file, line, function) from the inside out."""


@dataclass
class _Answers:
    """What a trace answers where code asks whether it is compiled.

    Attributes:
        whole: whether the call is to be one graph; between pieces code runs as it is, and "no" breaks more.
        yes: who has to be told so.
        asked: who was told "no", in order, and nothing failed since.
        failed: where the last attempt failed.
        contexts: context variables that are set in what is traced, with (token, value) for each time.
    """

    whole: bool
    yes: dict[_Asking, None] = field(default_factory=dict)
    asked: dict[_Asking, None] = field(default_factory=dict)
    failed: str = ""
    contexts: dict[ContextVar[Any], list[tuple[Any, Any]]] = field(default_factory=dict)


_TRACE: Final = threading.local()
_OURS: Final = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, Path(__file__).parent.parent))


@contextmanager
def traced_as_eager(*, whole: bool = True) -> Iterator[None]:
    """Let Dynamo call what eager calls.

    Attention in evaluation mode has a kernel of its own, which torch leaves out where it is told of a
    trace. A tensor that is unpacked is unbound, not indexed once per row: the gradient of an index is as
    large as the tensor. Code that asks whether it is compiled is told that it is not, where it can be traced
    so; see `told_compiled` for the rest. Context variables are followed from where they are set to where they
    are put back.
    """
    with _taught():
        before, _TRACE.answers = getattr(_TRACE, "answers", None), _Answers(whole)
        try:
            yield
        finally:
            _TRACE.answers = before


@contextmanager
def _teaching() -> Iterator[None]:
    """Change what torch's tracing does, for all threads."""
    import torch._dynamo.variables.torch as variables
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.trace_rules import get_torch_obj_rule_map
    from torch._dynamo.variables.tensor import TensorVariable
    from torch.nn.modules.activation import _is_make_fx_tracing

    states, unpack, run = (
        variables.tracing_state_functions, TensorVariable.unpack_var_sequence, InstructionTranslator.run
    )  # fmt: skip
    told: dict[Any, Any] = {
        name: _is_compiled for name in states() if name.__name__ in ("is_compiling", "is_dynamo_compiling")
    }
    capturing = (torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
    told |= dict.fromkeys(capturing, _no)

    def rows(tensor: Any, tx: Any, idxes: Any = None) -> Any:
        if not tensor.valid_size() or (idxes is not None and [*idxes] != [*range(tensor.size[0])]):
            return unpack(tensor, tx, idxes)
        return tensor.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)

    with ExitStack() as stack:
        known = {_is_make_fx_tracing: False}
        stack.enter_context(patch.object(variables, "tracing_state_functions", lambda: states() | known))
        stack.enter_context(patch.object(TensorVariable, "unpack_var_sequence", rows))
        stack.enter_context(patch.object(InstructionTranslator, "run", partialmethod(_run_again, run)))
        for kind, name, ours in (
            *((kind, "call_method", _with_contexts) for kind in _kinds_of_contexts()),
            (OutputGraph, "compile_subgraph", _without_contexts),
        ):
            stack.enter_context(patch.object(kind, name, partialmethod(ours, getattr(kind, name))))
        stack.enter_context(_entered(variables.TorchInGraphFunctionVariable._get_handlers(), told))
        kinds = dict.fromkeys(capturing, variables.TorchInGraphFunctionVariable)
        stack.enter_context(_entered(get_torch_obj_rule_map(), kinds))
        for kind, table in known_branches():
            stack.enter_context(patch.object(kind, "dispatch_table", table))
        for change in (forbidden_calls_known, random_objects_left):
            stack.enter_context(change(_is_ours))
        for more in (norms_laid_out, functions_keep_their_derivatives, overlaps_are_seen, _without_logs):
            stack.enter_context(more())
        yield


_taught: Final = ForAll(_teaching)


def _is_ours() -> bool:
    return getattr(_TRACE, "answers", None) is not None


_META_FAILS: Final = "failed while attempting to run meta for"


@contextmanager
def _without_logs() -> Iterator[None]:
    """Keep from the log what traces of ours report anyway: ops that fail, and breaks at `item`."""
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._subclasses.fake_tensor import FakeTensorMode

    def shown(record: logging.LogRecord) -> bool:
        return not (_is_ours() and str(record.msg).startswith(_META_FAILS))

    log, item = logging.getLogger(FakeTensorMode.__module__), "_warn_capture_scalar_outputs"
    warn = getattr(TensorVariable, item, None)  # told once per process: not used up here
    log.addFilter(shown)
    try:
        with (
            patch.object(TensorVariable, item, staticmethod(lambda: _is_ours() or warn()))
            if warn
            else nullcontext()
        ):
            yield
    finally:
        log.removeFilter(shown)


@contextmanager
def _entered(table: dict[Any, Any], entries: dict[Any, Any]) -> Iterator[None]:
    """Put entries into a large dict for a while; `patch.dict` would copy it twice per call."""
    before = {key: table[key] for key in entries if key in table}
    table.update(entries)
    try:
        yield
    finally:
        for key in entries:
            del table[key]
        table.update(before)


def told_compiled() -> list[str]:
    """List the places that asked during this trace whether they are compiled, and were told so."""
    answers: _Answers | None = getattr(_TRACE, "answers", None)
    found: dict[str, None] = {}
    for asking in answers.yes if answers else ():
        file, line, _ = next((place for place in asking if not place[2].startswith("is_")), asking[-1])
        found[f"what torch.compiler.is_compiling() decides at {file}:{line}"] = None
    return list(found)


def _is_compiled(_function: Any, tx: Any) -> Any:
    """Answer the code that is being traced: what torch and this library ask is theirs to know."""
    from torch._dynamo.variables import ConstantVariable

    tx.mark_inconsistent_side_effects()
    answers: _Answers | None = getattr(_TRACE, "answers", None)
    asking, at = [], tx
    while at is not None:
        asking.append((at.f_code.co_filename, at.lineno, at.f_code.co_name))
        at = getattr(at, "parent", None)
    found = tuple(asking)
    if answers is None or found[0][0].startswith(_OURS):
        return ConstantVariable.create(True)
    if not answers.whole:
        answers.yes[found] = None
    if found not in answers.yes:
        answers.asked[found] = None
    return ConstantVariable.create(found in answers.yes)


def _no(_function: Any, _tx: Any) -> Any:
    """Answer whether a stream is being captured: no planned step runs in such a one."""
    from torch._dynamo.variables import ConstantVariable

    return ConstantVariable.create(False)


def _run_again(translator: Any, run: Callable[[Any], None]) -> None:
    """Trace; where that fails, begin again and tell who asked last that it is compiled, then the others."""
    from torch._dynamo import exc

    answers: _Answers | None = getattr(_TRACE, "answers", None)
    if answers is None:  # a trace of someone else's, in another thread
        run(translator)
        return
    answers.asked.clear()
    answers.contexts.clear()
    try:
        run(translator)
    except (exc.Unsupported, exc.UserError, exc.TorchRuntimeError) as error:
        place = f"{str(error).splitlines()[0]} {[str(one) for one in error.real_stack or ()]}"
        if not answers.asked:
            raise
        last = dict([answers.asked.popitem()])
        answers.yes |= last | (answers.asked if place == answers.failed else {})
        answers.failed = place
        translator.speculation_log.clear()
        raise exc.RestartAnalysis(restart_reason="it checks whether it is compiled") from None


def _kinds_of_contexts() -> tuple[Any, ...]:
    """List the classes by which Dynamo follows objects, and context variables from torch 2.14 on."""
    import torch._dynamo.variables.misc as misc
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    own = getattr(misc, "ContextVarVariable", None)
    return (UserDefinedObjectVariable,) if own is None else (UserDefinedObjectVariable, own)


def _with_contexts(
    variable: Any, call: Callable[..., Any], tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Trace a call of a method, also of a context variable that is set here or was in the same trace."""
    context = getattr(variable, "cv_obj", getattr(variable, "value", None))
    answers: _Answers | None = getattr(_TRACE, "answers", None)
    if isinstance(context, ContextVar) and answers is not None and answers.whole and not kwargs:
        known = answers.contexts.get(context, [])
        if name == "set" and len(args) == 1:
            token = _kinds_of_contexts()[0](copy_context().run(context.set, None))
            answers.contexts[context] = [*known, (token, args[0])]
            return token
        if name == "get" and known:
            return known[-1][1]
        if name == "reset" and known and len(args) == 1 and args[0] is known[-1][0]:
            from torch._dynamo.variables import ConstantVariable

            answers.contexts[context] = known[:-1]
            return ConstantVariable.create(None)
    return call(variable, tx, name, args, kwargs)


def _without_contexts(output: Any, compile_: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """End a graph: what is set in it and not put back would not be set when it runs."""
    from torch._dynamo import exc

    answers: _Answers | None = getattr(_TRACE, "answers", None)
    if answers is not None and any(answers.contexts.values()):
        raise exc.Unsupported("a context variable is set in what is traced, and not put back")
    return compile_(output, *args, **kwargs)


@contextmanager
def meta_as_cpu() -> Iterator[None]:
    """Trace tensors of the meta device as tensors of the CPU: its kernels, and branches on constants."""
    from torch._subclasses.meta_utils import MetaTensorDescriber

    describe = MetaTensorDescriber.describe_tensor

    def described(self: Any, tensor: torch.Tensor, **how: Any) -> Any:
        found = describe(self, tensor, **how)
        return replace(found, device=torch.device("cpu")) if tensor.is_meta else found

    with patch.object(MetaTensorDescriber, "describe_tensor", described):
        yield


@contextmanager
def _kernels_recorded() -> Iterator[None]:
    import torch._decomp.decompositions
    import torch._refs.nn.functional
    from torch._C import DispatchKey
    from torch._dispatch.python import all_py_loaded_overloads

    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    recurrent = [getattr(torch.ops.aten, name).input for name in _RECURRENT]
    ours: dict[Any, Callable[..., Any]] = {
        torch.ops.aten.dropout.default: _dropout,
        torch.ops.aten.gru_cell.default: _gru_cell,
    }
    ours |= {op: partial(_recurrent, op) for op in recurrent}
    loaded = (op for op in all_py_loaded_overloads() if op.namespace == "aten" and str(op) not in _DECOMPOSED)
    before = {
        op: {key: op.py_kernels[key] for key in keys if key in op.py_kernels} for op in {*loaded, *ours}
    }
    before = {op: kernels for op, kernels in before.items() if kernels or op in ours}

    def put(made: Mapping[Any, Mapping[Any, Any]]) -> None:
        for op in before:
            for key in keys:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(made.get(op, {}))
            op._dispatch_cache.clear()

    try:
        put({op: dict.fromkeys(keys, kernel) for op, kernel in ours.items()})
        with norms_laid_out():
            yield
    finally:
        put(before)
        utils = sys.modules.get("torch._export.utils")  # where an export lists kernels once and for all
        if (listed := getattr(utils, "_collect_all_valid_cia_ops_for_aten_namespace", None)) is not None:
            listed.cache_clear()


eager_kernels: Final = ForAll(_kernels_recorded)
"""Let AOTAutograd record kernels and no decompositions: torch enters those for traces, under two keys."""


def _dropout(given: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Record a dropout as one op that returns its mask; see `tightrope.capture.variants`."""
    aten = torch.ops.aten
    if train and 0 < p < 1 and given.numel() and given.is_floating_point():
        found: torch.Tensor = aten.native_dropout.default(given, p, train)[0]
        return found
    return aten.dropout.default._op_dk(_COMPOSITE, given, p, train)  # type: ignore[no-any-return]


def _gru_cell(given: torch.Tensor, *args: Any) -> torch.Tensor:
    """Record a cell of a GRU; on a GPU it is one kernel."""
    if given.device.type == "cpu":
        return gru_cell(given, *args)
    return torch.ops.aten.gru_cell.default._op_dk(_COMPOSITE, given, *args)  # type: ignore[no-any-return]


def _recurrent(op: Any, given: torch.Tensor, *args: Any) -> Any:
    """Record what eager calls for recurrent layers: one op per LSTM layer, or every step of a plain one.

    Raises:
        CaptureError: they are too many steps, or eager computes in place on parts of tensors: a trace does
            so beside them, in another layout, in which sums round otherwise.
    """
    state, _, _, num_layers, _, _, both_ways, batch_first = args
    plain = op in (torch.ops.aten.rnn_tanh.input, torch.ops.aten.rnn_relu.input)
    fused = op is torch.ops.aten.lstm.input and _has_kernel(given) and state[0].shape == state[1].shape
    cells = given.shape[int(batch_first)] * num_layers * (1 + both_ways)
    if not plain and not fused:
        raise CaptureError(f"{op} for {given.dtype} computes in place on parts of its gates")
    if plain and cells > _MOST_CELLS:
        raise CaptureError(
            f"{op} computes {cells} cells one by one, one per step, layer and direction: more than "
            f"{_MOST_CELLS} are not planned."
        )
    return op._op_dk(_COMPOSITE, given, *args)


def _has_kernel(given: torch.Tensor) -> bool:
    """Tell whether oneDNN computes a layer of an LSTM here, in this type."""
    if given.device.type != "cpu" or not torch._C._has_mkldnn or not torch._C._get_mkldnn_enabled():
        return False
    narrow = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return given.dtype == torch.float32 or (narrow and given.dtype in _NARROW)


@contextmanager
def ops_shown(see: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Show every op that runs inside, below autograd: the op, what it was given, and its result.

    Some derivatives are computed by other ops while this looks on: compare no bits of what runs inside.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Showing(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = func(*args, **(kwargs or {}))
            see(func, (args, kwargs), result)
            return result

    with Showing():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def kernels_called() -> Iterator[set[str]]:
    """Note the names of the ops that run inside; see `ops_shown`."""
    found: set[str] = set()
    with ops_shown(lambda op, *_: found.add(str(op))):
        yield found


num_modes: Final[Callable[[], int]] = torch._C._len_torch_dispatch_stack
"""Counts the dispatch modes that this thread entered."""
STANDING: Final[dict[int, tuple[Any, Any]]] = {}
"""By thread: what meets its ops as a mode does, and the mode around it."""


def innermost_mode() -> Any:
    """Return the dispatch mode that this thread's ops reach first, or what stands in for one, or None."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    standing, around = STANDING.get(threading.get_ident(), (None, None))
    return mode if standing is None or mode is not around else standing


@contextmanager
def standing_in(watch: Any) -> Iterator[None]:
    """Let something that meets the ops of this thread pass for a mode inside a ``with`` block."""
    thread = threading.get_ident()
    STANDING[thread] = watch, innermost_mode()
    try:
        yield
    finally:
        del STANDING[thread]


def leaves_in(tree: Any) -> list[Any]:
    """List what tuples, lists, dicts and containers that torch knows hold."""
    from torch.utils._pytree import tree_leaves

    return tree_leaves(tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """List the tensors in nested lists, tuples, dicts and what torch knows to be like them."""
    return [leaf for leaf in leaves_in(tree) if isinstance(leaf, torch.Tensor)]


def with_tensors(tree: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Replace the tensors in nested lists, tuples, dicts and what torch knows to be like them."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, make, tree)


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Tell whether autograd calls functions of the user with the gradient of a parameter."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def without_shared_hooks(model: torch.nn.Module) -> None:
    """Take away from a copied module the hooks that are functions: a copy shares them with its original."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, FunctionType | partial)]:
                del hooks[key]


@contextmanager
def uncompiled(model: torch.nn.Module) -> Iterator[None]:
    """Let a module and those inside it run as they are."""
    compiled = [(module, module._compiled_call_impl) for module in model.modules()]
    compiled = [(module, call) for module, call in compiled if call is not None]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


def mode_in_the_way() -> Any:
    """Return the dispatch mode inside of which Dynamo would skip a call, and every later one; None = none.

    A flop counter is one, as is the block of `tightrope.evict`.
    """
    mode = innermost_mode()
    if mode is None or mode.is_infra_mode() or mode.ignore_compile_internals():
        return None
    return mode


def said_of(mode: Any) -> str:
    """Say why nothing is captured inside of a mode.

    >>> said_of(3)
    'inside of int, torch captures nothing'
    """
    return f"inside of {type(mode).__name__}, torch captures nothing"
