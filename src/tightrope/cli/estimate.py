"""`tightrope estimate`: will it fit? Capture on shapes alone and look at the peak."""

import importlib.util
from pathlib import Path
from typing import Any

import torch

from tightrope.capture import capture_program, measured
from tightrope.core import Graph, Machine, TightropeError, parse_bytes
from tightrope.core.codec import load_graph, read_file
from tightrope.native.allocator import allocator
from tightrope.plan import base_schedule, lower_bound, timeline
from tightrope.price import price_graph


def build(target: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Import ``FILE.py:FUNCTION`` and call it; it returns (model, inputs).

    Raises:
        TightropeError: the target is malformed, absent, or returns something else.
    """
    file, _, function = target.rpartition(":")
    path = Path(file)
    if not file.endswith(".py") or not function.isidentifier():
        raise TightropeError(
            f"{target!r} does not name a function: write FILE.py:FUNCTION, e.g. train.py:build."
        )
    if not path.is_file():
        raise TightropeError(f"no file {file!r} (from {target!r}).")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made = getattr(module, function, None)
        if made is None:
            raise TightropeError(f"{file!r} has no function {function!r}.")
        result = made()
    except TightropeError:
        raise
    except Exception as error:
        raise TightropeError(f"{target!r} failed: {type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], torch.nn.Module)):
        raise TightropeError(
            f"{target!r} must return (model, inputs): inputs is a tuple, or a dict of keywords."
        )
    model, inputs = result
    if isinstance(inputs, dict):
        return model, (), inputs
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def graph_of(target: str) -> Graph:
    """Load a graph file, or capture and measure ``FILE.py:FUNCTION``."""
    if ".py:" in target:
        model, args, kwargs = build(target)
        program, real = capture_program(model, args, kwargs)
        return measured(program, real, allocator()).graph
    return load_graph(read_file(target))


def estimate_step(target: str, limit: int | str, machine: Machine) -> dict[str, Any]:
    """Size the step of ``target`` without running it.

    Returns:
        Plain values: ``fits``, bytes of each part, the smallest bytes any plan may need, and the
        storages alive at the peak.
    """
    model, args, kwargs = build(target)
    program, _ = capture_program(model, args, kwargs)
    return describe(price_graph(program.graph, machine), limit, machine)


def describe(graph: Graph, limit: int | str, machine: Machine) -> dict[str, Any]:
    """Say whether the given order of a graph fits ``limit``, and what is alive at its peak."""
    trace = timeline(graph, base_schedule(graph))
    profile = trace.profile()
    peak = max(profile, default=0)
    at = profile.index(peak) if profile else 0
    bound, witness = lower_bound(graph)
    asked = parse_bytes(limit, whole=graph.persistent + peak)
    alive = sorted(
        (buffer for buffer in trace.buffers if buffer.start <= at < buffer.end),
        key=lambda buffer: -buffer.bytes,
    )
    return {
        "fits": graph.persistent + peak <= asked,
        "limit_bytes": asked,
        "machine": machine.name,
        "total_bytes": graph.persistent + peak,
        "persistent_bytes": graph.persistent,
        "peak_bytes": peak,
        "lower_bound_bytes": bound,
        "lower_bound_op": graph.ops[witness].describe() if witness >= 0 else "",
        "num_ops": len(graph.ops),
        "note": "tensor bytes are exact; the kernels' own work space is not included until ops are measured",
        "alive_at_peak": [_alive(graph, buffer.storage, buffer.bytes) for buffer in alive[:20]],
    }


def _alive(graph: Graph, storage: int, size: int) -> dict[str, Any]:
    if storage < 0:
        return {"bytes": size, "what": "temporary", "module": "", "tensor": "", "source": ""}
    found = graph.storages[storage]
    maker = next((op for op in graph.ops if storage in op.creates), None)
    return {
        "bytes": size,
        "what": str(found.kind),
        "module": found.module,
        "tensor": found.label,
        "source": maker.source if maker else "",
    }
