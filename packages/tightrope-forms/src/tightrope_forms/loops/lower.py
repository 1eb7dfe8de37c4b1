"""From one iteration of a loop, forward and backward, to statements.

Idea        The iteration and its gradient are traced once. Formulas are put into those that read them, until
            an op is expensive or read twice. Products that read no state leave the loop, and run for many
            steps at once; sums over steps, such as gradients of weights, follow the loop.
Guarantee   An op without a formula is refused by name.
Gaps        Products of two things that change, and sums inside the loop, are refused.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx

from tightrope.core import CaptureError
from tightrope_forms.loops._torch import traced
from tightrope_forms.loops.body import LoopInputs, Spec, body_of, whole
from tightrope_forms.loops.find import Loop
from tightrope_forms.loops.ops import (
    CONSTANTS,
    EXPENSIVE,
    POINTWISE,
    PRODUCTS,
    SAME,
    SPLITS,
    VIEWS,
    ElementView,
    Lazy,
    LoweredWay,
    Nest,
    Product,
    aten,
    combined,
    looked,
    names_in,
    seen,
)
from tightrope_forms.loops.record import Ref

FxNode: TypeAlias = Any
"""Torch types arguments of nodes as a union of all that can be one."""
Whole = Callable[[Callable[[ElementView], Tensor]], Tensor]
"""Computes a tensor after the loop, given what reads a view of all steps."""


class LoweredLoop(NamedTuple):
    """Both directions, and what is done around them."""

    inputs: LoopInputs
    specs: list[Spec]  # of inputs: stepped, states, fixed
    forward: LoweredWay
    backward: LoweredWay | None
    outputs: list[ElementView]
    needed: list[str]  # arrays of the forward that the backward reads
    gradients: list[Whole | str | None]  # of inputs; a name is that of an array whose step 0 it is


def lower(loop: Loop, inputs: LoopInputs, specs: Sequence[Spec], wanted: Sequence[bool]) -> LoweredLoop:
    """Make statements of a loop.

    Args:
        loop: any.
        inputs: of an iteration.
        specs: of these.
        wanted: of which of them gradients are needed.

    Raises:
        CaptureError: an op has no formula, or stands where it cannot.
    """
    dtypes = {dtype for _, dtype in specs}
    if dtypes - {torch.float32} and dtypes - {torch.float64}:
        raise CaptureError(f"it computes with {', '.join(sorted(str(one)[6:] for one in dtypes))}")
    body, given = body_of(loop, inputs), [n for n, one in enumerate(wanted) if one]

    def joint(*args: Tensor) -> Any:
        own, grads = args[: len(specs)], args[len(specs) :]

        def some(*chosen: Tensor) -> tuple[Tensor, ...]:
            every = list(own)
            for n, one in zip(given, chosen, strict=True):
                every[n] = one
            return body(*every)

        if not given:
            return list(torch.func.vjp(body, *own)[0])  # without gradients too, so that nothing is in place
        made, back, *_ = torch.func.vjp(some, *(own[n] for n in given))
        return [*made, *back(tuple(grads))]

    alone = traced(lambda *args: list(body(*args)), list(specs)).find_nodes(op="output")[0].args[0]
    likes = [one.meta["val"] for one in alone]
    graph = traced(joint, [*specs, *((tuple(one.shape), one.dtype) for one in likes)])
    return _LoopLowering(loop, inputs, specs, graph, given).lowered()


class _LoopLowering:
    def __init__(
        self, loop: Loop, inputs: LoopInputs, specs: Sequence[Spec], graph: Any, given: list[int]
    ) -> None:
        self.loop, self.inputs, self.specs, self.graph, self.given = loop, inputs, list(specs), graph, given
        self.holders = [node for node in graph.nodes if node.op == "placeholder"]
        every = graph.find_nodes(op="output")[0].args[0]
        self.made, self.grads = every[: len(inputs.outputs)], every[len(inputs.outputs) :]
        self.level = self._levels()
        self.values: dict[FxNode, Any] = {}
        self.directions = [LoweredWay({}, set(), [], [], set()) for _ in range(2)]
        self.needed: list[str] = []
        self.home: dict[FxNode, ElementView] = {}
        self.crossing = {
            f"v_{node.name}" for node in graph.nodes
            if node.target in POINTWISE and self.level[node] < 3
            and names_in(POINTWISE[node.target](*range(len(node.args)))) & EXPENSIVE
            and self._crosses(node)
        }  # fmt: skip

    def _levels(self) -> dict[FxNode, int]:
        """0 = the same in all iterations, 1 = of the elements of a step, 2 = of states, 3 = of gradients."""
        num_stepped, num_states = len(self.inputs.stepped), len(self.inputs.states)
        found: dict[FxNode, int] = {}
        for number, node in enumerate(self.holders):
            found[node] = (
                1 if number < num_stepped else 2 if number < num_stepped + num_states
                else 0 if number < len(self.specs) else 3
            )  # fmt: skip
        for node in self.graph.nodes:
            if node.op == "call_function":
                found[node] = max((found[one] for one in node.all_input_nodes), default=0)
        return found

    def lowered(self) -> LoweredLoop:
        """Lower both directions."""
        num_stepped = len(self.inputs.stepped)
        forward, backward = self.directions
        for number, node in enumerate(self.holders[: len(self.specs)]):
            state = number - num_stepped
            kind = "x" if state < 0 else "s" if state < len(self.inputs.states) else "w"
            name = f"{kind}{number}"
            self._array(forward, name, self.specs[number][0], timed=kind != "w")
            forward.kept.add(name)
            self.values[node] = seen(ElementView(name, self._meta(self.specs[number][0])))
        for number, carried in enumerate(self.inputs.states):
            node, name = self.made[self.inputs.outputs.index(carried.value)], f"s{num_stepped + number}"
            if node.target in POINTWISE:
                self.home.setdefault(node, ElementView(name, self._meta(forward.arrays[name]), 1))
        outputs = [self._output(self.made[n], ref) for n, ref in enumerate(self.inputs.outputs)]
        gradients: list[Whole | str | None] = [None] * len(self.specs)
        if self.given:
            self._seed_gradients()
            for n, node in zip(self.given, self.grads, strict=True):
                if 0 <= n - num_stepped < len(self.inputs.states):
                    gradients[n] = self._state_gradient(n, node)
            for n, node in zip(self.given, self.grads, strict=True):
                if n < num_stepped:
                    gradients[n] = self._over(node)
                elif n >= num_stepped + len(self.inputs.states):
                    gradients[n] = self._total(node)
        return LoweredLoop(
            self.inputs, self.specs, forward, backward if self.given else None,
            outputs, self.needed, gradients,
        )  # fmt: skip

    def _meta(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape), device="meta")

    def _array(self, where: LoweredWay, name: str, shape: Sequence[int], *, timed: bool = True) -> None:
        where.arrays[name] = tuple(shape)
        if timed:
            where.timed.add(name)

    def _direction(self, node: FxNode) -> LoweredWay:
        return self.directions[self.level[node] == 3]

    def _output(self, node: FxNode, ref: Ref) -> ElementView:
        """Give an output an array over time; a state's is its own, one step later."""
        forward, value = self.directions[0], self.value(node)
        targets = [
            ElementView(f"s{len(self.inputs.stepped) + number}", self._meta(value.shape), 1)
            for number, state in enumerate(self.inputs.states) if state.value == ref
        ]  # fmt: skip
        for target in targets:
            if value.view is None or not value.view.same(target):
                self._nest(forward, target, value)
        view = targets[0] if targets else self.stored(node)
        if not targets:
            forward.kept.add(view.array)
        return view

    def _nest(self, where: LoweredWay, target: ElementView, value: Lazy) -> ElementView:
        self._note(where, *value.reads)
        where.work.append(Nest(target, value))
        return target

    def _seed_gradients(self) -> None:
        """Read the gradient of an output: what comes from outside, and from the step behind."""
        backward, num_stepped = self.directions[1], len(self.inputs.stepped)
        for number, ref in enumerate(self.inputs.outputs):
            node, parts = self.holders[len(self.specs) + number], list[Lazy]()
            shape = tuple(self.made[number].meta["val"].shape)
            for at, state in enumerate(self.inputs.states):
                if state.value == ref and num_stepped + at in self.given:
                    name = f"ds{num_stepped + at}"
                    self._array(backward, name, shape)
                    parts.append(seen(ElementView(name, self._meta(shape), 1)))
            if whole(self.loop, self.inputs, ref):
                self._array(backward, f"dy{number}", shape)
                backward.kept.add(f"dy{number}")
                parts.append(seen(ElementView(f"dy{number}", self._meta(shape))))
            value = Lazy(0.0, (), shape) if not parts else parts[0]
            for one in parts[1:]:
                value = combined(POINTWISE[aten.add.Tensor], (value, one), shape)
            self.values[node] = value

    def _state_gradient(self, number: int, node: FxNode) -> str:
        name = f"ds{number}"
        backward = self.directions[1]
        if name not in backward.arrays:
            self._array(backward, name, self.specs[number][0])
        self._nest(backward, ElementView(name, self._meta(self.specs[number][0])), self.value(node))
        return name

    def value(self, node: FxNode) -> Lazy:
        """Lower an op and all that it needs."""
        if node not in self.values:
            target = node.target
            if target in CONSTANTS:
                self.values[node] = Lazy(CONSTANTS[target], (), tuple(node.meta["val"].shape))
            elif target in VIEWS:
                self.values[node] = self._viewed(node, lambda one: target(one, *node.args[1:], **node.kwargs))
            elif target is operator.getitem and node.args[0].target in SPLITS:
                parts = node.args[0]
                self.values[node] = self._viewed(
                    node, lambda one: self._split(parts, one)[node.args[1]], source=parts.args[0]
                )
            elif target in SAME:
                self.values[node] = self._same(node)
            elif self._is_sum_of_slices(node) and (slices := self._slices(node)) is not None:
                self.values[node] = seen(slices)
            elif target in POINTWISE:
                self.values[node] = self._shared(node, self._pointwise(node))
            elif target in PRODUCTS:
                self.values[node] = seen(self._product(node))
            elif target is aten.cat.default:
                self.values[node] = seen(self._cat(node))
            else:
                raise CaptureError(
                    f"{node.args[0].target if target is operator.getitem else target} has no formula here"
                )
        found: Lazy = self.values[node]
        return found

    def _split(self, parts: FxNode, one: Tensor) -> Any:
        if parts.target is aten.split_with_sizes.default:
            return torch.split(one, *parts.args[1:])
        if parts.target is aten.unbind.int:
            return torch.unbind(one, *parts.args[1:])
        return torch.split(one, *parts.args[1:])

    def _viewed(self, node: FxNode, change: Callable[[Tensor], Tensor], source: Any = None) -> Lazy:
        source = node.args[0] if source is None else source
        found = looked(self.value(source), change)
        if found is None:
            found = looked(seen(self.stored(source)), change)
        if found is None:
            raise CaptureError(f"{node.target} needs a copy here")
        return found

    def _same(self, node: FxNode) -> Lazy:
        """Copy what is a part of a larger array, so that the rest need not be kept; leave all else."""
        value = self.value(node.args[0])
        view, where = value.view, self._direction(node)
        if view is None or view.array not in where.arrays or view.array[0] in "xws":
            return value
        if view.meta.numel() == torch.Size(where.arrays[view.array]).numel():
            return value
        return seen(self._store(node, value))

    def _pointwise(self, node: FxNode) -> Lazy:
        shape = tuple(node.meta["val"].shape)
        operands = [self.value(one) if isinstance(one, fx.Node) else one for one in node.args]
        return combined(POINTWISE[node.target], operands, shape, **node.kwargs)

    def _shared(self, node: FxNode, value: Lazy) -> Lazy:
        """Store what is expensive, or read twice; the rest is computed where it is read."""
        users = [one for one in node.users if one.op != "output"]
        across = self.level[node] < 3 and self._crosses(node)
        costly = bool(names_in(value.formula) & EXPENSIVE)
        if (
            across
            and not costly
            and all(one.array[0] in "sxw" or one.array in self.crossing for one in value.reads)
        ):
            return value  # the backward computes it again
        if (
            across
            and node not in self.home
            and value.reads
            and all(one.array[0] == "s" for one in value.reads)
        ):
            return value  # such as tanh of the cell of an LSTM, whose states are kept anyway
        if costly or len(users) > 1 or node in self.home:
            return seen(self._store(node, value))
        return value

    def _crosses(self, node: FxNode) -> bool:
        """Tell whether the backward reads a value."""
        return any(
            self.level.get(one) == 3 or (one.target in VIEWS | SAME and self._crosses(one))
            for one in node.users
        )

    def _store(self, node: FxNode, value: Lazy) -> ElementView:
        where, name = self._direction(node), f"v_{node.name}"
        if node in self.home:
            return self._nest(where, self.home[node], value)
        self._array(where, name, value.shape)
        return self._nest(where, ElementView(name, self._meta(value.shape)), value)

    def _copy(self, node: FxNode, view: ElementView) -> ElementView:
        """Lay rows of a factor out one behind the other."""
        where, name, shape = self._direction(node), f"v_{node.name}_rows", tuple(view.meta.shape)
        self._array(where, name, shape)
        return self._nest(where, ElementView(name, self._meta(shape)), seen(view))

    def stored(self, node: FxNode) -> ElementView:
        """Lower an op to elements of an array."""
        value = self.value(node)
        if value.view is None:
            value = self.values[node] = seen(self._store(node, value))
        assert value.view is not None
        return value.view

    def _note(self, where: LoweredWay, *reads: ElementView) -> None:
        """Let the backward read arrays of the forward."""
        forward, backward = self.directions
        for one in reads:
            if where is backward and one.array not in backward.arrays:
                self._array(backward, one.array, forward.arrays[one.array], timed=one.array in forward.timed)
                backward.kept.add(one.array)
                forward.kept.add(one.array)
                if one.array not in self.needed:
                    self.needed.append(one.array)

    def _product(self, node: FxNode) -> ElementView:
        bias_at, left_at, right_at = PRODUCTS[node.target]
        if node.kwargs:
            raise CaptureError(f"{node.target} with factors has no formula here")
        left_node, right_node = node.args[left_at], node.args[right_at]
        if self.level[left_node] == 0 and bias_at is None and self.level[right_node] > 0:
            return self._transposed(node, left_node, right_node)
        if self.level[right_node] > 0:
            raise CaptureError("a product of two values that change in the loop has no kernel here")
        left, right = self.stored(left_node), self.stored(right_node)
        if left.meta.stride(1) != 1 and left.meta.shape[1] > 1:
            left = self._copy(node, left)
        bias = None if bias_at is None else self.value(node.args[bias_at]).view
        if bias_at is not None and (bias is None or self.level[node.args[bias_at]] > 0):
            raise CaptureError("a product with a bias that changes has no kernel here")
        return self._multiplied(
            node, bias, left, right, free=self.level[left_node] == 1 and left.array[0] == "x"
        )

    def _multiplied(
        self, node: FxNode, bias: ElementView | None, left: ElementView, right: ElementView, *, free: bool
    ) -> ElementView:
        shape, where, name = (
            (left.meta.shape[0], right.meta.shape[1]),
            self._direction(node),
            f"p_{node.name}",
        )
        self._array(where, name, shape)
        self._note(where, left, right)
        bias = None if bias is None else bias._replace(meta=bias.meta.expand(shape))
        made = Product(ElementView(name, self._meta(shape)), bias, left, right)
        (where.before if free else where.work).append(made)
        return made.target

    def _transposed(self, node: FxNode, left_node: FxNode, right_node: FxNode) -> ElementView:
        """Multiply from the left: the transpose is a product with weights on the right."""
        left, right = (
            one._replace(meta=one.meta.t()) for one in (self.stored(right_node), self.stored(left_node))
        )
        if left.meta.stride(1) != 1 and left.meta.shape[1] > 1:
            left = self._copy(node, left)
        made = self._multiplied(node, None, left, right, free=False)
        return made._replace(meta=made.meta.t())

    def _cat(self, node: FxNode) -> ElementView:
        """Write parts side by side."""
        axis, pieces, start = (node.args[1] if len(node.args) > 1 else 0), list[tuple[int, Lazy]](), 0
        for value in map(self.value, node.args[0]):
            pieces.append((start, value))
            start += value.shape[axis]
        return self._side_by_side(node, axis, pieces)

    def _is_sum_of_slices(self, node: FxNode) -> bool:
        if node.target is aten.add.Tensor:
            return all(isinstance(one, fx.Node) and self._is_sum_of_slices(one) for one in node.args)
        return node.target is aten.slice_backward.default

    def _slices(self, node: FxNode) -> ElementView | None:
        """Write gradients of slices of one value side by side; None where the op is no sum of these."""
        every, axes, pieces = [node], set(), list[tuple[int, Lazy]]()
        while every:
            one = every.pop()
            if one.target is aten.slice_backward.default and one.args[5] == 1:
                axes.add(one.args[2])
                pieces.append((one.args[3], self.value(one.args[0])))
            elif one.target is aten.add.Tensor and not one.kwargs and one not in self.values:
                every += [operand for operand in one.args if isinstance(operand, fx.Node)]
            else:
                return None
        if len(axes) != 1:
            raise CaptureError("gradients of slices along two axes have no formula here")
        return self._side_by_side(node, axes.pop(), sorted(pieces, key=lambda piece: piece[0]))

    def _side_by_side(self, node: FxNode, axis: int, pieces: Sequence[tuple[int, Lazy]]) -> ElementView:
        where, name, shape = self._direction(node), f"c_{node.name}", tuple(node.meta["val"].shape)
        whole, end = self._meta(shape), 0
        self._array(where, name, shape)

        def blank(until: int) -> None:
            if until > end:
                target = whole.narrow(axis, end, until - end)
                self._nest(where, ElementView(name, target), Lazy(0.0, (), tuple(target.shape)))

        for start, value in pieces:
            if start < end:
                raise CaptureError("gradients of slices that overlap have no formula here")
            blank(start)
            end = start + value.shape[axis]
            self._nest(where, ElementView(name, whole.narrow(axis, start, value.shape[axis])), value)
        blank(shape[axis])
        return ElementView(name, whole)

    def _over(self, node: FxNode) -> Whole:
        """Compute a gradient of every step after the loop, where it is a product; else inside."""
        if node.target in VIEWS and node not in self.values and node.args[0].target in PRODUCTS:
            inner, target, rest = self._over(node.args[0]), node.target, node.args[1:]
            return lambda read: torch.vmap(lambda one: target(one, *rest))(inner(read))
        if node not in self.values and node.target is aten.mm.default and self.level[node.args[1]] == 0:
            left, right = self._kept(node.args[0]), self._kept(node.args[1])
            return lambda read: torch.matmul(read(left), read(right))
        view = self._kept(node)
        return lambda read: read(view)

    def _total(self, node: FxNode) -> Whole:
        """Add a gradient over all steps, after the loop."""
        target, args = node.target, node.args
        if node in self.values or node.op == "placeholder":
            inner = self._over(node)
            return lambda read: inner(read).sum(0)
        if target in VIEWS and target is not aten.expand.default:
            inner = self._total(args[0])
            return lambda read: target(inner(read), *args[1:], **node.kwargs)
        if target is aten.add.Tensor and not node.kwargs and all(isinstance(one, fx.Node) for one in args):
            one, two = self._total(args[0]), self._total(args[1])
            return lambda read: one(read) + two(read)
        if target is aten.mm.default and self.level[args[1]] > 0 and self.level[args[0]] > 0:
            left, right = self._kept(args[0]), self._kept(args[1])
            return lambda read: _summed(read(left), read(right))
        if target is aten.sum.dim_IntList and self.level[args[0]] > 0:
            view, axes, keep = self._kept(args[0]), args[1], len(args) > 2 and bool(args[2])
            rank = len(view.meta.shape)
            where = [0, *(axis % rank + 1 for axis in axes)]
            return lambda read: _axes_summed(read(view), where, keep)
        inner = self._over(node)
        return lambda read: inner(read).sum(0)

    def _kept(self, node: FxNode) -> ElementView:
        """Store a value so that it is there after the loop."""
        view = self.stored(node)
        self._note(self.directions[1], view)
        for one in self.directions:
            if view.array in one.arrays:
                one.kept.add(view.array)
        return view


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """Add products over all steps as one product."""
    steps, rows, inner = left.shape
    return left.permute(1, 0, 2).reshape(rows, steps * inner) @ right.reshape(steps * inner, -1)


def _axes_summed(whole: Tensor, axes: list[int], keep: bool) -> Tensor:
    found = whole.sum(axes, keepdim=keep)
    return found.squeeze(0) if keep else found
