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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx

from tightrope_differ.images.places import CallPlaces, is_foreign, short
from tightrope_differ.parity.graphs import line_of, located, returning, values_of
from tightrope_differ.parity.lowerings import Lowering, OnnxCall, quiet, run
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

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if is_foreign(file):
            return None
        known = {
            name: _print(array)
            for name, value in frame.f_locals.items()
            if (array := _array(value)) is not None
        }
        last = frame.f_lineno

        def local(frame: FrameType, event: str, given: Any) -> Any:
            nonlocal last
            for name, value in {**frame.f_locals, **({"return": given} if event == "return" else {})}.items():
                array = _array(value)
                if array is not None and known.get(name) != (print_ := _print(array)):
                    known[name] = print_
                    text = linecache.getline(file, last).strip() or frame.f_code.co_name
                    before = (len(found) - 1,) if found else ()
                    found.append(WalkedValue(text, f"{short(file)}:{last}", before, array.copy()))
            last = frame.f_lineno
            return local

        return local

    before = sys.gettrace()
    with places.watched() as calls:
        sys.settrace(trace)
        try:
            made = front(path)
        finally:
            sys.settrace(before)
    if not found:  # nothing of it is Python of the user: the calls of libraries are what there is
        for call in calls:
            if (array := _array(call.made)) is not None:
                name = f"{call.kind} by {call.library}"
                found.append(WalkedValue(name, call.line, (len(found) - 1,) if found else (), array))
    if (array := _array(made)) is not None:
        found.append(WalkedValue("what preprocessing returns", "", (len(found) - 1,) if found else (), array))
    return found


def _print(array: NDArray[Any]) -> tuple[object, ...]:
    return array.shape, array.dtype.str, array.tobytes()


def _array(value: Any) -> NDArray[Any] | None:
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else None
    if isinstance(value, Tensor):
        return value.detach().float().numpy() if value.is_floating_point() else value.detach().numpy()
    if type(value).__module__.startswith("PIL.") and hasattr(value, "getdata") and hasattr(value, "mode"):
        made: NDArray[Any] = np.asarray(value)
        return made
    return None


def walk_graph(graph: fx.GraphModule, batch: Tensor, lowering: Lowering) -> list[WalkedValue]:
    """Run a captured graph by a lowering that returns every value of it at once."""
    nodes = values_of(graph.graph)
    given = _input(graph, batch)
    with quiet():
        values = run(lowering(returning(graph, nodes), batch), batch)
    return [given, *_steps(nodes, [one.numpy() for one in values])]


def _input(graph: fx.GraphModule, batch: Tensor) -> WalkedValue:
    return WalkedValue("input of the net", "", (), batch.float().numpy())


def _steps(nodes: Sequence[fx.Node], values: Sequence[NDArray[Any]]) -> list[WalkedValue]:
    number = {node: at + 1 for at, node in enumerate(nodes)}

    def sources(node: fx.Node) -> set[int]:
        """Numbers of the values that a node reads, also by way of nodes that are no tensors."""
        found: set[int] = set()
        for one in node.all_input_nodes:
            if one in number or one.op == "placeholder":
                found.add(number.get(one, 0))
            elif one.op != "get_attr":
                found |= sources(one)
        return found

    return [
        WalkedValue(located(node).op, located(node).line, tuple(sorted(sources(node))), value)
        for node, value in zip(nodes, values, strict=True)
    ]


def walk_in_turn(
    graph: fx.GraphModule, batch: Tensor, lowering: Lowering, reference: Sequence[WalkedValue]
) -> list[WalkedValue]:
    """Find the first op at which a lowering of one value parts: halve, and run the net up to there."""
    nodes = values_of(graph.graph)
    values = [one.value for one in reference[1:]]
    low, high = 0, len(nodes) - 1
    while low < high:
        middle = (low + high) // 2
        made = run(lowering(returning(graph, [nodes[middle]]), batch), batch)[0].numpy()
        if agree(made, values[middle]):
            low = middle + 1
        else:
            high, values[middle] = middle, made
    values[low] = run(lowering(returning(graph, [nodes[low]]), batch), batch)[0].numpy()
    return [reference[0], *_steps(nodes, values)[: low + 1]]


