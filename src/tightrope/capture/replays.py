"""Ops that must not simply run again, and what runs in their place.

Random ops are never redrawn. ``native_dropout`` returns its mask, so its output is rebuilt from
the input and the mask by the kernel that the backward uses. Any other random op is replayed by
restoring the generator's state as it was just before the first run; the state (5,056 bytes on CPU)
is saved by an op of its own and is freed at once when no schedule needs it.

Batch norm in training reads the running statistics, which have new values once the forward is
over, only to make those new values. Its replay is the same kernel without running statistics.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from tightrope.capture.program import Call, tensor_of

STATE_BYTES = int(torch.default_generator.get_state().untyped_storage().nbytes())
_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_BATCH_NORM_NO_STATS = torch.ops.aten._native_batch_norm_legit.no_stats
_DROPOUT = torch.ops.aten.native_dropout.default
_DROPOUT_BACKWARD = torch.ops.aten.native_dropout_backward.default


@dataclass(frozen=True, slots=True)
class Replay:
    """A call that makes the same values again, and its name."""

    name: str
    call: Call


def draws(node: torch.fx.Node) -> bool:
    """Tell whether a random op really draws: attention with dropout 0 does not."""
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given != 0.0)
    return True


def has_mask(node: torch.fx.Node) -> bool:
    """Tell whether the op's output can be rebuilt from a mask that it returns."""
    mask = any(user.args[1] == 1 for user in node.users if "getitem" in str(user.target))
    return node.target is _DROPOUT and mask and node.args[2] is True and 0.0 < _probability(node) < 1.0


def _probability(node: torch.fx.Node) -> float:
    given = node.args[1]
    assert isinstance(given, int | float)
    return float(given)


def save_state() -> torch.Tensor:
    """Copy the CPU generator's state."""
    return torch.default_generator.get_state()


def run_with_state(state: torch.Tensor, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``target`` with the generator as it was, then put the present state back."""
    present = torch.default_generator.get_state()
    torch.default_generator.set_state(state)
    try:
        return target(*args, **kwargs)
    finally:
        torch.default_generator.set_state(present)


def state_before(node: torch.fx.Node) -> Call:
    """The call that saves the generator's state for ``node``."""
    root = torch.fx.Node(node.graph, f"{node.name}_state", "call_function", save_state, (), {})
    value = tensor_of(node)
    like = value if isinstance(value, torch.Tensor) else value[0]
    root.meta["val"] = like.new_empty(STATE_BYTES, dtype=torch.uint8, device="cpu")
    return Call(save_state, (), {}, {None: root})


def replay_of(node: torch.fx.Node, call: Call, state: int, saved: Call | None) -> Replay:
    """The call that makes the results of the random op ``node`` again."""
    if saved is None:
        members = {user.args[1]: user for user in node.users if "getitem" in str(user.target)}
        scale = 1.0 / (1.0 - _probability(node))
        rebuilt = Call(
            _DROPOUT_BACKWARD,
            (node.args[0], members[1], scale),
            {},
            {None: members[0]} if 0 in members else {},
        )
        return Replay("tightrope.dropout_from_mask", rebuilt)
    assert state >= 0
    (root,) = saved.results.values()
    again = Call(run_with_state, (root, node.target, *call.args), call.kwargs, call.results)
    return Replay("tightrope.run_with_state", again)


def without_statistics(node: torch.fx.Node, call: Call) -> Replay | None:
    """The replay of a training batch norm, or None for any other op."""
    if node.target is not _BATCH_NORM or node.args[5] is not True:
        return None
    x, weight, bias, _, _, training, momentum, eps = node.args
    results: dict[int | None, torch.fx.Node] = {
        position: result for position, result in call.results.items() if position in (0, 1, 2)
    }
    again = Call(_BATCH_NORM_NO_STATS, (x, weight, bias, training, momentum, eps), {}, results)
    return Replay("tightrope.batch_norm_without_statistics", again)
