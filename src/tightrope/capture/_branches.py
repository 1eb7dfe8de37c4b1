"""Branches on tensors of constants, which Dynamo leaves open; private names of torch for that."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
import torch.fx

_MADE: Final = ("arange", "full", "linspace", "ones", "tensor", "zeros")
"""Functions that make tensors of constants."""


@cache
def known_branches() -> tuple[tuple[Any, list[Any]], ...]:
    """Make tables that follow branches on tensors of constants alone; Dynamo leaves their values open."""
    from torch._dynamo import symbolic_convert as convert
    from torch._dynamo.variables import ConstantVariable

    def known(jump: Any) -> Callable[[Any, Any], None]:
        def follow(tx: Any, instruction: Any) -> None:
            value = tx.stack[-1]
            if value.is_tensor() and (found := _computed(value.as_proxy().node)) is not None:
                tx.stack[-1] = ConstantVariable.create(found)
            jump(tx, instruction)

        return follow

    def table(kind: Any) -> list[Any]:
        jumps = (
            (getattr(jump, "__qualname__", "").startswith("generic_jump"), jump)
            for jump in kind.dispatch_table
        )
        return [known(jump) if branches else jump for branches, jump in jumps]

    kinds = (convert.InstructionTranslator, convert.InliningInstructionTranslator)
    return tuple((kind, table(kind)) for kind in kinds)


def _computed(wanted: torch.fx.Node) -> bool | None:
    """Compute the truth of a value of a traced graph; None where it depends on inputs or is drawn."""
    needed, waiting = set(), [wanted]
    while waiting:
        node = waiting.pop()
        sources = node.all_input_nodes
        if node.op not in ("call_function", "call_method") or not (
            sources or getattr(node.target, "__name__", "") in _MADE
        ):
            return None
        needed.add(node)
        waiting += [source for source in sources if source not in needed]
    if any(_may_change(user) for node in needed for user in node.users if user is not wanted):
        return None
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    values: dict[torch.fx.Node, Any] = {}
    with (
        _disable_current_modes(),
        unset_fake_temporarily(),
        torch.no_grad(),
        torch.random.fork_rng(devices=()),
    ):
        state = torch.get_rng_state()
        for node in wanted.graph.nodes:
            if node in needed:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                called = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
                values[node] = called(*(args[1:] if isinstance(node.target, str) else args), **kwargs)
        drawn = not torch.equal(state, torch.get_rng_state())
    return None if drawn else bool(values[wanted])


def _may_change(node: torch.fx.Node) -> bool:
    """Tell whether a call may change what it is given."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    operator = name.startswith(("i", "set")) and getattr(node.target, "__module__", "") == "_operator"
    return operator or name.endswith("_") or "out" in node.kwargs
