"""Capture a whole training step, and what it begins from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tightrope.capture import capture_program
from tightrope.capture.whole import Update, Wanted, trained_positions, whole_program, with_updates
from tightrope.core import CaptureError, Graph, Kind, StorageId, TightropeError, View
from tightrope_micro.recurrent import recurrence_as_ops
from tightrope_micro.translate import translate
from tightrope_micro.translator import AdamRule, Rule, SgdRule

_NUM_SETTINGS = 5
_TAKEN = {"lr", "momentum", "weight_decay", "nesterov", "maximize", "dampening"}


@dataclass(frozen=True)
class MicroStep:
    """A training step as ops of the C library, with the values that it begins from.

    Attributes:
        graph: one part; what the caller holds lies in tier 1.
        values: storage -> its bytes before the first step, as little-endian numbers.
        names: storage -> name of a parameter, of a buffer, of momentum, or of an input.
        example: names of the inputs, in the order of the call.
    """

    graph: Graph
    values: Mapping[StorageId, bytes]
    names: Mapping[StorageId, str]
    example: tuple[str, ...]


def capture_step(
    model: torch.nn.Module, args: Sequence[Any], optimizer: torch.optim.Optimizer, **kwargs: Any
) -> MicroStep:
    """Capture ``model(*args, **kwargs)``, its backward and the update of every parameter.

    Args:
        model: its forward returns the loss first; in training mode.
        args: one batch; the values are those of the first sample that the device gets.
        optimizer: `torch.optim.SGD` or `torch.optim.AdamW`, with what parameters it has in its groups; the
            device begins with no state.
        kwargs: of the call.

    Raises:
        UnsupportedOpError: an op has no kernel in C; names op, module and line.
        CaptureError: the step is not one graph, or its loss is not a scalar.
        TightropeError: the optimizer is another one, or the batch has classes or rows that there are not.
    """
    args = [_whole(value) for value in args]
    kwargs = {name: _whole(value) for name, value in kwargs.items()}
    with recurrence_as_ops(model) as asked:
        program, real = capture_program(asked, args, kwargs)
    if not program.has_backward:
        raise CaptureError(
            "nothing in the step requires a gradient: there is nothing to train on the device."
        )
    rules = _rules(optimizer)
    positions = [at for at in trained_positions(program) if id(real[at]) in rules]
    if not positions:
        raise TightropeError(
            "the optimizer has no parameter of the model: give torch.optim.SGD(model.parameters())."
        )
    wanted = {}
    for at in positions:
        state = (torch.zeros_like(real[at]) for _ in _state_names(rules[id(real[at])]))
        wanted[at] = Wanted(tuple(state), _NUM_SETTINGS)
    whole = whole_program(program, wanted)
    labels = {id(p): name for name, p in (*model.named_parameters(), *model.named_buffers())}
    updates = {
        at: Update("tightrope.sgd_", (False,) * 4, labels.get(id(real[at]), ""), 0, ()) for at in positions
    }
    joined = with_updates(whole, whole.program, updates).graph
    names, values, numbers, example = _callers(joined, real, labels, whole=whole, rules=rules, args=args)
    graph = translate(joined, numbers, names)
    kept, named = {}, {}
    by_name = {name: storage for storage, name in names.items()}
    for storage in graph.storages:
        if storage.external:
            named[storage.id] = storage.module
            is_count = storage.module not in by_name
            kept[storage.id] = bytes(storage.bytes) if is_count else values[by_name[storage.module]]
    _check_numbers(graph, kept)
    return MicroStep(graph, kept, named, tuple(name for name in example if name in named.values()))


def _check_numbers(graph: Graph, kept: Mapping[StorageId, bytes]) -> None:
    """Refuse class and row numbers that PyTorch refuses when the step runs.

    Raises:
        TightropeError: one of the sample is out of range.
    """
    for op in graph.ops:
        if op.target not in ("micro.nll_loss", "micro.embedding"):
            continue
        rows, index = op.arguments[:2]
        assert isinstance(rows, View)
        assert isinstance(index, View)
        of_table = op.target == "micro.embedding"
        most, what = (rows.shape[0], "rows") if of_table else (rows.shape[1], "classes")
        numbers = np.frombuffer(kept.get(index.base, b""), np.int32)
        if wrong := [int(n) for n in numbers if not 0 <= n < most]:
            raise TightropeError(
                f"{op.describe()} gets the number {wrong[0]}, of {most} {what} counted from 0: give inputs "
                "like those that the device will get."
            )


def _state_names(rule: Rule) -> tuple[str, ...]:
    """Names of the state of a parameter, as the optimizer calls it."""
    if isinstance(rule, AdamRule):
        return "exp_avg", "exp_avg_sq"
    return ("momentum",) if rule.momentum else ()


def _rules(optimizer: torch.optim.Optimizer) -> dict[int, Rule]:
    """Numbers of every parameter's update, by identity.

    Raises:
        TightropeError: no kernel updates like this.
    """
    if type(optimizer) not in (torch.optim.SGD, torch.optim.AdamW):
        raise TightropeError(
            f"{type(optimizer).__name__} has no kernel in C: use torch.optim.SGD or torch.optim.AdamW."
        )
    found: dict[int, Rule] = {}
    for group in optimizer.param_groups:
        if type(optimizer) is torch.optim.AdamW:
            found.update((id(parameter), _adam(group)) for parameter in group["params"])
            continue
        if group["dampening"] or any(isinstance(group[key], torch.Tensor) for key in _TAKEN):
            raise TightropeError(
                "SGD with dampening or with tensors as numbers has no kernel in C: use floats."
            )
        rule = SgdRule(*(group[k] for k in ("lr", "momentum", "weight_decay", "nesterov", "maximize")))
        found.update((id(parameter), rule) for parameter in group["params"])
    return found


def _adam(group: Mapping[str, Any]) -> AdamRule:
    """Numbers of a group of AdamW."""
    numbers = (group["lr"], *group["betas"])
    if group["amsgrad"] or any(isinstance(value, torch.Tensor) for value in numbers):
        raise TightropeError("AdamW with amsgrad or with tensors as numbers has no kernel in C: use floats.")
    betas = group["betas"][0], group["betas"][1]
    if not 0.5 < betas[0] < 1.0:
        raise TightropeError(
            f"AdamW with a first beta of {betas[0]} has no kernel in C: take one between 0.5 and 1."
        )
    return AdamRule(group["lr"], betas, group["eps"], group["weight_decay"], group["maximize"])


def _callers(
    graph: Graph,
    real: Sequence[Any],
    labels: Mapping[int, str],
    *,
    whole: Any,
    rules: Mapping[int, Rule],
    args: Sequence[Any],
) -> tuple[dict[StorageId, str], dict[StorageId, bytes], dict[StorageId, Rule], list[str]]:
    """Name everything that the caller holds, and take down its value."""
    names: dict[StorageId, str] = {}
    values: dict[StorageId, bytes] = {}
    numbers: dict[StorageId, Rule] = {}
    example: list[str] = []
    inputs = graph.parts[0].inputs
    given = {id(value): k for k, value in enumerate(args)}
    for at, tensor in enumerate(real):
        view = inputs[at].view
        if view is None or not isinstance(tensor, torch.Tensor):
            continue
        storage = graph.storages[view.base]
        if storage.kind == Kind.INPUT:
            name = f"input_{given.get(id(tensor), len(example))}"
            example.append(name)
        else:
            name = labels.get(id(tensor), f"value_{at}")
        names[view.base], values[view.base] = name, value_bytes(tensor)
    for at, nodes in whole.trained.items():
        kinds = _state_names(rules[id(real[at])])
        for kind, state in zip(kinds, nodes.state, strict=True):
            view = inputs[state].view
            assert view is not None
            names[view.base] = f"{labels.get(id(real[at]), f'value_{at}')}.{kind}"
            values[view.base] = bytes(graph.storages[view.base].bytes)
        view = inputs[nodes.settings].view
        assert view is not None
        numbers[view.base] = rules[id(real[at])]
    return names, values, numbers, example


def _whole(value: Any) -> Any:
    """A tensor that is all of its memory: a slice of a data set becomes a batch of its own."""
    return value.detach().clone().contiguous() if isinstance(value, torch.Tensor) else value


def value_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor as the device holds them: class numbers in 32 bits.

    >>> value_bytes(torch.tensor([1, 2])).hex()
    '0100000002000000'
    """
    held = tensor.detach().cpu().contiguous()
    if held.dtype == torch.int64:
        held = held.to(torch.int32)
    return bytes(held.numpy().tobytes())
