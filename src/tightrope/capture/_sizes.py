"""Graphs whose sizes are symbols: which values they may have, and the same graph for some of them.

Idea        Dynamo and AOTAutograd trace a call once with its sizes as symbols, and write down what they
            decided because of a size (guards). Where other sizes keep every guard, the graph for them is the
            same list of ops: symbols become numbers, and each op is run on shapes alone.
Guarantee   Every size, stride and byte of the graph for some sizes is what torch's own shape functions give
            for them. Sizes that break a guard are never read: they are another graph.
Complexity  Linear in the nodes.
Gaps        A graph inside a graph (control flow) is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from tightrope.capture.failures import NESTED
from tightrope.core import CaptureError


def sizes_in(args: Sequence[Any]) -> tuple[int, ...]:
    """The sizes among the arguments of a captured call: its numbers, in order.

    >>> sizes_in([4, torch.ones(2), 77])
    (4, 77)
    """
    return tuple(_now(given) for given in args if isinstance(given, int | torch.SymInt))


def _now(size: Any) -> int:
    """A size in the call that is traced; asking a symbol itself would fix it."""
    if isinstance(size, torch.SymInt) and size.node.is_nested_int():
        raise CaptureError(f"{NESTED}.")
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


class Symbolic:
    """A captured graph with symbols.

    Attributes:
        module: the graph.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self._inputs = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        self._given = [value.node.expr for value in self._inputs if isinstance(value, torch.SymInt)]
        self._env = next(value.node.shape_env for value in self._inputs if isinstance(value, torch.SymInt))

    @staticmethod
    def of(module: torch.fx.GraphModule) -> "Symbolic | None":
        """Read a graph; None where no size of it is a symbol."""
        values = (node.meta.get("val") for node in module.graph.find_nodes(op="placeholder"))
        return Symbolic(module) if any(isinstance(value, torch.SymInt) for value in values) else None

    def refused(self, sizes: Sequence[int]) -> str:
        """Say which guard other sizes break, in torch's words, or nothing.

        Args:
            sizes: see `sizes_in`.
        """
        values: dict[Any, int] = {}
        for symbol, size in zip(self._given, sizes, strict=True):
            if symbol.is_Symbol:
                if values.setdefault(symbol, size) != size:
                    return f"{symbol} is one size, and cannot be {values[symbol]} and {size}"
            elif symbol.is_Integer and int(symbol) != size:
                return f"a size that has to be {symbol} is {size}"
        for symbol, size in values.items():
            allowed = self._env.var_to_range.get(symbol)
            if allowed is not None and not allowed.lower <= size <= allowed.upper:
                return f"{symbol} is {size}, not from {allowed.lower} to {allowed.upper}"
        known: dict[Any, Any] = {}
        for guard in self._env.guards:
            expression = self._env.replace(guard.expr)
            if not _value(expression, values, known):
                return str(guard.expr)
        return ""

    def inputs(self, names: Sequence[str]) -> tuple[tuple[str, tuple[int | str, ...]], ...]:
        """The tensors that the caller hands over, in order, a symbol as the position of its number.

        Args:
            names: one per input, empty for what the caller does not hand over.
        """
        numbers = reversed(list(enumerate(self._given)))
        position = {symbol: str(number) for number, symbol in numbers if symbol.is_Symbol}

        def shown(size: Any) -> int | str:
            if not isinstance(size, torch.SymInt):
                return int(size)
            known = position.get(size.node.expr, str(size.node.expr))
            return int(known) if size.node.expr.is_Integer else known

        found = [
            (name, tuple(shown(size) for size in value.shape))
            for name, value in zip(names, self._inputs, strict=False)
            if name and isinstance(value, torch.Tensor)
        ]
        return tuple(sorted(found, key=lambda one: _place(one[0])))

    def at(self, sizes: Sequence[int]) -> torch.fx.GraphModule:
        """The same graph for other sizes, which break no guard; inputs that are sizes stay inputs.

        Raises:
            CaptureError: it holds a graph inside a graph, or an op refuses these shapes.
        """
        pairs = zip(self._given, sizes, strict=True)
        values, known = {symbol: size for symbol, size in pairs if symbol.is_Symbol}, dict[Any, Any]()
        try:
            return _read(self.module, lambda value: _number(value, values, known))
        except (
            RuntimeError,
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # as a view of what is laid out otherwise
            raise CaptureError(f"the graph cannot be read for the sizes {tuple(sizes)}: {error}") from error


def resized(given: Sequence[Any], module: torch.fx.GraphModule) -> list[Any]:
    """Inputs as a graph for other sizes takes them: None in place of a tensor of another size."""
    wanted = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [
        want
        if isinstance(want, int)
        else one
        if not isinstance(one, torch.Tensor) or one.shape == want.shape
        else None
        for one, want in zip(given, wanted, strict=False)
    ]


def placeholders_of(module: torch.fx.GraphModule, trained: Sequence[bool]) -> list[Any]:
    """Stand-ins for the first inputs of a graph; a gradient comes for those that are ``trained``."""
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [
        value.detach().requires_grad_(wanted) if isinstance(value, torch.Tensor) else value
        for value, wanted in zip(values, trained, strict=False)
    ]


def input_names(module: torch.fx.GraphModule) -> list[str]:
    """Name what the caller hands over, one per input of what Dynamo captured; empty for other inputs."""
    names = []
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        found = re.match(r"L\['(args|kwargs)'\](.*)", source.name if source is not None else "")
        name = ".".join(re.findall(r"\w+", found[2])) if found else ""
        names.append(f"input {name}" if found and found[1] == "args" else name)
    return names


def _place(name: str) -> tuple[int, int]:
    """Where an input stands in a call: positional ones first; the order of keywords is the graph's."""
    found = re.match(r"input (\d+)", name)
    return (0, int(found[1])) if found else (1, 0)


def _value(expression: Any, values: Mapping[Any, int], known: dict[Any, Any]) -> Any:
    """What an expression is with numbers for its symbols; ``known`` = those that were asked for before."""
    if expression not in known:
        known[expression] = expression.subs(values)
    return known[expression]


def _number(value: Any, values: Mapping[Any, int], known: dict[Any, Any]) -> Any:
    expression = _value(value.node.expr, values, known)
    if expression.free_symbols:
        raise CaptureError(f"a size depends on values: {value}.")
    kinds: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(value)](expression)


