"""Torch's compiler for loops, and how it cuts joint graphs; a third such module beside `_torch`, `_eager`."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx

from tightrope.capture._torch import real_tensors
from tightrope.core import TightropeError

_SETTINGS: dict[str, Any] = {"size_asserts": False, "keep_output_stride": True, "fx_graph_cache": True}


def compiler_missing() -> str:
    """Say why nothing can be compiled here, or nothing."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # torch raises its own classes, by version
        return f"torch finds no C++ compiler ({str(error).splitlines()[0][:200]})"
    return ""


def compile_loops(
    function: Callable[..., Any], layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Compile a function of tensors into loops, for inputs of exactly these layouts.

    Args:
        function: takes one list, gives a tuple; without random numbers and without changes in place.
        layouts: shape, strides and dtype of each.

    Returns:
        What takes a list, which it empties, and gives the outputs.

    Raises:
        TightropeError: the compiler refuses it; says why.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, in the modules that it imports
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.virtualized import V
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*values: torch.Tensor) -> Any:
        return function(list(values))

    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(real_tensors())
            stack.enter_context(torch.no_grad())
            mode = FakeTensorMode()
            with mode:
                fake = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in layouts]
                traced = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*fake)
            stack.enter_context(tracing(TracingContext(mode)))
            stack.enter_context(V.set_fake_mode(mode))
            stack.enter_context(config.patch(_SETTINGS))
            compiled: Any = compile_fx_inner(traced, fake)
    except Exception as error:  # whatever a compiler trips over: the caller runs op by op instead
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise TightropeError(
            f"torch's compiler refuses it ({type(error).__name__}: {reason[0][:200]})."
        ) from error
    found: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] = (
        getattr(compiled, "current_callable", None) or compiled
    )
    return found


def tidy_joint(joint: torch.fx.GraphModule) -> None:
    """Drop dead nodes and merge equal ones in place, as torch's own partitioner does first."""
    import torch._functorch.config as config
    from torch._functorch.compile_utils import fx_graph_cse

    joint.graph.eliminate_dead_code()
    if config.cse:
        joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()


def split_joint(
    joint: torch.fx.GraphModule,
    saved: Sequence[torch.fx.Node],
    *,
    num_forward_outputs: int,
    static: Sequence[int] = (),
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cut a joint graph into a forward that returns ``saved`` and a backward that takes it.

    The backward makes everything else again, each value right before its first reader.
    """
    from torch._functorch import partitioners
    from torch._functorch.compile_utils import raise_getitems

    info = partitioners.classify_nodes(joint, list(static), num_forward_outputs)
    forward, backward = partitioners._extract_fwd_bwd_modules(
        joint,
        list(saved),
        saved_sym_nodes=[],
        num_fwd_outputs=num_forward_outputs,
        static_lifetime_input_nodes=info.static_lifetime_input_nodes,
    )
    backward = partitioners.reordering_to_mimic_autograd_engine(backward)
    return raise_getitems(forward), raise_getitems(backward)


def custom_partitioner(
    split: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]], key: str
) -> Any:
    """Wrap a partition function for Inductor's ``custom_partitioner_fn``; ``key`` names it in caches.

    torch pickles what is made here into cache keys, so ``split`` must be picklable.
    """
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Partitioner(CustomPartitionerFn):
        def __call__(self, gm: torch.fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> Any:
            return split(gm, joint_inputs, **kwargs)

        def uuid(self) -> str:
            return key

        def __reduce__(self) -> tuple[Any, ...]:
            return custom_partitioner, (split, key)

    return Partitioner()


def knapsack_solver(choose: Callable[..., tuple[list[int], list[int]]], key: str) -> Any:
    """Wrap a choice of what to save for functorch's ``activation_memory_budget_solver``."""
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver

    class KnapsackSolver(CustomKnapsackSolver):
        def __call__(
            self, memory: Any, joint_graph: Any, max_memory: Any, node_info: Any, banned: Any
        ) -> tuple[list[int], list[int]]:
            del memory, max_memory
            return choose(joint_graph, node_info, banned)

        def uuid(self) -> str:
            return key

        def __reduce__(self) -> tuple[Any, ...]:
            return knapsack_solver, (choose, key)

    return KnapsackSolver()


@contextmanager
def partitioning(partitioner: Any, solver: Any) -> Iterator[None]:
    """Let Inductor split joint graphs by ``partitioner``, and torch's own partitioner ask ``solver``.

    The smallest share above 0 makes torch ask the solver instead of answering by itself.
    """
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with (
        inductor.patch(custom_partitioner_fn=partitioner),
        functorch.patch(activation_memory_budget=1e-9, activation_memory_budget_solver=solver),
    ):
        yield


def set_partitioning(partitioner: Any, solver: Any) -> None:
    """The same for the rest of the process."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    inductor.custom_partitioner_fn = partitioner
    functorch.activation_memory_budget = 1e-9
    functorch.activation_memory_budget_solver = solver


def unset_partitioning() -> None:
    """Give torch's own partitioner back its work."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    inductor.custom_partitioner_fn = None
    functorch.activation_memory_budget = 1.0
    functorch.activation_memory_budget_solver = "dp"
