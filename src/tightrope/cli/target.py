"""What a command works on: a graph file, or ``FILE.py:FUNCTION`` that builds a model and one batch.

A graph file is data. A Python file is run, as `python FILE.py` would run it, because the user names
a function in it; nothing else that is given to a command is ever executed.
"""

import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import typer

from tightrope.capture import Program, capture_program, measured
from tightrope.capture.alike import ShortProgram, capture_short
from tightrope.capture.whole import tangent_shapes
from tightrope.core import Graph, Machine, TightropeError
from tightrope.core.provenance import Provenance
from tightrope.formats import Source, read_source
from tightrope.integrity.findings import digest_of
from tightrope.integrity.provenance import provenance_of
from tightrope.lower import with_writes
from tightrope.native.hook.allocator import allocator
from tightrope.price import price_graph
from tightrope.run.step_graph import step_graph


class Built(NamedTuple):
    """A model and the arguments of one call."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class TrainedModel(NamedTuple):
    """A model, the arguments of one call, and what updates it."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizer: torch.optim.Optimizer


def is_function(target: str) -> bool:
    """Tell whether a target names a function of a Python file, rather than a graph file."""
    return target.rpartition(":")[0].endswith(".py")


def build(target: str) -> Built:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs).

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    return _checked(target, _called(target))


def build_trained(target: str) -> TrainedModel:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs, optimizer).

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    match _called(target):
        case (model, inputs, torch.optim.Optimizer() as optimizer):
            return TrainedModel(*_checked(target, (model, inputs)), optimizer)
    raise TightropeError(
        f"{target!r} must return (model, inputs, optimizer), the last a torch.optim.SGD or AdamW: the update "
        "is a part of the step."
    )


class CalibratedNet(NamedTuple):
    """A model, the tensors of one call, and those of several calls, from which ranges come."""

    model: torch.nn.Module
    args: tuple[torch.Tensor, ...]
    samples: tuple[tuple[torch.Tensor, ...], ...]


def build_calibrated(target: str) -> CalibratedNet:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs) or (model, inputs, samples).

    Samples are a list of inputs like those of the call.

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    made = _called(target)
    samples: object = ()
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[2], list | tuple):
        *made, samples = made
    built = _checked(target, tuple(made) if isinstance(made, list) else made)
    calls = tuple(
        tuple(one) if isinstance(one, list | tuple) else (one,)
        for one in (samples if isinstance(samples, list | tuple) else ())
    )
    for values in (built.args, *calls):
        alike = len(values) == len(built.args) and all(isinstance(value, torch.Tensor) for value in values)
        if (
            built.kwargs
            or not alike
            or any(v.shape != a.shape for v, a in zip(values, built.args, strict=True))
        ):
            raise TightropeError(
                f"{target!r} must return (model, inputs, samples): tensors by position, and a list of inputs "
                "like them, of the same shapes, from which the ranges of values come."
            )
    return CalibratedNet(built.model, built.args, calls)


def _called(target: str) -> object:
    """Import ``FILE.py:FUNCTION`` and return what it returns.

    Raises:
        TightropeError: the target is malformed, absent, or fails.
    """
    file, _, function = target.rpartition(":")
    if not is_function(target) or not function.isidentifier():
        raise TightropeError(
            f"{target!r} does not name a function: write FILE.py:FUNCTION, e.g. train.py:build."
        )
    try:
        made = getattr(_imported(file), function, None)
        result = made() if callable(made) else None
    except TightropeError:
        raise
    except (Exception, SystemExit) as error:
        raise TightropeError(f"{target!r} failed: {type(error).__name__}: {_first_line(error)}") from error
    if made is None:
        raise TightropeError(f"{file!r} has no function {function!r}.")
    return result


