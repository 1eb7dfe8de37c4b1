"""From one iteration of a loop, forward and backward, to statements.

Idea        The iteration and its gradient are traced once. Formulas are put into those that read them, until
            an op is expensive or read twice. Products that read no state leave the loop, and run for many
            steps at once; sums over steps, such as gradients of weights, follow the loop.
Guarantee   An op without a formula is refused by name.
Gaps        Products of two things that change, and sums inside the loop, are refused.
"""

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx

from tightrope.core import CaptureError
from tightrope_forms.loops import ops
from tightrope_forms.loops._torch import traced
from tightrope_forms.loops.find import KINDS, Carried, Fixed, Loop, Stepped, outside_of
from tightrope_forms.loops.ops import ElementView, Lazy, LoweredWay, Nest, Product, combined, looked, seen
from tightrope_forms.loops.record import CallRecording, Ref, facts_of

Spec: TypeAlias = tuple[tuple[int, ...], torch.dtype]
FxNode: TypeAlias = Any
"""Torch types arguments of nodes as a union of all that can be one."""
Whole = Callable[[Callable[[ElementView], Tensor]], Tensor]
"""Computes a tensor after the loop, given what reads a view of all steps."""


class LoweredLoop(NamedTuple):
    """Both directions, and what is done around them."""

    specs: list[Spec]  # of inputs: stepped, states, fixed
    forward: LoweredWay
    backward: LoweredWay | None
    outputs: list[ElementView]
    needed: list[str]  # arrays of the forward that the backward reads
    gradients: list[Whole | str | None]  # of inputs; a name is that of an array whose step 0 it is


def specs_of(loop: Loop, recording: CallRecording, given: Callable[[Ref], Tensor]) -> list[Spec]:
    """Say shape and dtype of all inputs of one iteration."""
    found = []
    for one, ref in ((one, outside_of(one)[0]) for one in loop.inputs.values()):
        facts = facts_of(given(ref)) if ref.call < 0 else recording.calls[ref.call].shapes[ref.item]
        shape = list(facts[0])
        if isinstance(one, Stepped) and one.source is not None:
            del shape[one.axis]
        found.append((tuple(shape), facts[1]))
    return found


def body_of(loop: Loop) -> Callable[..., tuple[Tensor, ...]]:
    """Write one iteration as a function of its inputs."""

    def body(*given: Tensor) -> tuple[Tensor, ...]:
        of = dict(zip(loop.inputs.values(), given, strict=True))
        values: dict[Ref, Tensor] = {}

        def value(one: Ref | Stepped | Carried | Fixed) -> Tensor:
            return values[one] if isinstance(one, Ref) else of[one]

        for at, call in enumerate(loop.body):
            taken = call.function is operator.pos  # read, and not computed
            made = list(map(value, call.leaves)) if taken else call.run(value, (Ref, *KINDS))
            values |= {Ref(at, item): one for item, one in enumerate(made)}
        return tuple(values[one] for one in loop.outputs)

    return body


def lower(loop: Loop, specs: Sequence[Spec], wanted: Sequence[bool]) -> LoweredLoop:
    """Make statements of a loop; arguments are those of `LoopKernels`.

    Raises:
        CaptureError: an op has no formula, or stands where it cannot.
    """
    dtypes = {dtype for _, dtype in specs}
    if dtypes - {torch.float32} and dtypes - {torch.float64}:
        raise CaptureError(f"it computes with {', '.join(sorted(str(one)[6:] for one in dtypes))}")
    body, given = body_of(loop), [n for n, one in enumerate(wanted) if one]

    def joint(*args: Tensor) -> Any:
        own, grads = args[: len(specs)], args[len(specs) :]

        def some(*chosen: Tensor) -> tuple[Tensor, ...]:
            places = dict(zip(given, chosen, strict=True))
            return body(*(places.get(n, one) for n, one in enumerate(own)))

        if not given:
            return list(torch.func.vjp(body, *own)[0])  # without gradients too, so that nothing is in place
        made, back, *_ = torch.func.vjp(some, *(own[n] for n in given))
        return [*made, *back(tuple(grads))]

    alone = traced(lambda *args: list(body(*args)), specs).find_nodes(op="output")[0].args[0]
    likes = [one.meta["val"] for one in alone]
    graph = traced(joint, [*specs, *((tuple(one.shape), one.dtype) for one in likes)])
    return _LoopLowering(loop, specs, graph, given).lowered()


