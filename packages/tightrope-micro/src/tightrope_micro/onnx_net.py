"""A net in ONNX as a module of PyTorch, that is captured and compiled like any other.

Idea        Every node becomes a function of tensors. What depends on constants alone, such as shapes, is
            computed while the file is read, with the sizes that the inputs have. Recurrent layers become the
            op that `recurrent` has.
Source      ONNX operator schemas, opset 13 and later
Guarantee   The file is parsed and checked by the ``onnx`` package, nothing in it is executed, and weights lie
            in it: a file that names other files is refused. An op without a rule is refused by name.
Complexity  Linear in nodes and bytes.
Gaps        Float32 weights; sizes are fixed; no loops, branches or sequences.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from tightrope.core import Bytes, TightropeError, UnsupportedOpError
from tightrope_micro.onnx_ops import LIMITED, ONNX_RULES, ORDER, reordered

_MOST: Final[Bytes] = 256 << 20
_OLDEST: Final = 13
_WRONG: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What rules raise for nodes that are not as ONNX says."""


class OnnxNet(nn.Module):
    """The forward of a net in ONNX.

    Args:
        steps: function, names of what it reads and of what it makes, in order.
        constants: by name.
        inputs: names of the inputs.
        output: name of the result.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Callable[[Sequence[Any]], Any], tuple[str, ...], tuple[str, ...]]],
        constants: Mapping[str, Tensor],
        inputs: Sequence[str],
        output: str,
    ) -> None:
        super().__init__()
        self.steps, self.inputs, self.output = list(steps), list(inputs), output
        self.places = {name: f"constant_{k}" for k, name in enumerate(constants)}
        for name, place in self.places.items():
            self.register_buffer(place, constants[name])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute it."""
        values: dict[str, Any] = dict(zip(self.inputs, inputs, strict=True))
        values.update({name: getattr(self, place) for name, place in self.places.items()})
        for function, reads, makes in self.steps:
            found = function([values[name] if name else None for name in reads])
            several = found if isinstance(found, tuple) else (found,)
            values.update(zip(makes, several, strict=False))
        result: Tensor = values[self.output]
        return result


def load_onnx(path: str | os.PathLike[str]) -> tuple[OnnxNet, tuple[Tensor, ...]]:
    """Read a net from a file in ONNX.

    Args:
        path: of at most 256 MiB, with float32 weights and one result. Sizes that are not fixed become 1.

    Returns:
        The net in evaluation, and one sample of zeros.

    Raises:
        UnsupportedOpError: names the op.
        TightropeError: the ``onnx`` package is not there, or the file is no such net.

    Example:
        >>> net, sample = load_onnx("net.onnx")  # doctest: +SKIP
    """
    try:
        return _loaded(Path(path))
    except TightropeError:
        raise
    except _WRONG as error:
        words = " ".join(str(error).split())[:200]
        raise TightropeError(
            f"{str(path)!r} is no net that can be read: {type(error).__name__}, {words}. Export it anew."
        ) from error


def _loaded(path: Path) -> tuple[OnnxNet, tuple[Tensor, ...]]:
    model = _parsed(path)
    from onnx import numpy_helper

    graph = model.graph
    known = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in graph.initializer}
    inputs = {one.name: _zeros(one, path) for one in graph.input if one.name not in known}
    if len(graph.output) != 1:
        raise TightropeError(
            f"{str(path)!r} returns {len(graph.output)} tensors; the device returns one. Export the scores "
            "alone."
        )
    values: dict[str, Any] = {**known, **inputs}
    fixed, steps = set(known), []
    for node in graph.node:
        attributes = {one.name: _attribute(one) for one in node.attribute}
        reads, makes = tuple(node.input), tuple(node.output)
        if node.op_type in ORDER:
            reads = reordered(node.op_type, attributes, reads, values, fixed)
        function = _bound(node.op_type, attributes, path, len(makes))
        settled = node.op_type == "Constant" or fixed.issuperset(name for name in reads if name)
        if not settled:
            function = _with_numbers(
                function, node.op_type, [values[n] if n in fixed else None for n in reads]
            )
        found = _tried(
            function, [values[name] if name else None for name in reads], f"{node.op_type} of {str(path)!r}"
        )
        several = found if isinstance(found, tuple) else (found,)
        values.update(zip(makes, several, strict=False))
        if settled or node.op_type == "Shape":  # sizes are those of the sample
            fixed.update(makes)
        else:
            steps.append((function, reads, makes))
    output = graph.output[0].name
    if output not in values:
        raise TightropeError(
            f"{str(path)!r} returns {output!r}, which no rule makes. Export the scores alone."
        )
    if output in fixed:
        raise TightropeError(f"{str(path)!r} returns a constant: there is nothing to compile.")
    wanted = {name for _, reads, _ in steps for name in reads}
    constants = {name: values[name] for name in sorted(fixed & wanted)}
    return OnnxNet(steps, constants, list(inputs), output).eval(), tuple(inputs.values())


