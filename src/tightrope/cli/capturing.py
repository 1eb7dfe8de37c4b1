"""Capture what a target built, price it, and write down where it came from."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import typer

from tightrope.capture import Program, capture_program, measured
from tightrope.capture.alike import ShortProgram, capture_short
from tightrope.capture.whole import tangent_shapes
from tightrope.cli.target import Built, first_line
from tightrope.core import Machine, TightropeError
from tightrope.core.plugins import installed, loaded
from tightrope.core.provenance import CHECKS, Provenance
from tightrope.lower import with_writes
from tightrope.native.hook.allocator import allocator
from tightrope.price import price_graph


def captured(target: str, built: Built) -> tuple[Program, list[Any]]:
    """Capture what ``FILE.py:FUNCTION`` built on shapes alone; the model may be on the meta device.

    Says so on standard error where the model's forward does not return a scalar loss.

    Raises:
        TightropeError: it cannot be called, or captured as one graph.
    """
    program, real, _ = capture_target(target, built, short=False)
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
            f"{target!r}: calling the model failed: {type(error).__name__}: {first_line(error)}"
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


def priced_program(target: str, built: Built, machine: Machine | None) -> Program:
    """Capture what FILE.py:FUNCTION built and price its ops: measured here, or by a machine's table.

    Raises:
        TightropeError: nothing can be measured, as tensors are on the meta device.
    """
    return priced(target, *captured(target, built), machine)


def priced(target: str, program: Program, real: Sequence[Any], machine: Machine | None) -> Program:
    """Price the ops of what was captured; see `priced_program`."""
    if machine is not None:
        return replace(program, graph=with_writes(price_graph(program.graph, machine)))
    _check_measurable(target, real)
    return measured(program, real, allocator())


def _check_measurable(target: str, values: Sequence[Any]) -> None:
    if is_on_meta(values):
        raise TightropeError(
            f"{target!r} has tensors on the meta device, so its ops cannot be measured. "
            "Give a machine (--machine) to take times from its table."
        )


def provenance_of_program(program: Program) -> Provenance | None:
    """Write down the code that a program was captured from, and the values of tensors that it holds.

    None where nothing is installed that writes it.
    """
    entries = installed(CHECKS).get("code", ())
    if not entries:
        return None
    held = [constant for constant in program.constants if not constant.is_meta]
    values = b"".join(
        f"{tensor.dtype}{tuple(tensor.shape)}".encode()
        + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in held
    )
    found: Provenance = loaded("what writes down the code of a plan", entries)(
        program.codes, constants=values
    )
    return found


def is_on_meta(values: Sequence[Any]) -> bool:
    """Tell whether some tensors have shapes and no values."""
    return any(isinstance(value, torch.Tensor) and value.is_meta for value in values)
