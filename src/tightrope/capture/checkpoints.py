"""What a model changes inside of a checkpoint: eager changes it again when the backward runs that part again.

A graph holds such a part once, so buffers that it counts or averages in are changed once.
"""

from collections.abc import Iterator

import torch
import torch.fx

from tightrope.capture.attribution import source_line


def changed_in_checkpoints(module: torch.fx.GraphModule) -> list[str]:
    """Name the lines where a captured call changes a buffer, or another input, inside of a checkpoint."""
    found: dict[str, None] = {}
    for body in _bodies(module):
        for node in body.graph.nodes:
            if _changes_an_input(node):
                name = getattr(node.target, "__name__", node.target)
                found[f"{name} inside of a checkpoint ({source_line(node)}), which eager runs twice"] = None
    return list(found)


def _bodies(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    for node in module.graph.find_nodes(op="call_function", target=_CHECKPOINT):
        if isinstance(node.args[0], torch.fx.Node):
            body = module.get_submodule(str(node.args[0].target))
            yield from (one for one in body.modules() if isinstance(one, torch.fx.GraphModule))


_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def _changes_an_input(node: torch.fx.Node) -> bool:
    """Tell whether a call writes what came into its graph: by a method in place, or as batch norm does."""
    given = [one for one in node.all_input_nodes if one.op == "placeholder"]
    if node.op == "call_function" and node.target is torch.nn.functional.batch_norm:
        training = node.args[5] if len(node.args) > 5 else node.kwargs.get("training", False)
        return bool(training) and any(one in given for one in node.args[1:3])
    name = str(getattr(node.target, "__name__", node.target))
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place and node.op.startswith("call_") and bool(node.args) and node.args[0] in given
