"""Which private names of torch each adapter of this room uses, and what is said where some are gone.

An adapter is a function, or a few, of the modules here that begin with ``_``. `tightrope.capture._checks`
runs each of them on something small.
"""

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Final

import torch

TESTED_MINORS: Final = ("2.11", "2.12", "2.13", "2.14", "2.15")

PROBES: Final[dict[str, tuple[str, ...]]] = {
    "storages": ("torch.multiprocessing.reductions.StorageWeakRef",),
    "ops that run": (
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch._C.DispatchKey",
        "torch.utils._pytree.tree_map_only",
    ),
    "running backward": (
        "torch._C._current_autograd_node",
        "torch._C._will_engine_execute_node",
        "torch._C._autograd._get_current_graph_task_keep_graph",
    ),
    "shapes without values": (
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "torch._subclasses.fake_tensor.FakeCopyMode",
        "torch._subclasses.fake_tensor.unset_fake_temporarily",
    ),
    "settings of calls": (
        "torch._dynamo.config.recompile_limit",
        "torch._dynamo.config.accumulated_recompile_limit",
        "torch._dynamo.config.optimize_ddp",
        "torch._dynamo.config.skip_nnmodule_hook_guards",
        "torch._dynamo.config.allow_rnn",
        "torch._dynamo.config.specialize_float",
        "torch._dynamo.config.use_numpy_random_stream",
    ),
    "joint graphs": (
        "torch._dynamo.backends.common.aot_autograd",
        "torch._functorch.config.check_custom_op_aliasing",
        "torch._functorch.config.backward_pass_autocast",
        "torch._functorch._aot_autograd.graph_capture_wrappers.create_joint",
        "torch._functorch._aot_autograd.graph_capture.aot_dispatch_autograd_graph",
        "torch._functorch._aot_autograd.graph_compile.aot_dispatch_autograd_graph",
        "torch._functorch._aot_autograd.schemas.MemoryFormatMeta",
        "torch._functorch._aot_autograd.schemas.PlainTensorMeta",
        "torch._functorch._aot_autograd.runtime_wrappers._FirstInvocationContext",
    ),
    "code that is traced": (
        "torch._C._dynamo.eval_frame.reset_code",
        "torch._guards.TracingContext",
    ),
    "calls of loggers": ("torch._dynamo.utils",),
    "refusals of torch": (
        "torch._dynamo.exc.Unsupported",
        "torch._dynamo.exc.FailOnRecompileLimitHit",
        "torch._dynamo.exc.RestartAnalysis",
        "torch._dynamo.exc.SkipFrame",
        "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    ),
    "order of norms": ("torch.utils._foreach_utils._group_tensors_by_device_and_dtype",),
    "what a trace is told": (
        "torch._dynamo.variables.torch.tracing_state_functions",
        "torch._dynamo.variables.torch.TorchInGraphFunctionVariable",
        "torch._dynamo.trace_rules.get_torch_obj_rule_map",
        "torch._dynamo.variables.ConstantVariable",
        "torch._dynamo.symbolic_convert.InstructionTranslator",
    ),
    "rows of tensors": ("torch._dynamo.variables.tensor.TensorVariable",),
    "context variables": (
        "torch._dynamo.variables.user_defined.UserDefinedObjectVariable",
        "torch._dynamo.output_graph.OutputGraph",
    ),
    "fast attention": ("torch.nn.modules.activation._is_make_fx_tracing",),
    "kernels of eager": (
        "torch._dispatch.python.all_py_loaded_overloads",
        "torch._decomp.decompositions",
        "torch._refs.nn.functional",
    ),
    "layouts of norms": ("torch._decomp.decomposition_table",),
    "tensors of the meta device": ("torch._subclasses.meta_utils.MetaTensorDescriber",),
    "branches on constants": ("torch._dynamo.symbolic_convert.InliningInstructionTranslator",),
    "random objects": ("torch._dynamo.variables.misc.RandomVariable",),
    "derivatives of functions": (
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch._C._functorch.is_legacy_batchedtensor",
        "torch._C._functorch.peek_interpreter_stack",
        "torch._dynamo.variables.misc.AutogradFunctionVariable",
    ),
    "overlaps": (
        "torch._C._dynamo.guards.compute_overlapping_tensors",
        "torch._functorch._aot_autograd.input_output_analysis.compute_overlapping_tensors",
    ),
    "forbidden calls": (
        "torch._dynamo.decorators.mark_static_address",
        "torch._dynamo.trace_rules.is_forbidden",
        "torch._dynamo.variables.SkipFunctionVariable",
        "torch._dynamo.variables.UserFunctionVariable",
    ),
    "sizes as symbols": ("torch.fx.experimental.symbolic_shapes.ShapeEnv",),
    "loops": (
        "torch._inductor.compile_fx.compile_fx_inner",
        "torch._inductor.decomposition.select_decomp_table",
        "torch._inductor.config.size_asserts",
        "torch._inductor.config.keep_output_stride",
        "torch._inductor.virtualized.V",
        "torch._guards.tracing",
        "torch._inductor.async_compile.AsyncCompile",
        "torch._inductor.codecache.CppPythonBindingsCodeCache",
        "torch._inductor.async_compile.get_compile_threads",
        "torch._inductor.cpu_vec_isa.valid_vec_isa_list",
        "torch._inductor.cpu_vec_isa.supported_vec_isa_list",
        "torch._inductor.runtime.cache_dir_utils.cache_dir",
        "torch._inductor.cpp_builder.get_cpp_compiler",
    ),
}
"""Adapter -> private names that it uses."""

LOOPS: Final = ("loops",)
"""What ``fuse=True`` needs; plans run without."""
CAPTURE: Final = tuple(name for name in PROBES if name not in LOOPS)
"""What a capture, and with it every plan, needs."""
EVICTION: Final = ("storages", "ops that run")
"""What level E needs of that."""

_ADAPTERS: Final = f"{Path(__file__).parent}{os.sep}_"
_TORCH: Final = f"{Path(torch.__file__).parent}{os.sep}"
_PYTHON: Final = f"{Path(os.__file__).parent}{os.sep}"


def minor() -> str:
    """Name the minor version of the installed torch.

    >>> minor().count(".")
    1
    """
    return ".".join(torch.__version__.split(".")[:2])


def gone(adapters: tuple[str, ...] | None = None) -> dict[str, str]:
    """Find the adapters for which the installed torch lacks a name, with that name.

    >>> gone()
    {}
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own modules
        for name in PROBES if adapters is None else adapters:
            lacking = next((path for path in PROBES[name] if not _is_there(path)), None)
            if lacking is not None:
                found[name] = f"it needs {lacking}, which is gone"
    return found


def _is_there(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return hasattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name) or (
            path not in sys.modules and bool(__import__(path, fromlist=[name]))
        )
    except (ImportError, AttributeError):  # what it imports lacks a name at once
        return False


def said_of(broken: dict[str, str]) -> str:
    """Say in one line which adapters do not work on the installed torch, or nothing.

    >>> said_of({})
    ''
    """
    if not broken:
        return ""
    name, why = next(iter(broken.items()))
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    return (
        f"torch {torch.__version__} does not work with adapter {name!r} ({why}){more}: see `tightrope doctor`"
    )


def blamed(error: BaseException) -> str:
    """Say which adapter an error of the installed torch comes from, or nothing: then it is another's.

    It does where an adapter met a name or an argument that torch does not know, and no code of the user's
    ran in between.
    """
    if not isinstance(error, ImportError | AttributeError | TypeError):
        return ""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    while files and files[-1].startswith((_TORCH, _PYTHON)) and not files[-1].startswith(_ADAPTERS):
        if not files[-1].startswith(_TORCH) and "site-packages" in files[-1]:
            return ""
        files.pop()
    if not files or not files[-1].startswith(_ADAPTERS):
        return ""
    line = " ".join(str(error).split())[:200].rstrip(".")
    return said_of({Path(files[-1]).stem: f"{type(error).__name__}: {line}"})
