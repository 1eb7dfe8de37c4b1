"""Split the loss over a large vocabulary, or a stretch like it, over its rows.

Idea        The widest product with rows (hidden states times a vocabulary) begins a stretch of ops that work
            row by row: the loss, its backward, and the products that give narrow gradients. The stretch is
            written once per chunk of rows, forward and backward of a chunk before the next one. Rows that
            leave it are put together again; sums over rows are added up, chunk after chunk.
Source      Liger kernel and cut cross-entropy, here as a rewrite of the captured graph.
Guarantee   What leaves the stretch row by row is computed by the same kernels from the same rows, and a
            loss by `nll_loss` is reduced over all rows as it was. Sums over rows are added in another
            order. The rest of the graph is copied. Tests compare both on values.
Complexity  Linear in nodes, times chunks for those of the stretch.
Gaps        Graphs of one part. One stretch; none whose rows are first cut or moved, and none where the
            backward needs the value of the loss. A loss with a weight per class stays as it is.

    one:    [ logits 2048 x V ][ log softmax ][ gradient of logits ] -> gradients
    chunks: [ 256 x V ][ .. ][ .. ] -> rows, +=   [ 256 x V ][ .. ][ .. ] -> rows, +=   ...
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Final, cast

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.attribution import source_line, target_name
from tightrope.capture.program import Program
from tightrope.capture.rows import TRANSPOSED, NumRows, Recipe, RowPart, Rows, RowSlice
from tightrope.capture.typed import tensor_of
from tightrope.capture.variants import members
from tightrope.core import Bytes

_aten = torch.ops.aten
_LEAST_ROWS: Final = 32
"""Rows per chunk below which kernels are slow and little is saved."""
_MOST: Final = 64
_FINEST: Final = (4, 256)
"""Rows per chunk, and chunks, up to which finer ones are worth a try where little is missing."""
_WIDE_AT_ONCE: Final = 2
"""Values as wide as the widest one that a stretch may hold at a time."""
_LEAST_BYTES: Final = 1 << 20
"""Bytes of the widest result below which nothing is worth a split."""
_IGNORED: Final = -100


@dataclasses.dataclass(frozen=True)
class RowStretch:
    """Ops that may run on some of the rows at a time.

    Attributes:
        num_rows: in all.
        recipes: how each of its nodes runs on some of them, in order.
        before: nodes in between that it reads.
        wide: bytes of its widest value.
    """

    num_rows: int
    recipes: dict[torch.fx.Node, Recipe]
    before: frozenset[torch.fx.Node]
    wide: Bytes


def counts(program: Program) -> tuple[int, ...]:
    """List numbers of chunks that are worth a try, fewest first; none where nothing can be split."""
    found = _stretch(_with_plain_losses(program.module.graph)) if len(program.graph.parts) == 1 else ""
    return () if isinstance(found, str) else _powers(found.num_rows, _LEAST_ROWS, _MOST)


def finer_counts(program: Program, missing: Bytes) -> tuple[int, ...]:
    """List numbers of chunks beyond `counts` that may save so many bytes more than its last one."""
    found = _stretch(_with_plain_losses(program.module.graph))
    if isinstance(found, str):
        return ()
    usual = _powers(found.num_rows, _LEAST_ROWS, _MOST)
    more = _powers(found.num_rows, *_FINEST)[len(usual) :]
    saved = _WIDE_AT_ONCE * found.wide // (usual[-1] if usual else 1)
    return more if missing <= saved else ()


def _powers(num_rows: int, least: int, most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(1, min(num_rows // least, most).bit_length()))


def why_whole(program: Program) -> str:
    """Name the op that keeps a loss of many classes, or a stretch like it, from a split; else nothing."""
    found = _stretch(_with_plain_losses(program.module.graph))
    return found if isinstance(found, str) else ""


def chunked(program: Program, num: int) -> Program | None:
    """Split the widest stretch of a program into chunks of rows.

    Args:
        program: of one part.
        num: of chunks.

    Returns:
        A program with the same inputs and outputs; None where nothing can be split into so many.
    """
    graph = _with_plain_losses(program.module.graph)
    stretch = _stretch(graph) if len(program.graph.parts) == 1 else ""
    if isinstance(stretch, str) or num < 2 or stretch.num_rows < num or program.rebuild is None:
        return None
    writer = _ChunkWriter(graph, stretch, num)
    module = torch.fx.GraphModule(program.module, writer.written())
    if not writer.alike:
        return None
    again = program.rebuild(module)
    return dataclasses.replace(
        program, graph=again.graph, module=module, constants=again.constants, keys=again.keys,
        rebuild=again.rebuild,
    )  # fmt: skip


def _bytes(node: torch.fx.Node) -> Bytes:
    value = tensor_of(node)
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _stretch(graph: torch.fx.Graph) -> RowStretch | str:
    """Find the stretch that begins with the widest product whose results stay inside, or say why none does.

    Nothing is said where no product is wide.
    """
    products = [node for node in graph.nodes if node.target in (_aten.mm.default, _aten.addmm.default)]
    why = ""
    for seed in sorted(products, key=_bytes, reverse=True):
        if _bytes(seed) < _LEAST_BYTES:
            break
        found = _grown(list(graph.nodes), seed)
        if isinstance(found, RowStretch):
            return found
        why = why or found
    return why


def _grown(nodes: list[torch.fx.Node], seed: torch.fx.Node) -> RowStretch | str:
    """The stretch that begins with a product, if all that leaves it is narrow; else what is in its way."""
    rows, recipes, wide = Rows(tensor_of(seed).shape[0]), _begin(seed), _bytes(seed)
    rows.lead[seed] = 1
    after: set[torch.fx.Node] = set()
    rest = nodes[nodes.index(seed) + 1 :]
    for node in rest:
        inputs = set(node.all_input_nodes)
        if inputs & after:
            after.add(node)
        elif inputs & rows.lead.keys():
            recipe = rows.recipe(node) if node.op == "call_function" else None
            if recipe is None or not recipe.lead:
                after.add(node)
            if recipe is not None:
                recipes[node] = recipe
                rows.lead |= {node: recipe.lead} if recipe.lead else {}
    inside = _narrowed(recipes, wide)
    for node in filter(inside.__contains__, recipes):
        reader = next((user for user in node.users if user not in inside), None)
        lead = recipes[node].lead
        if reader is not None and lead and (2 * _bytes(node) >= wide or lead == TRANSPOSED):
            return f"{_described(reader)} reads {_described(node)} and cannot work on some of its rows alone"
    last = max(at for at, node in enumerate(nodes) if node in inside)
    between = nodes[nodes.index(seed) : last]
    before = _needed({source for node in inside for source in node.all_input_nodes}, inside, set(between))
    for node in between:
        if _has_effect(node):
            return f"{_described(node)} changes something, or draws random numbers, in between"
    if not _shrinks(inside, wide):
        return f"nothing narrow is made of {_described(seed)}"
    return RowStretch(rows.num, {node: recipes[node] for node in nodes if node in inside}, before, wide)


def _described(node: torch.fx.Node) -> str:
    line = source_line(node)
    return f"{target_name(node.target)} ({line})" if line else target_name(node.target)


def _begin(seed: torch.fx.Node) -> dict[torch.fx.Node, Recipe]:
    at, args, target = int(seed.target is _aten.addmm.default), list[Any](seed.args), seed.target
    args[at] = RowSlice(args[at], 1)
    return {seed: Recipe(cast(Callable[..., Any], target), tuple(args), seed.kwargs, 1)}


def _narrowed(recipes: dict[torch.fx.Node, Recipe], wide: Bytes) -> set[torch.fx.Node]:
    """Leave out what neither is wide, nor reads anything wide, nor leads to something that does."""

    def is_wide(node: torch.fx.Node) -> bool:
        return bool(node in recipes and recipes[node].lead and 2 * _bytes(node) >= wide)

    inside: set[torch.fx.Node] = set()
    for node in reversed(recipes):
        needed = any(user in inside for user in node.users)
        if needed or is_wide(node) or any(map(is_wide, node.all_input_nodes)):
            inside.add(node)
    return inside


def _shrinks(inside: set[torch.fx.Node], wide: Bytes) -> bool:
    """Tell whether something wide is made into something narrow: it is not worth a split otherwise."""
    return any(2 * _bytes(node) < wide for node in inside)


def _needed(
    nodes: set[torch.fx.Node], inside: set[torch.fx.Node], between: set[torch.fx.Node]
) -> frozenset[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    waiting = [node for node in nodes if node not in inside]
    while waiting:
        node = waiting.pop()
        if node in between and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return frozenset(found)


def _has_effect(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return _torch.is_random(node.target) or bool(schema is not None and schema.is_mutable)


class _Copies:
    """A graph under construction, and what became of the nodes of another."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.of: dict[torch.fx.Node, torch.fx.Node] = {}

    def copy(self, node: torch.fx.Node) -> None:
        """Copy a node; a view looks into what its source has become."""
        made = self.of[node] = self.graph.node_copy(node, self.of.__getitem__)
        moved = [
            source for source in node.all_input_nodes if tensor_of(self.of[source]) is not tensor_of(source)
        ]
        if node.op == "call_function" and _keys(node) & {key for source in moved for key in _keys(source)}:
            made.meta["val"] = _value(cast(Callable[..., Any], node.target), made.args, made.kwargs)

    def call(
        self, like: torch.fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.fx.Node:
        """Write a call where ``like`` stood, and say what it gives."""
        made = self.graph.create_node("call_function", target, args, kwargs, name=like.name)
        made.meta = like.meta | {"val": _value(target, args, kwargs)}
        return made


def _value(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = torch.fx.map_arg((args, kwargs), tensor_of)
    with torch.no_grad():
        return target(*given[0], **given[1])


def _keys(node: torch.fx.Node) -> set[int]:
    value = tensor_of(node)
    tensors = value if isinstance(value, tuple | list) else [value]
    return {_torch.storage_key(one) for one in tensors if isinstance(one, torch.Tensor)}


def _with_plain_losses(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Let every `nll_loss` without weights pick its elements first, and reduce those alone.

    The element of each row, and which rows count, are all that it reads: its bits stay what they were.
    """
    copies = _Copies()
    for node in graph.nodes:
        if _is_plain_loss(node):
            _write_plain_loss(copies, node)
        elif node not in copies.of:
            copies.copy(node)
    return copies.graph


def _is_plain_loss(node: torch.fx.Node) -> bool:
    if node.target is not _aten.nll_loss_forward.default or len(members(node)) != len(node.users):
        return False
    source, target, weight, reduction, _ = cast(tuple[Any, ...], node.args)
    flat: bool = tensor_of(source).dim() == 2 and tensor_of(target).dim() == 1
    return flat and weight is None and reduction != 0


def _write_plain_loss(copies: _Copies, node: torch.fx.Node) -> None:
    source, target, _, reduction, ignored = (copies.of.get(cast(Any, arg), arg) for arg in node.args)
    dtype, num_rows = tensor_of(cast(Any, source)).dtype, tensor_of(cast(Any, source)).shape[0]
    skipped = copies.call(node, _aten.eq.Scalar, target, ignored)
    kept = copies.call(node, _aten.mul.Scalar, skipped, _IGNORED)

    def reduced(picked: torch.fx.Node, position: int) -> torch.fx.Node:
        pair = copies.call(node, _aten.nll_loss_forward.default, picked, kept, None, reduction, _IGNORED)
        return copies.call(node, operator.getitem, pair, position)

    blank = copies.call(node, _aten.new_zeros.default, target, [num_rows, 1], dtype=dtype)
    index = copies.call(node, _aten.masked_fill.Scalar, target, skipped, 0)
    column = copies.call(node, _aten.unsqueeze.default, index, 1)
    picked = copies.call(node, _aten.gather.default, source, 1, column)
    copies.of |= {
        member: reduced(blank if position else picked, position) for position, member in members(node).items()
    }


class _ChunkWriter:
    """The new graph while it is written; lives for one call of `chunked`."""

    def __init__(self, graph: torch.fx.Graph, stretch: RowStretch, num: int) -> None:
        self.nodes, self.stretch = list(graph.nodes), stretch
        size = -(-stretch.num_rows // num)
        self.bounds = [(at, min(at + size, stretch.num_rows)) for at in range(0, stretch.num_rows, size)]
        self.copies = _Copies()
        self.alike = True

    def written(self) -> torch.fx.Graph:
        """Write the stretch in chunks where it began, and everything else as it is."""
        recipes, before = self.stretch.recipes, self.stretch.before
        seed = next(iter(recipes))
        for node in self.nodes:
            if node is seed:
                for needed in self.nodes:
                    if needed in before:
                        self.copies.copy(needed)
                self._write_stretch()
            elif node not in recipes and node not in before:
                self.copies.copy(node)
        return self.copies.graph

    def _write_stretch(self) -> None:
        recipes = self.stretch.recipes
        parts: dict[torch.fx.Node, list[torch.fx.Node]] = {node: [] for node in recipes}
        for start, end in self.bounds:
            for node, recipe in recipes.items():
                args = [self._argument(arg, parts, start, end) for arg in recipe.args]
                if recipe.lead or not parts[node]:
                    parts[node].append(self.copies.call(node, recipe.target, *args, **recipe.kwargs))
                else:
                    self._add(node, recipe, parts[node][0], args)
        for node, recipe in recipes.items():
            if not recipe.lead or any(user not in recipes for user in node.users):
                self.copies.of[node] = self._joined(node, parts[node])

    def _argument(
        self, arg: Any, parts: dict[torch.fx.Node, list[torch.fx.Node]], start: int, end: int
    ) -> Any:
        match arg:
            case RowPart(node):
                return parts[node][-1]
            case RowSlice(node, lead):
                return self._slice(node, lead, start, end)
            case NumRows():
                return end - start
            case torch.fx.Node():
                return self.copies.of[arg]
            case list():
                return [self._argument(item, parts, start, end) for item in arg]
        return arg

    def _slice(self, node: torch.fx.Node, lead: int, start: int, end: int) -> torch.fx.Node:
        source = self.copies.of[node]
        if lead > 1:
            shape = [self.stretch.num_rows, *tensor_of(node).shape[lead:]]
            source = self.copies.call(node, _aten.view.default, source, shape)
        return self.copies.call(node, _aten.slice.Tensor, source, int(lead == TRANSPOSED), start, end)

    def _add(self, node: torch.fx.Node, recipe: Recipe, total: torch.fx.Node, args: list[Any]) -> None:
        """Add what a chunk adds to a sum, in place."""
        if recipe.target is _aten.mm.default:
            self.copies.call(node, _aten.addmm_.default, total, *args)
        else:
            more = self.copies.call(node, recipe.target, *args, **recipe.kwargs)
            self.copies.call(node, _aten.add_.Tensor, total, more)

    def _joined(self, node: torch.fx.Node, parts: list[torch.fx.Node]) -> torch.fx.Node:
        value = tensor_of(node)
        found = self.copies.call(node, _aten.cat.default, parts) if len(parts) > 1 else parts[0]
        if tensor_of(found).shape != value.shape:
            found = self.copies.call(node, _aten.view.default, found, list(value.shape))
        self.alike = self.alike and tensor_of(found).stride() == value.stride()
        return found