def _parsed(path: Path) -> Any:
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise TightropeError(
            "nets in ONNX need the package onnx: pip install 'tightrope-micro[onnx]'."
        ) from error
    if not path.is_file() or path.stat().st_size > _MOST:
        raise TightropeError(f"no net at {str(path)!r}: give a file in ONNX of at most {_MOST >> 20} MiB.")
    try:
        model = onnx.load_model_from_string(path.read_bytes())
        inside = all(one.data_location != onnx.TensorProto.EXTERNAL for one in model.graph.initializer)
        if not inside:
            raise TightropeError(
                f"{str(path)!r} keeps weights in other files. Export it with all weights inside."
            )
        onnx.checker.check_model(model)
    except TightropeError:
        raise
    except Exception as error:  # whatever the parser finds wrong with it
        words = " ".join(str(error).split())[:200]
        raise TightropeError(f"{str(path)!r} is no net in ONNX: {words}. Export it anew.") from error
    versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    if not versions or max(versions) < _OLDEST:
        raise TightropeError(f"{str(path)!r} has opset {versions}. Export it with opset {_OLDEST} or later.")
    return model


def _zeros(given: Any, path: Any) -> Tensor:
    kind = given.type.tensor_type
    if kind.elem_type != 1:  # TensorProto.FLOAT
        raise TightropeError(
            f"input {given.name!r} of {str(path)!r} is not float32. Export it with such inputs."
        )
    return torch.zeros([max(1, one.dim_value) for one in kind.shape.dim])


def _attribute(given: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(given)
    if isinstance(value, onnx.TensorProto):
        if value.data_location == onnx.TensorProto.EXTERNAL:
            raise TightropeError("A constant lies in another file. Export the net with all weights inside.")
        return torch.from_numpy(onnx.numpy_helper.to_array(value).copy())
    return value.decode() if isinstance(value, bytes) else value


def _bound(
    name: str, attributes: Mapping[str, Any], path: Any, num_made: int
) -> Callable[[Sequence[Any]], Any]:
    """A node as a function of what it reads.

    Raises:
        UnsupportedOpError: when the op has no rule, or the rule has no form for what it is given.
    """
    rule = ONNX_RULES.get(name)
    if rule is None:
        raise UnsupportedOpError(
            f"{name} of {str(path)!r} has no kernel. Ops there are for: {', '.join(sorted(ONNX_RULES))}.",
            op=name,
        )
    given = {**attributes, "": num_made, "op": name}

    def function(values: Sequence[Any]) -> Any:
        return rule(values, given)

    return function


def _tried(function: Callable[[Sequence[Any]], Any], values: Sequence[Any], what: str) -> Any:
    try:
        with torch.no_grad():
            return function(values)
    except TightropeError:
        raise
    except _WRONG as error:
        words = " ".join(str(error).split())[:200]
        raise TightropeError(
            f"{what} fails for the sizes of its inputs: {words}. See that the net runs elsewhere, "
            "and export it anew."
        ) from error


def _with_numbers(
    function: Callable[[Sequence[Any]], Any], op: str, fixed: Sequence[Tensor | None]
) -> Callable[[Sequence[Any]], Any]:
    """Give a node its sizes, places and limits as plain numbers: they are part of what is compiled."""
    plain = {
        at: value.tolist()
        for at, value in enumerate(fixed)
        if value is not None and (not value.is_floating_point() or op in LIMITED)
    }

    def called(values: Sequence[Any]) -> Any:
        return function([plain.get(at, value) for at, value in enumerate(values)])

    return called if plain else function
