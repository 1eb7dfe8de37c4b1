"""`save`: a planned step as one file that another process runs without capturing anything.

The step is called as ever, up to the moment in which it would run: then everything that it would run
on is written down instead. Nothing is computed, and nothing changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tightrope.capture.api import check_call
from tightrope.core import Bytes, Graph, Kind, StorageId, TightropeError, View
from tightrope.core.arguments import check_folder, check_kind, check_path, refuse_argument
from tightrope.core.bundle import Bundle, Named, Role, UpdateRow, extents_of, write_bundle
from tightrope.core.values import EMPTY, ITEM_BYTES, views
from tightrope.run.compile import compiled_of
from tightrope.run.execute.prepared import Prepared
from tightrope.run.session.compiled import CompiledModel
from tightrope.run.session.unit import Unit
from tightrope.run.session.whole_step import WholeStep
from tightrope.run.step import Stopped, TrainingStep

_ROLES: dict[Kind, Role] = {
    Kind.PARAMETER: "parameter",
    Kind.BUFFER: "buffer",
    Kind.CONSTANT: "constant",
    Kind.OPTIMIZER_STATE: "state",
}


@dataclass(frozen=True)
class _Snapshot:
    """What a step is about to run, and on what.

    Attributes:
        prepared: what runs.
        budget: total bytes.
        given: inputs of the first part, in order.
        changed: see `Bundle`.
        outputs: see `Bundle`.
        rule: see `Bundle`.
        updates: see `Bundle`.
        names: of inputs that follow from the step, by position.
    """

    prepared: Prepared
    budget: Bytes
    given: list[Any]
    changed: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, ...], ...]
    rule: str
    updates: tuple[UpdateRow, ...]
    names: Mapping[int, Named]


def save(
    step: TrainingStep | torch.nn.Module,
    path: str | Path,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Write the next call of a planned step into a file, without making it.

    The file holds the graph, the executable that the judge accepted, parameters, buffers, optimizer
    state, the given batch and the state of the random generator: all that `load`, or ``tightrope run``,
    needs to make exactly this call in another process. It holds no code and no pickles.

    Args:
        step: made by `tightrope.step`, or a model compiled by `tightrope.compile`; it has run with
            inputs of these shapes before.
        path: of the file; replaced at once, when it is complete.
        args: positional arguments of the call, as for `torch.export.export`.
        kwargs: keyword arguments.

    Raises:
        TightropeError: the step has not run yet, or does not run as one planned graph.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile, torch, tightrope
        >>> model, x = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB"), torch.ones(2, 8)
        >>> model(x).sum().backward()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, f"{folder}/linear.step", (x,))
        ...     tightrope.load(f"{folder}/linear.step").inputs["input 0"].shape
        torch.Size([2, 8])
    """
    check_path(path, "the path of the file to write")
    check_folder(path)
    if not isinstance(args, tuple):
        raise TightropeError(f"args is a {type(args).__name__}: give a tuple, (x,) for one argument.")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        refuse_argument("kwargs", kwargs, 'a dict of arguments by name, such as {"mask": mask}')
    check_kind("step", step, TrainingStep | torch.nn.Module, "what tightrope.step or compile returned")
    owner = step if isinstance(step, TrainingStep) else compiled_of(step)
    model = step.model if isinstance(step, TrainingStep) else step
    called = step.fn if isinstance(step, TrainingStep) else step.forward
    check_call(type(model).__name__, called, args, dict(kwargs or {}), "save(step, path, (x, y))")
    if isinstance(owner, CompiledModel) and (owner.level in ("L0", "E") or owner.in_pieces):
        why = owner.why or owner.broken
        raise TightropeError(f"only a step that is one planned graph can be saved: {why}")
    found: list[_Snapshot] = []

    def stop(snapshot: Callable[[], _Snapshot]) -> None:
        found.append(snapshot())
        raise Stopped

    owner.before_run = lambda what, given: stop(lambda: _snapshot(what, given))
    try:
        step(*args, **dict(kwargs or {}))
    except Stopped:
        pass
    finally:
        owner.before_run = None
    if not found:
        raise TightropeError("the call ran no planned graph: there is nothing to save.")
    _write(path, found[0], _names(model, args, dict(kwargs or {})))


