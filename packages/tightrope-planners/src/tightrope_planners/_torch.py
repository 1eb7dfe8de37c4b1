"""How torch cuts joint graphs, and who does so in its place: every private name that this takes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx


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
