"""Where values part: both sides are walked, and the first result that the reference does not have is named.

Idea        Every value of one image is recorded on both sides: of preprocessing after each line of the
            user's function, of a net after each op. A value agrees if the reference has it too. An op parts
            if its result agrees with nothing, its inputs do, and what is made of it does not agree again.
Guarantee   Ops that are fused, folded or renamed do not part if their results come back later. A noise is
            named at the first op, never at those that only hand it on.
Complexity  O(values of one size on both sides), in elements.
Gaps        One image is walked: that with the largest distance. A value that agrees by chance hides what is
            before it, so values of fewer than four numbers hide nothing.
"""

import linecache
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx

from tightrope_differ.images.places import CallPlaces
from tightrope_differ.lines import is_foreign, line_of, short
from tightrope_differ.nets.graphs import line_of_node, op_of, returning, values_of
from tightrope_differ.nets.lowerings import Lowering, OnnxCall, run
from tightrope_differ.values.parity import PartingPoint

_TOLERANCE: Final = 3e-5
"""Relative to the largest magnitude of a float32 value; sums of a few thousand terms stay below."""
_FEWEST: Final = 4


class WalkedValue(NamedTuple):
    """A value on the way: what made it, the user's line, numbers of the values that it is made of."""

    op: str
    line: str
    inputs: tuple[int, ...]
    value: NDArray[Any]


def walk_lines(front: Callable[[str], Any], path: str, places: CallPlaces) -> list[WalkedValue]:
    """Run preprocessing on one image and list the arrays that each of the user's lines makes."""
    found: list[WalkedValue] = []
    known: dict[FrameType, tuple[int, dict[str, bytes]]] = {}

    def add(op: str, line: str, array: NDArray[Any]) -> None:
        found.append(WalkedValue(op, line, (len(found) - 1,) if found else (), array))

    def trace(frame: FrameType, event: str, given: Any) -> Any:
        file = frame.f_code.co_filename
        if is_foreign(file):
            return None
        arrays = _arrays({**frame.f_locals, **({"return": given} if event == "return" else {})}.items())
        prints = {name: f"{one.shape} {one.dtype}".encode() + one.tobytes() for name, one in arrays}
        line, before = known.get(frame, (0, prints))
        for name, array in arrays:
            if before.get(name) != prints[name]:
                text = linecache.getline(file, line).strip() or frame.f_code.co_name
                add(text, f"{short(file)}:{line}", array.copy())
        known[frame] = frame.f_lineno, before | prints
        return trace

    before = sys.gettrace()
    with places.watched() as calls:
        sys.settrace(trace)
        try:
            made = front(path)
        finally:
            sys.settrace(before)
    if not found:  # nothing of it is Python of the user: the calls of libraries are what there is
        for call, array in _arrays((call, call.made) for call in calls):
            add(f"{call.kind} by {call.library}", call.line, array)
    for name, array in _arrays([("what preprocessing returns", made)]):
        add(name, "", array)
    return found