def _snapshot(what: Any, given: Sequence[Any]) -> _Snapshot:
    if isinstance(what, WholeStep):
        return _of_whole(what, given)
    compiled, number = what
    return _of_model(compiled, number, given)


def _ran(unit: Unit | None) -> Prepared:
    if unit is None or unit.prepared is None:
        raise TightropeError("this call has not been planned: make it once, then save it.")
    pages = unit.settings.pages is not None
    if unit.prepared.lease is not None or (pages and not unit.settled):
        raise TightropeError("a step that pages cannot be saved yet: compile without page_to.")
    if unit.prepared.plan.stretches or not unit.settled:
        raise TightropeError(
            "a fused step cannot be saved: its code is for this processor. Compile without fuse=True."
        )
    return unit.prepared


def _of_whole(whole: WholeStep, args: Sequence[Any]) -> _Snapshot:
    prepared = _ran(whole.calls.last_unit(whole.number))
    given = whole.given(args)
    updates = whole.updates
    names: dict[int, Named] = {}
    rows = []
    for at, trained in whole.parts.trained.items():
        parameter, label = whole.parameters[at], whole.label(whole.parameters[at])
        for number, position in enumerate(trained.state):
            names[position] = Named(f"state {number} of {label}", "state")
        names[trained.settings] = Named(f"settings of {label}", "settings")
        rows.append(UpdateRow(at, trained.settings, updates.options(parameter), updates.count(parameter)))
    labels = [whole.label(whole.parameters[at]) for at in whole.parts.kept]
    program = whole.parts.program
    outputs = _output_names(program.changed, whole.parts.num_outputs, loss=True)
    total = ("total norm",) if whole.clips_by_norm else ()
    return _Snapshot(
        prepared, whole.calls.budget, given, program.changed,
        ((*outputs, *(f"gradient of {label}" for label in labels), *total),),
        whole.rule if rows else "", tuple(rows), names,
    )  # fmt: skip


def _of_model(compiled: CompiledModel, number: int, args: Sequence[Any]) -> _Snapshot:
    one = compiled.calls.captured[compiled.calls.forms.expected(number)]
    prepared = _ran(compiled.calls.last_unit(number))
    outputs = _output_names(one.program.changed, len(prepared.graph.parts[0].outputs), loss=False)
    given = [*args, *one.program.constants]
    return _Snapshot(
        prepared, compiled.calls.budget, given, one.program.changed, (outputs,), "", (), {}
    )  # fmt: skip


def _output_names(changed: Sequence[tuple[int, int]], num: int, *, loss: bool) -> tuple[str, ...]:
    """Number the outputs that are the caller's; new values of inputs have no name."""
    hidden = {output for output, _ in changed}
    names, count = [], 0
    for position in range(num):
        if position in hidden:
            names.append("")
        else:
            names.append("loss" if loss and not count else f"output {count}")
            count += 1
    return tuple(names)


# names and bytes


