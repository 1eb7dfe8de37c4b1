"""What a command of fleets works on: the graph of a training step, with its update where it has one."""

from tightrope.cli.sources import source_of
from tightrope.cli.target import called, checked, is_function
from tightrope.core import Graph, TightropeError


def step_graph_of(target: str) -> Graph:
    """Read a graph file, or capture ``FILE.py:FUNCTION``: with the update, where it returns an optimizer too.

    Args:
        target: a file, or a function that returns (model, inputs) or (model, inputs, optimizer).

    Raises:
        TightropeError: there is no graph, the step is not one graph, or nothing can be measured.
    """
    if not is_function(target):
        return source_of(target).graph
    made = called(target)
    import torch

    from tightrope.cli.capturing import is_on_meta, priced_program
    from tightrope_fleet.devices.step_graph import step_graph

    match made:
        case (model, inputs, torch.optim.Optimizer() as optimizer):
            built = checked(target, (model, inputs))
            if is_on_meta((*built.model.parameters(), *built.args, *built.kwargs.values())):
                raise TightropeError(
                    f"{target!r} has tensors on the meta device, so its ops cannot be measured. "
                    "Build them with values."
                )
            return step_graph(built.model, built.args, optimizer, built.kwargs)
    return priced_program(target, checked(target, made), None).graph
