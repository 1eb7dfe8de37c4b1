"""What the installed torch has of the private names that this room uses: one probe each."""

import warnings
from typing import Final

TESTED_MINORS: Final = ("2.11", "2.12", "2.13", "2.14")


def _resolve(path: str) -> object:
    module, _, name = path.rpartition(".")
    found: object = __import__(module, fromlist=[name])
    return getattr(found, name)


PROBES: dict[str, str] = {
    "aot backend": "torch._dynamo.backends.common.aot_autograd",
    "dynamo config": "torch._dynamo.config.patch",
    "custom op check": "torch._functorch.config.check_custom_op_aliasing",
    "trace autograd": "torch._dynamo.config.trace_autograd_ops",
    "ddp optimizer": "torch._dynamo.config.optimize_ddp",
    "recompile limit": "torch._dynamo.config.recompile_limit",
    "unsupported": "torch._dynamo.exc.Unsupported",
    "forget code": "torch._C._dynamo.eval_frame.reset_code",
    "tracing callbacks": "torch._dynamo.callback.callback_handler",
    "recompile error": "torch._dynamo.exc.FailOnRecompileLimitHit",
    "leave fake mode": "torch._subclasses.fake_tensor.unset_fake_temporarily",
    "python kernels": "torch._dispatch.python.all_py_loaded_overloads",
    "dispatch keys": "torch._C.DispatchKey",
    "dispatch mode": "torch.utils._python_dispatch.TorchDispatchMode",
    "trees": "torch.utils._pytree.tree_map_only",
    "decompositions": "torch._decomp.decompositions",
    "shapes by decomposition": "torch._decomp.decomposition_table",
    "references": "torch._refs.nn.functional",
    "backward outside autocast": "torch._functorch.config.backward_pass_autocast",
    "recurrent layers": "torch._dynamo.config.allow_rnn",
    "numpy's generator": "torch._dynamo.config.use_numpy_random_stream",
    "random objects": "torch._dynamo.variables.misc.RandomVariable",
    "what a trace is told": "torch._dynamo.variables.torch.tracing_state_functions",
    "who asks": "torch._dynamo.variables.torch.TorchInGraphFunctionVariable",
    "what is traced": "torch._dynamo.trace_rules.get_torch_obj_rule_map",
    "constants": "torch._dynamo.variables.ConstantVariable",
    "tracing": "torch._dynamo.symbolic_convert.InstructionTranslator",
    "context variables": "torch._dynamo.variables.user_defined.UserDefinedObjectVariable",
    "marks of tensors": "torch._dynamo.decorators.mark_static_address",
    "forbidden calls": "torch._dynamo.trace_rules.is_forbidden",
    "end of a graph": "torch._dynamo.output_graph.OutputGraph",
    "branches": "torch._dynamo.symbolic_convert.InliningInstructionTranslator",
    "another attempt": "torch._dynamo.exc.RestartAnalysis",
    "fast attention": "torch.nn.modules.activation._is_make_fx_tracing",
    "rows of tensors": "torch._dynamo.variables.tensor.TensorVariable",
    "fake mode": "torch._subclasses.fake_tensor.FakeTensorMode",
    "sizes as symbols": "torch.fx.experimental.symbolic_shapes.ShapeEnv",
    "tensors as the trace sees them": "torch._subclasses.meta_utils.MetaTensorDescriber",
    "fake copies": "torch._subclasses.fake_tensor.FakeCopyMode",
    "running node": "torch._C._current_autograd_node",
    "nodes that run": "torch._C._will_engine_execute_node",
    "keep graph": "torch._C._autograd._get_current_graph_task_keep_graph",
    "joint graph": "torch._functorch._aot_autograd.graph_capture_wrappers.create_joint",
    "layouts of gradients": "torch._functorch._aot_autograd.graph_compile.aot_dispatch_autograd_graph",
    "expected layout": "torch._functorch._aot_autograd.schemas.MemoryFormatMeta",
    "gradient of a plain tensor": "torch._functorch._aot_autograd.schemas.PlainTensorMeta",
    "storage id": "torch.multiprocessing.reductions.StorageWeakRef",
    "functional call": "torch.func.functional_call",
    "custom partitioner": "torch._inductor.custom_graph_pass.CustomPartitionerFn",
    "custom knapsack": "torch._inductor.custom_graph_pass.CustomKnapsackSolver",
    "partitioner setting": "torch._inductor.config.custom_partitioner_fn",
    "knapsack setting": "torch._functorch.config.activation_memory_budget_solver",
    "split joint graph": "torch._functorch.partitioners._extract_fwd_bwd_modules",
    "node classes": "torch._functorch.partitioners.classify_nodes",
    "late recomputation": "torch._functorch.partitioners.reordering_to_mimic_autograd_engine",
    "common subexpressions": "torch._functorch.compile_utils.fx_graph_cse",
    "inner compile": "torch._inductor.compile_fx.compile_fx_inner",
    "decompositions for loops": "torch._inductor.decomposition.select_decomp_table",
    "compiler settings": "torch._inductor.config.patch",
    "virtual state": "torch._inductor.virtualized.V",
    "tracing context": "torch._guards.TracingContext",
    "code that is traced": "torch._guards.tracing",
    "kernels of loops": "torch._inductor.async_compile.AsyncCompile",
    "libraries of kernels": "torch._inductor.codecache.CppPythonBindingsCodeCache",
    "threads that compile": "torch._inductor.async_compile.get_compile_threads",
    "vector instructions": "torch._inductor.cpu_vec_isa.valid_vec_isa_list",
    "kinds of them": "torch._inductor.cpu_vec_isa.supported_vec_isa_list",
    "folder of code": "torch._inductor.runtime.cache_dir_utils.cache_dir",
    "compiler in use": "torch._inductor.cpp_builder.get_cpp_compiler",
    "groups of gradients": "torch.utils._foreach_utils._group_tensors_by_device_and_dtype",
    "settings in the log": "torch._dynamo.utils._get_dynamo_config_for_logging",
    "early getitems": "torch._functorch.compile_utils.raise_getitems",
    "overlaps": "torch._C._dynamo.guards.compute_overlapping_tensors",
    "transforms under way": "torch._C._functorch.peek_interpreter_stack",
    "custom functions": "torch._dynamo.variables.misc.AutogradFunctionVariable",
    "code left as it is": "torch._dynamo.exc.SkipFrame",
}


def probe() -> dict[str, bool]:
    """Tell for each private name whether the installed torch has it.

    >>> probe()["aot backend"]
    True
    """
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own modules
        for name, path in PROBES.items():
            try:
                _resolve(path)
            except (ImportError, AttributeError):
                found[name] = False
            else:
                found[name] = True
    return found