_OPEN: Final = 2**63 - 1
"""The end of a slice that has none."""
_SLICE: Final = (0, 0, _OPEN, 1)
"""Dimension, start, end and step of a slice, where a node does not say them."""
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _read(module: torch.fx.GraphModule, number: Callable[[Any], Any]) -> torch.fx.GraphModule:
    """Copy a graph with numbers for symbols, and every value as it then is."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    graph, copies, found = torch.fx.Graph(), dict[torch.fx.Node, Any](), dict[torch.fx.Node, Any]()
    memory: dict[int, torch.Tensor] = {}

    def read(tree: Any, known: Mapping[torch.fx.Node, Any]) -> Any:
        tree = torch.fx.node.map_arg(tree, lambda node: known[node])
        return tree_map_only(_SYMBOLS, number, tree)

    with mode:
        for node in module.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, _SYMBOLS) and node.op != "placeholder":
                copies[node] = found[node] = number(value)
                continue
            if node.op == "call_function" and value is None and not node.users:
                continue  # a check of sizes
            if node.op == "placeholder":
                made = number(value) if isinstance(value, _SYMBOLS) else _given(value, number, memory)
            elif node.op == "get_attr":
                made = _constant(module, str(node.target), mode)
            elif node.op == "output":
                made = None
            else:
                args, kwargs = read((node.args, node.kwargs), found)
                if _takes_all(node, args):
                    copies[node], found[node] = copies[node.args[0]], found[node.args[0]]
                    continue
                made = node.target(*args, **kwargs)
            copy = graph.node_copy(node, lambda one: copies[one])
            copy.args, copy.kwargs = (
                tree_map_only(_SYMBOLS, number, tree) for tree in (copy.args, copy.kwargs)
            )
            copies[node] = made if isinstance(value, _SYMBOLS) else copy
            copy.meta = {name: item for name, item in node.meta.items() if name != "tensor_meta"}
            if node.op != "output":
                copy.meta["val"] = found[node] = made
    return torch.fx.GraphModule(module, graph)


def _takes_all(node: torch.fx.Node, args: Sequence[Any]) -> bool:
    """Tell whether a node is ``x[:]`` along a dimension, or the gradient of that.

    Of known sizes, indexing leaves it out; of a symbol nobody knows that it ends before the largest number.
    A gradient is left as it is where that would have other strides.
    """
    if node.target is torch.ops.aten.slice.Tensor:
        part = args[1:]
    elif node.target is torch.ops.aten.slice_backward.default and args[0].is_contiguous():
        part = args[2:]
    else:
        return False
    bounds = (*part, *_SLICE[len(part) :])
    return bounds[1:] == (0, _OPEN, 1) and not any(user.op == "output" for user in node.users)


def _given(value: Any, number: Callable[[Any], Any], memory: dict[int, torch.Tensor]) -> Any:
    """An input for other sizes; inputs that share memory share it again, where it is known how."""
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = ([_plain(size, number) for size in sizes] for sizes in (value.shape, value.stride()))
    if None in (*shape, *strides):
        raise CaptureError(
            "an input is a view of a larger tensor, with strides that change from call to call. Pass a copy "
            "of its own, as .contiguous() makes it."
        )
    storage = value.untyped_storage()
    start, length = _plain(value.storage_offset(), number), _plain(storage.nbytes(), number)
    if start is None or length is None:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    whole = memory.get(storage._cdata)
    if whole is None:
        whole = memory[storage._cdata] = torch.empty(length, dtype=torch.uint8, device=value.device)
    view = torch.empty(0, dtype=value.dtype, device=value.device)
    return view.set_(whole.untyped_storage(), start, shape, strides)


def _plain(size: Any, number: Callable[[Any], Any]) -> Any:
    """A size as a number; None where it follows from no size of the call."""
    try:
        return number(size) if isinstance(size, torch.SymInt) else int(size)
    except CaptureError:
        return None


def _constant(module: torch.fx.GraphModule, name: str, mode: FakeTensorMode) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise CaptureError(
            f"the graph holds {type(value).__name__} {name!r}: it cannot be read for other sizes."
        )
    return value if isinstance(value, torch._subclasses.FakeTensor) else mode.from_tensor(value)