def _key(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _names(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[tuple[object, ...], Named]:
    """Name tensors by where they lie."""
    found: dict[tuple[object, ...], Named] = {}
    for name, value in [*((f"input {k}", one) for k, one in enumerate(args)), *kwargs.items()]:
        for path, tensor in _tensors(name, value):
            found[_key(tensor)] = Named(path, "input")
    for name, buffer in model.named_buffers():
        found[_key(buffer)] = Named(name, "buffer")
    for name, parameter in model.named_parameters():
        found[_key(parameter)] = Named(name, "parameter")
    return found


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _tensors(f"{name}.{position}", item)


def _write(path: str | Path, snapshot: _Snapshot, names: Mapping[tuple[object, ...], Named]) -> None:
    prepared = snapshot.prepared
    graph = prepared.graph
    named = _named_inputs(graph, snapshot, names)
    outputs = list(snapshot.outputs)
    for part in graph.parts[1:]:
        outputs.append(
            tuple(
                f"gradient of {one.name}" if isinstance(value, View) else ""
                for one, value in zip(named, part.outputs, strict=False)
            )
        )
    state = torch.default_generator.get_state()
    memory = _memories(graph, snapshot.given)
    extents = extents_of([(s, graph.storages[s].bytes) for s in sorted(memory)] + [(-1, state.numel())])
    bundle = Bundle(
        graph, prepared.executable, snapshot.budget, named, tuple(outputs), extents[:-1], extents[-1],
        snapshot.changed, snapshot.rule, snapshot.updates,  # type: ignore[arg-type]
    )  # fmt: skip
    write_bundle(path, bundle, [memory[s].data for s in sorted(memory)] + [state.numpy().data])


def _named_inputs(
    graph: Graph, snapshot: _Snapshot, names: Mapping[tuple[object, ...], Named]
) -> tuple[Named, ...]:
    inputs = graph.parts[0].inputs
    named: list[Named] = []
    for position, (item, tensor) in enumerate(zip(inputs, snapshot.given, strict=True)):
        known = snapshot.names.get(position)
        if known is None and isinstance(tensor, torch.Tensor):
            known = names.get(_key(tensor))
        if known is None and item.view is not None and item.view.base != EMPTY:
            role = _ROLES.get(graph.storages[item.view.base].kind, "input")
            known = Named(f"constant {position}" if role == "constant" else item.name, role)
        taken = {one.name for one in named}
        known = known or Named(item.name, "unread")
        named.append(Named(f"{known.name} ({position})", known.role) if known.name in taken else known)
    return tuple(named)


def _memories(graph: Graph, given: Sequence[Any]) -> dict[StorageId, "np.ndarray[Any, Any]"]:
    """The bytes of every storage that an input looks into, laid out as captured."""
    found: dict[StorageId, np.ndarray[Any, Any]] = {}
    pieces: set[StorageId] = set()
    for item, tensor in zip(graph.parts[0].inputs, given, strict=True):
        view = item.view
        if view is None or view.base == EMPTY:
            continue
        _check_layout(item.name, view, tensor)
        size = graph.storages[view.base].bytes
        raw = _bytes_behind(tensor)
        if raw.nbytes == size and tensor.storage_offset() == view.offset:
            found[view.base] = raw
            continue
        if view.base not in pieces:
            found[view.base] = np.zeros(size, dtype=np.uint8)
            pieces.add(view.base)
        item_bytes = ITEM_BYTES[view.dtype]
        begin, length = view.offset * item_bytes, view.end - view.offset * item_bytes
        start = tensor.storage_offset() * item_bytes
        found[view.base][begin : begin + length] = raw[start : start + length]
    _check_pieces(graph, pieces)
    return found


def _check_layout(name: str, view: View, tensor: torch.Tensor) -> None:
    looks = tuple(tensor.shape), tuple(tensor.stride())
    if looks != (view.shape, view.strides):
        captured = view.shape, view.strides
        raise TightropeError(f"input {name} is laid out as {looks}; it was captured as {captured}.")


def _check_pieces(graph: Graph, pieces: set[StorageId]) -> None:
    """Refuse to leave out what an op reads beside the input through which it reaches a storage."""
    spans = [given.view for given in graph.parts[0].inputs]
    for op in graph.all_ops() if pieces else ():
        for value in (*op.arguments, *(value for _, value in op.keywords)):
            for view in views(value):
                if view.base in pieces and view.input >= 0:
                    span = spans[view.input]
                    if span is None or view.offset < span.offset or view.end > span.end:
                        raise TightropeError(
                            f"{op.describe()} reads next to an input that is a view: pass a clone of it."
                        )


def _bytes_behind(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    with torch.no_grad():
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
        return whole.numpy()
