"""What torch has to cut joint graphs, and to let others do so, does what it did."""

from typing import Any

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.fx

from tightrope.capture import _compiled, _torch
from tightrope.capture.dynamo import boxed
from tightrope_planners import _torch as cut


def test_a_joint_graph_that_is_cut_gives_the_gradients_of_eager() -> None:
    def partition(
        joint: torch.fx.GraphModule, _: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        cut.tidy_joint(joint)
        saved = [node for node in joint.graph.find_nodes(op="placeholder") if "primals" in node.name]
        return cut.split_joint(joint, saved, num_forward_outputs=num_fwd_outputs)

    def run(part: torch.fx.GraphModule, _: Any) -> Any:
        return boxed(lambda args: part(*args))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().sum()

    given, alike = (torch.ones(3, requires_grad=True) for _ in range(2))
    _compiled.compile_with(function, _torch.aot_backend(partition, run, run, run))(given).backward()
    function(alike).backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    assert alike.grad is not None
    assert torch.equal(given.grad, alike.grad)


def test_torch_takes_another_partitioner_and_solver_and_gives_them_back() -> None:
    split = cut.custom_partitioner(lambda *_, **__: None, "one")  # type: ignore[arg-type]
    solver = cut.knapsack_solver(lambda *_: ([], []), "two")
    with cut.partitioning(split, solver):
        assert inductor.custom_partitioner_fn is split
        assert functorch.activation_memory_budget_solver is solver
    assert (split.uuid(), solver.uuid()) == ("one", "two")
    assert inductor.custom_partitioner_fn is None