def _arrays(named: Iterable[tuple[Any, Any]]) -> list[tuple[Any, NDArray[Any]]]:
    """Keep what is an array, a tensor or an image of Pillow, as arrays of numbers."""
    found = []
    for name, value in named:
        if isinstance(value, Tensor):
            value = (value.detach().float() if value.is_floating_point() else value.detach()).numpy()
        elif type(value).__module__.startswith("PIL.") and hasattr(value, "getdata"):
            value = np.asarray(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            found.append((name, value))
    return found


def walk_graph(graph: fx.GraphModule, batch: Tensor, lowering: Lowering) -> list[WalkedValue]:
    """Run a captured graph by a lowering that returns every value of it at once."""
    nodes = values_of(graph.graph)
    values = dict(zip(nodes, run(lowering(returning(graph, nodes), batch), batch), strict=True))
    found = [WalkedValue("input of the net", "", (), batch.float().numpy())]
    sources: dict[fx.Node, set[int]] = {}
    """Numbers of the values that a node reads, also by way of nodes that are no tensors."""
    for node in graph.graph.nodes:
        read = {number for one in node.all_input_nodes for number in sources[one]}
        sources[node] = {0} if node.op == "placeholder" else read
        if node in values:
            sources[node] = {len(found)}
            inputs = tuple(sorted(read))
            found.append(WalkedValue(op_of(node), line_of_node(node), inputs, values[node].numpy()))
    return found


def walk_in_turn(
    graph: fx.GraphModule, batch: Tensor, lowering: Lowering, reference: Sequence[WalkedValue]
) -> list[WalkedValue]:
    """Find the first op at which a lowering of one value parts: halve, and run the net up to there."""
    nodes = values_of(graph.graph)

    @cache
    def made(at: int) -> NDArray[Any]:
        return run(lowering(returning(graph, [nodes[at]]), batch), batch)[0].numpy()

    numbers = range(len(nodes))
    first = bisect_left(numbers, True, key=lambda at: not agree(made(at), reference[at + 1].value))
    parted = [reference[at + 1]._replace(value=made(at)) for at in numbers[first : first + 1]]
    return [*reference[: first + 1], *parted]


def walk_onnx(net: OnnxCall, batch: Tensor) -> list[WalkedValue]:
    """Run a net in ONNX and list the value of every node."""
    import onnx

    model = onnx.load(net.file)
    made = {name: node for node in model.graph.node for name in node.output if name}
    more = sorted(made.keys() - {one.name for one in model.graph.output})
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in more)
    call = OnnxCall(model.SerializeToString(), list(made), plain=True)
    values = call(batch[:1].expand(call.size or len(batch), *batch.shape[1:]))
    found = [WalkedValue("input of the net", "", (), batch.numpy())]
    number = dict.fromkeys((one.name for one in model.graph.input), 0)
    for (name, node), value in zip(made.items(), values, strict=True):
        number[name] = len(found)
        traces = {one.key: one.value for one in node.metadata_props}
        line = line_of(traces.get("pkg.torch.onnx.stack_trace", "")) or f"{Path(net.file).name}: {name}"
        inputs = tuple(sorted({number[one] for one in node.input if one in number}))
        found.append(WalkedValue(f"{node.op_type} {node.name or name}", line, inputs, value.numpy()))
    return found


def agree(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Tell whether two values are the same but for rounding; whole numbers have to be equal."""
    return distance(one, other) <= (
        0 if one.dtype.kind in "biu" and other.dtype.kind in "biu" else _TOLERANCE
    )


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Give the largest difference, relative to the largest magnitude; 1 where sizes differ."""
    if one.squeeze().shape != other.squeeze().shape:
        return 1.0
    if np.array_equal(one.ravel(), other.ravel()):
        return 0.0
    left, right = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        found = float(np.abs(left - right).max()) / max(float(np.abs(right).max()), 1e-30)
    return found if np.isfinite(found) else 1.0


def parting(
    reference: Sequence[WalkedValue], other: Sequence[WalkedValue], stage: str
) -> PartingPoint | None:
    """Find the first op of the other side whose inputs agree with the reference and whose result does not."""
    met = [{k for k, two in enumerate(reference) if agree(one.value, two.value)} for one in other]
    harmless = [bool(same) for same in met]
    for at in reversed(range(len(other))):
        after = [
            harmless[k]
            for k in range(at + 1, len(other))
            if at in other[k].inputs and other[k].value.size >= _FEWEST
        ]
        harmless[at] = harmless[at] or (bool(after) and all(after))
    for at, one in enumerate(other):
        if not harmless[at] and all(harmless[k] for k in one.inputs):
            nearest = min(distance(one.value, two.value) for two in reference)
            there = _counterpart(reference, set().union(*met))
            return PartingPoint(stage, one.op, one.line, there, nearest)
    return None


def _counterpart(reference: Sequence[WalkedValue], met: set[int]) -> str:
    """Name the first op of the reference that the other side lacks though it has its inputs."""
    for at, one in enumerate(reference):
        if at not in met and all(k in met for k in one.inputs):
            return f"{one.op} ({one.line})" if one.line else one.op
    return ""