def walk_onnx(path: str | Path, batch: Tensor) -> list[WalkedValue]:
    """Run a file in ONNX and list the value of every node."""
    import onnx

    model = onnx.load(str(path))
    made = {name for node in model.graph.node for name in node.output if name}
    known = {one.name for one in model.graph.output}
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(made - known))
    order = [name for node in model.graph.node for name in node.output if name]
    call = OnnxCall(model.SerializeToString(), order, plain=True)
    values = dict(zip(order, call(batch), strict=True))
    found = [WalkedValue("input of the net", "", (), batch.numpy())]
    number = dict.fromkeys((one.name for one in model.graph.input), 0)
    for node in model.graph.node:
        traces = {one.key: one.value for one in node.metadata_props}
        line = line_of(traces.get("pkg.torch.onnx.stack_trace", ""))
        inputs = tuple(sorted({number[name] for name in node.input if name in number}))
        for name in node.output:
            if name:
                number[name] = len(found)
                op = f"{node.op_type} {node.name or name}"
                found.append(
                    WalkedValue(op, line or f"{Path(path).name}: {name}", inputs, values[name].numpy())
                )
    return found


def agree(one: NDArray[Any], other: NDArray[Any], tolerance: float = _TOLERANCE) -> bool:
    """Tell whether two values are the same but for rounding; whole numbers have to be equal."""
    return distance(one, other) <= (0 if one.dtype.kind in "biu" and other.dtype.kind in "biu" else tolerance)


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Give the largest difference, relative to the largest magnitude; 1 where sizes differ."""
    if one.size != other.size or _body(one) != _body(other):
        return 1.0
    if not one.size or np.array_equal(one.ravel(), other.ravel()):
        return 0.0
    left, right = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    scale = max(float(np.abs(right).max()), 1e-30)
    with np.errstate(invalid="ignore", over="ignore"):
        found = float(np.abs(left - right).max()) / scale
    return found if np.isfinite(found) else 1.0


def _body(array: NDArray[Any]) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


def parting(
    reference: Sequence[WalkedValue], other: Sequence[WalkedValue], stage: str
) -> PartingPoint | None:
    """Find the first op of the other side whose inputs agree with the reference and whose result does not."""
    sized: dict[tuple[int, ...], list[int]] = {}
    for at, one in enumerate(reference):
        sized.setdefault(_body(one.value), []).append(at)
    met: dict[int, list[int]] = {}
    nearest: dict[int, float] = {}
    for at, one in enumerate(other):
        found = [(distance(one.value, reference[k].value), k) for k in sized.get(_body(one.value), ())]
        nearest[at] = min((gap for gap, _ in found), default=1.0)
        same = [k for _, k in found if agree(one.value, reference[k].value)]
        if same:
            met[at] = same
    users: dict[int, list[int]] = {}
    for at, one in enumerate(other):
        for source in one.inputs:
            users.setdefault(source, []).append(at)
    harmless: dict[int, bool] = {}
    for at in reversed(range(len(other))):
        after = [k for k in users.get(at, ()) if other[k].value.size >= _FEWEST]
        harmless[at] = at in met or (bool(after) and all(harmless[k] for k in after))
    for at, one in enumerate(other):
        if not harmless[at] and all(harmless[k] for k in one.inputs):
            return PartingPoint(
                stage,
                one.op,
                one.line,
                _counterpart(reference, {k for same in met.values() for k in same}),
                nearest[at],
            )
    return None


def _counterpart(reference: Sequence[WalkedValue], met: set[int]) -> str:
    """Name the first op of the reference that the other side lacks though it has its inputs."""
    for at, one in enumerate(reference):
        if at not in met and all(k in met for k in one.inputs):
            return f"{one.op} ({one.line})" if one.line else one.op
    return ""