def _imported(file: str) -> ModuleType:
    path = Path(file)
    if "\0" in file or not path.is_file():
        raise TightropeError(f"no file {file!r}.")
    name = f"tightrope_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TightropeError(f"{file!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    # as for `python FILE.py`: its neighbours can be imported, and its classes can be looked up
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _checked(target: str, result: object) -> Built:
    match result:
        case (torch.nn.Module() as model, dict() as kwargs) if all(isinstance(key, str) for key in kwargs):
            return Built(model, (), kwargs)
        case (torch.nn.Module() as model, tuple() | list() as args):
            return Built(model, tuple(args), {})
        case (torch.nn.Module() as model, torch.Tensor() as only):
            return Built(model, (only,), {})
    raise TightropeError(
        f"{target!r} must return (model, inputs): inputs is a tensor, a tuple, or a dict of keywords."
    )


def captured(target: str) -> tuple[Program, list[Any]]:
    """Build and capture ``FILE.py:FUNCTION`` on shapes alone; the model may be on the meta device.

    Says so on standard error where the model's forward does not return a scalar loss.

    Raises:
        TightropeError: it cannot be built, called, or captured as one graph.
    """
    program, real, _ = capture_target(target, build(target), short=False)
    return program, real


def capture_target(target: str, built: Built, *, short: bool = True, noted: bool = True) -> ShortProgram:
    """Capture what ``target`` built on shapes alone.

    Args:
        target: for people.
        built: by it.
        short: whether layers may be left out that are equal to others.
        noted: whether it is said what the graph lacks to be a whole training step.

    Raises:
        TightropeError: it cannot be called, or captured as one graph.
    """
    try:
        if short:
            found = capture_short(built.model, built.args, built.kwargs)
        else:
            found = ShortProgram(*capture_program(built.model, built.args, built.kwargs), None)
    except TightropeError:
        raise
    except Exception as error:
        raise TightropeError(
            f"{target!r}: calling the model failed: {type(error).__name__}: {_first_line(error)}"
        ) from error
    if noted and (note := _loss_note(found.program)):
        typer.echo(f"note: {note}", err=True)
    return found


def _loss_note(program: Program) -> str:
    """Say what a graph lacks to be a whole training step, empty when it has a scalar loss and a backward."""
    shapes = tangent_shapes(program)
    if not shapes:
        return "nothing here requires a gradient: this is a forward pass alone, without a backward."
    if len(shapes) == 1 and math.prod(shapes[0]) == 1:
        return ""
    return (
        f"the forward returns no scalar loss alone: gradients start from outputs of shapes {shapes}. A loss "
        "computed outside the model is not counted; let the forward return it to count it."
    )


def source_of(target: str, machine: Machine | None = None) -> Source:
    """Read a graph file of any known format, or capture ``FILE.py:FUNCTION`` and price its ops.

    Args:
        target: see above.
        machine: prices come from its table; None = every op is measured here.

    Raises:
        TightropeError: there is no graph; the model is on the meta device, and no machine is given; or
            a machine is given for a file that has its own times.
    """
    if is_function(target):
        program = priced_program(target, machine)
        known = provenance_of_program(program)
        return Source(program.graph, tuple(range(len(program.graph.ops))), "tightrope", known)
    found = read_source(target)
    if machine is None:
        return found
    if found.format != "tightrope":
        raise TightropeError(
            f"{target!r} has times and no kernels that a machine could price: leave out --machine."
        )
    return replace(found, graph=price_graph(found.graph, machine))


def step_graph_of(target: str) -> Graph:
    """Read a graph file, or capture ``FILE.py:FUNCTION``: with the update, where it returns an optimizer too.

    Args:
        target: a file, or a function that returns (model, inputs) or (model, inputs, optimizer).

    Raises:
        TightropeError: there is no graph, the step is not one graph, or nothing can be measured.
    """
    if not is_function(target):
        return source_of(target).graph
    made = _called(target)
    match made:
        case (model, inputs, torch.optim.Optimizer() as optimizer):
            built = _checked(target, (model, inputs))
            _check_measurable(target, (*built.model.parameters(), *built.args, *built.kwargs.values()))
            return step_graph(built.model, built.args, optimizer, built.kwargs)
    program, real, _ = capture_target(target, _checked(target, made), short=False)
    _check_measurable(target, real)
    return measured(program, real, allocator()).graph


def priced_program(target: str, machine: Machine | None) -> Program:
    """Capture a FILE.py:FUNCTION and price its ops: measured here, or by a machine's table.

    Raises:
        TightropeError: nothing can be measured, as tensors are on the meta device.
    """
    program, real = captured(target)
    if machine is not None:
        return replace(program, graph=with_writes(price_graph(program.graph, machine)))
    _check_measurable(target, real)
    return measured(program, real, allocator())


def _check_measurable(target: str, values: Sequence[Any]) -> None:
    if is_on_meta(values):
        raise TightropeError(
            f"{target!r} has tensors on the meta device, so its ops cannot be measured: "
            "name a machine (--machine) to take times from its table."
        )


def provenance_of_program(program: Program) -> Provenance:
    """Write down the code that a program was captured from, and the values of tensors that it holds."""
    held = [constant for constant in program.constants if not constant.is_meta]
    values = b"".join(
        f"{tensor.dtype}{tuple(tensor.shape)}".encode()
        + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in held
    )
    return provenance_of(program.codes, constants=digest_of(values) if held else "")


def is_on_meta(values: Sequence[Any]) -> bool:
    """Tell whether some tensors have shapes and no values."""
    return any(isinstance(value, torch.Tensor) and value.is_meta for value in values)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