class _LoopLowering:
    def __init__(self, loop: Loop, specs: Sequence[Spec], graph: Any, given: list[int]):
        self.loop, self.specs, self.given = loop, list(specs), given
        self.holders = [node for node in graph.nodes if node.op == "placeholder"]
        every = graph.find_nodes(op="output")[0].args[0]
        self.made, self.grads = every[: len(loop.outputs)], every[len(loop.outputs) :]
        levels = ["wxs".index(name[0]) for name in loop.inputs]
        levels += [3] * (len(self.holders) - len(levels))
        self.level: dict[FxNode, int] = dict(zip(self.holders, levels, strict=True))
        """0 = the same in all iterations, 1 = of the elements of a step, 2 = of states, 3 = of gradients."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.level[node] = max((self.level[one] for one in node.all_input_nodes), default=0)
        self.values: dict[FxNode, Lazy] = {}
        self.directions = [LoweredWay({}, set(), [], [], set()) for _ in range(2)]
        self.needed: list[str] = []
        self.home: dict[FxNode, ElementView] = {}
        self.states: dict[Ref, list[ElementView]] = {}  # where a value is a state of the next step
        inner = [node for node in graph.nodes if node.target in ops.POINTWISE and self.level[node] < 3]
        costly = (n for n in inner if ops.expensive(ops.POINTWISE[n.target](*range(len(n.args)))))
        self.crossing = {f"v_{node.name}" for node in costly if self._crosses(node)}

    def lowered(self) -> LoweredLoop:
        """Lower both directions."""
        forward, backward = self.directions
        names = list(self.loop.inputs)
        for name, holder, (shape, _) in zip(names, self.holders, self.specs, strict=False):
            view = forward.array(name, shape, timed=name[0] != "w")
            forward.kept.add(name)
            self.values[holder] = seen(view)
            if name in self.loop.states:
                value = self.loop.states[name].value
                node = self.made[self.loop.outputs.index(value)]
                self.states.setdefault(value, []).append(view._replace(step=1))
                if node.target in ops.POINTWISE:
                    self.home.setdefault(node, view._replace(step=1))
        outputs = [self._output(self.made[n], ref) for n, ref in enumerate(self.loop.outputs)]
        gradients: list[Whole | str | None] = [None] * len(self.specs)
        if self.given:
            self._seed_gradients()
            pairs = zip(self.given, self.grads, strict=True)
            for n, node in sorted(pairs, key=lambda pair: names[pair[0]][0] != "s"):  # states come first
                if (name := names[n])[0] == "s":
                    self._nest(backward, backward.array(f"d{name}", self.specs[n][0]), self.value(node))
                    gradients[n] = f"d{name}"
                else:
                    gradients[n] = self._over(node) if name[0] == "x" else self._total(node)
        way = backward if self.given else None
        return LoweredLoop(self.specs, forward, way, outputs, self.needed, gradients)

    def _direction(self, node: FxNode) -> LoweredWay:
        return self.directions[self.level[node] == 3]

    def _output(self, node: FxNode, ref: Ref) -> ElementView:
        """Give an output an array over time; a state's is its own, one step later."""
        forward, value, targets = self.directions[0], self.value(node), self.states.get(ref, [])
        for target in targets:
            if value.view is None or not value.view.same(target):
                self._nest(forward, target, value)
        view = targets[0] if targets else self.stored(node)
        forward.kept.add(view.array)  # a state is there already
        return view

    def _nest(self, where: LoweredWay, target: ElementView, value: Lazy) -> ElementView:
        self._note(where, *value.reads)
        where.work.append(Nest(target, value))
        return target

    def _seed_gradients(self) -> None:
        """Read the gradient of an output: what comes from outside, and from the step behind."""
        backward = self.directions[1]
        for number, ref in enumerate(self.loop.outputs):
            shape = tuple(self.made[number].meta["val"].shape)
            names = [f"d{one.array}" for one in self.states.get(ref, ()) if int(one.array[1:]) in self.given]
            parts = [seen(backward.array(name, shape)._replace(step=1)) for name in names]
            if ref in self.loop.whole:
                backward.kept.add(f"dy{number}")
                parts.append(seen(backward.array(f"dy{number}", shape)))
            add, first = ops.POINTWISE[ops.aten.add.Tensor], parts[0] if parts else Lazy(0.0, (), shape)
            value = reduce(lambda one, two: combined(add, (one, two), two.shape), parts[1:], first)
            self.values[self.holders[len(self.specs) + number]] = value

    def value(self, node: FxNode) -> Lazy:
        """Lower an op and all that it needs."""
        found = self.values[node] = self.values.get(node) or self._lowered(node)
        return found

    def _lowered(self, node: FxNode) -> Lazy:
        target, args = node.target, node.args
        if target in ops.CONSTANTS:
            return Lazy(ops.CONSTANTS[target], (), tuple(node.meta["val"].shape))
        if target in ops.VIEWS:
            return self._viewed(node, args[0], lambda one: target(one, *args[1:], **node.kwargs))
        if target is operator.getitem and args[0].target in ops.SPLITS:
            (source, *how), split = args[0].args, ops.SPLITS[args[0].target]
            return self._viewed(node, source, lambda one: split(one, *how)[args[1]])
        if target in ops.SAME:
            return self._same(node)
        if (slices := self._slices(node)) is not None:
            return seen(slices)
        if target in ops.POINTWISE:
            operands = [self.value(one) if isinstance(one, fx.Node) else one for one in args]
            shape = tuple(node.meta["val"].shape)
            return self._shared(node, combined(ops.POINTWISE[target], operands, shape, **node.kwargs))
        if target in ops.PRODUCTS:
            return seen(self._product(node))
        if target is ops.aten.cat.default:
            values = list(map(self.value, args[0]))
            axis = args[1] if len(args) > 1 else 0
            starts = accumulate((one.shape[axis] for one in values), initial=0)
            return seen(self._side_by_side(node, axis, list(zip(starts, values, strict=False))))
        raise CaptureError(f"{args[0].target if target is operator.getitem else target} has no formula here")

    def _viewed(self, node: FxNode, source: FxNode, change: Callable[[Tensor], Tensor]) -> Lazy:
        found = looked(self.value(source), change) or looked(seen(self.stored(source)), change)
        if found is None:
            raise CaptureError(f"{node.target} needs a copy here")
        return found

    def _same(self, node: FxNode) -> Lazy:
        """Copy what is a part of a larger array, so that the rest need not be kept; leave all else."""
        value = self.value(node.args[0])
        view, where = value.view, self._direction(node)
        if view is None or view.array not in where.arrays or view.array[0] in "xws":
            return value
        everything = view.meta.numel() == prod(where.arrays[view.array])
        return value if everything else seen(self._store(node, value))

    def _shared(self, node: FxNode, value: Lazy) -> Lazy:
        """Store what is expensive, or read twice; the rest is computed where it is read."""
        costly, at_home = ops.expensive(value.formula), node in self.home
        if self.level[node] < 3 and self._crosses(node):
            arrays = {one.array for one in value.reads}
            again = not costly and all(name[0] in "sxw" or name in self.crossing for name in arrays)
            if again or (not at_home and {name[0] for name in arrays} == {"s"}):
                return value  # the backward computes it again, such as tanh of the cell of an LSTM
        often = sum(one.op != "output" for one in node.users) > 1
        return seen(self._store(node, value)) if costly or often or at_home else value

    def _crosses(self, node: FxNode) -> bool:
        """Tell whether the backward reads a value."""
        looks = ops.VIEWS | ops.SAME
        return any(
            self.level.get(one) == 3 or (one.target in looks and self._crosses(one)) for one in node.users
        )

    def _store(self, node: FxNode, value: Lazy) -> ElementView:
        where = self._direction(node)
        target = self.home[node] if node in self.home else where.array(f"v_{node.name}", value.shape)
        return self._nest(where, target, value)

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
                backward.array(one.array, forward.arrays[one.array], timed=one.array in forward.timed)
                backward.kept.add(one.array)
                forward.kept.add(one.array)
                if one.array not in self.needed:
                    self.needed.append(one.array)

    def _product(self, node: FxNode) -> ElementView:
        bias_at, *factors = ops.PRODUCTS[node.target]
        (left_node, right_node), where = (node.args[at] for at in factors), self._direction(node)
        turned = self.level[left_node] == 0 and bias_at is None and self.level[right_node] > 0
        bias = None if bias_at is None else self.value(node.args[bias_at]).view
        fixed = bias_at is None or (bias is not None and self.level[node.args[bias_at]] == 0)
        if node.kwargs or not fixed or (self.level[right_node] > 0 and not turned):
            raise CaptureError("a product of two values that change, or with another sum, has no kernel here")
        left, right = self.stored(left_node), self.stored(right_node)
        if turned:  # weights are on the right in the transpose
            left, right = (one._replace(meta=one.meta.t()) for one in (right, left))
        if left.meta.stride(1) != 1 and left.meta.shape[1] > 1:  # rows are laid out one behind the other
            left = self._nest(where, where.array(f"v_{node.name}_rows", left.meta.shape), seen(left))
        shape = (left.meta.shape[0], right.meta.shape[1])
        target = where.array(f"p_{node.name}", shape)
        self._note(where, left, right)
        bias = None if bias is None else bias._replace(meta=bias.meta.expand(shape))
        free = self.level[left_node] == 1 and left.array[0] == "x"
        (where.before if free else where.work).append(Product(target, bias, left, right))
        return target._replace(meta=target.meta.t()) if turned else target

    def _slices(self, node: FxNode) -> ElementView | None:
        """Write gradients of slices of one value side by side; None where the op is no sum of these."""
        every, found = [node], list[FxNode]()
        while every:
            one = every.pop()
            target = getattr(one, "target", None)
            if target is ops.aten.slice_backward.default and one.args[5] == 1:
                found.append(one)
            elif target is ops.aten.add.Tensor and not one.kwargs and one not in self.values:
                every += one.args
            else:
                return None
        if len(axes := {one.args[2] for one in found}) != 1:
            raise CaptureError("gradients of slices along two axes have no formula here")
        pieces = sorted((one.args[3], number, one.args[0]) for number, one in enumerate(found))
        return self._side_by_side(node, axes.pop(), [(start, self.value(one)) for start, _, one in pieces])

    def _side_by_side(self, node: FxNode, axis: int, pieces: Sequence[tuple[int, Lazy]]) -> ElementView:
        where, shape, end = self._direction(node), tuple(node.meta["val"].shape), 0
        every = where.array(f"c_{node.name}", shape)

        def part(start: int, size: int) -> ElementView:
            return every._replace(meta=every.meta.narrow(axis, start, size))

        for start, value in [*pieces, (shape[axis], None)]:
            if start < end:
                raise CaptureError("gradients of slices that overlap have no formula here")
            if start > end:
                blank = part(end, start - end)
                self._nest(where, blank, Lazy(0.0, (), tuple(blank.meta.shape)))
            if value is not None:
                self._nest(where, part(start, value.shape[axis]), value)
                end = start + value.shape[axis]
        return every

    def _over(self, node: FxNode) -> Whole:
        """Compute a gradient of every step after the loop, where it is a product; else inside."""
        if node not in self.values and node.target is ops.aten.mm.default and self.level[node.args[1]] == 0:
            left, right = map(self._kept, node.args)
            return lambda read: torch.matmul(read(left), read(right))
        view = self._kept(node)
        return lambda read: read(view)

    def _total(self, node: FxNode) -> Whole:
        """Add a gradient over all steps, after the loop."""
        target, args = node.target, node.args
        if node in self.values or node.op == "placeholder":
            target = None
        if target in ops.VIEWS and target is not ops.aten.expand.default:
            inner = self._total(args[0])
            return lambda read: target(inner(read), *args[1:], **node.kwargs)
        if (
            target is ops.aten.add.Tensor
            and not node.kwargs
            and all(isinstance(one, fx.Node) for one in args)
        ):
            one, two = map(self._total, args)
            return lambda read: one(read) + two(read)
        if target is ops.aten.mm.default and self.level[args[1]] > 0 and self.level[args[0]] > 0:
            left, right = map(self._kept, args)  # one product for all steps
            return lambda read: read(left).transpose(0, 1).flatten(1) @ read(right).flatten(0, 1)
        if target is ops.aten.sum.dim_IntList and self.level[args[0]] > 0:
            view = self._kept(args[0])
            return lambda read: read(view).sum(0).sum(*args[1:])
        inner = self._over(node)
        return lambda read: inner(read).sum(0)

    def _kept(self, node: FxNode) -> ElementView:
        """Store a value so that it is there after the loop."""
        view = self.stored(node)
        self._note(self.directions[1], view)
        for one in self.directions:
            one.kept.update({view.array} & one.arrays.keys())
        return view
