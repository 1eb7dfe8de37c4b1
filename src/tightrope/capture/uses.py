"""Gradients of computed inputs, one per use: autograd adds them, in the order in which it does in eager.

Idea        Where the caller computed an input and uses it again later, eager begins the sum of its gradients
            with that of the later use. A captured graph cannot: it does not see that gradient. So it returns
            the terms of its own sum one by one, and autograd adds each to what has come already.
Guarantee   Where nothing else uses the input, the sum is the same: the terms come in the order of eager.
Complexity  Linear in the ops of the backward; the terms are live together when the backward ends.
Gaps        Inputs that change, or that an output looks into, keep their sums, and are named where the order
            of eager is another one. Where one view of an input is returned, and nothing else reads the input,
            its uses are summed before the input's, as in eager.

    eager     ((later use + last use) + use) + first use
    captured  later use + ((last use + use) + first use)
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.typed import tensor_of

Rest = list[torch.Tensor | None]
"""Terms of sums, all but the first of each."""


class Uses:
    """How often a call uses those of its inputs that the caller computed.

    Attributes:
        computed: numbers of these inputs.
        most: input -> number of uses from which a gradient may come.
        came: input -> number of gradients that did come in the last trace.
        split: (input, number of terms after the first) for those whose terms are returned.
        viewed: inputs that are passed as views of themselves.
        unordered: inputs whose gradients eager sums in another order.

    Args:
        real: inputs of the call.
        shared: whether other graphs, of a model in pieces, may use the same parameters.
    """

    def __init__(self, real: Sequence[Any], *, shared: bool = False) -> None:
        self.computed = frozenset(n for n, value in enumerate(real) if _is_computed(value, shared))
        self.leaves = (
            frozenset(n for n, value in enumerate(real) if _is_computed(value, True)) - self.computed
        )
        self.viewed: frozenset[int] = frozenset()
        self.unordered: frozenset[int] = frozenset()
        self.summed: tuple[str, ...] = ()
        self.most: dict[int, int] = {}
        self.came: dict[int, int] = {}
        self.split: tuple[tuple[int, int], ...] | None = None

    def count(
        self, inputs: Mapping[int, torch.Tensor], outputs: Sequence[torch.Tensor], every: Sequence[Any]
    ) -> None:
        """Count the uses of traced inputs, and have the gradients counted that come to them.

        Args:
            inputs: number -> input, as traced.
            outputs: all from which a backward may start.
            every: all outputs.
        """
        ends = {
            (edge.node, edge.output_nr): number
            for number in (self.computed | self.leaves) & inputs.keys()
            for edge in [torch.autograd.graph.get_gradient_edge(inputs[number])]
        }
        uses: dict[int, list[Any]] = {number: [] for number in ends.values()}
        self.most, self.came = dict.fromkeys(ends.values(), 0), dict.fromkeys(ends.values(), 0)
        if not ends:
            return
        waiting = [output.grad_fn for output in outputs]
        seen: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            slots = [(at, ends[edge]) for at, edge in enumerate(node.next_functions) if edge in ends]
            if slots:
                for _, number in slots:
                    self.most[number] += 1
                    uses[number].append(node)
                node.register_hook(self._counter(slots))
        self._order(ends, uses, every)

    def _order(self, ends: Mapping[Any, int], uses: Mapping[int, list[Any]], every: Sequence[Any]) -> None:
        """Find the inputs of which views are returned, and how eager orders the sums of their gradients."""
        views: dict[int, list[Any]] = {}
        for output in every:
            if (found := _input_behind(output, ends)) is not None:
                views.setdefault(found[0], []).append(found[1])
        viewed, unordered = set(), set()
        for number, through in views.items():
            inside = [node for node in uses[number] if number in self.computed]
            if inside and inside == through:
                viewed.add(number)
            elif any(view is None or view in inside for view in through) or len(inside) > 1:
                unordered |= {number} if inside and (len(inside) > 1 or through != [None]) else set()
            elif any(use._sequence_nr() > view._sequence_nr() for use in inside for view in through):
                unordered.add(number)
        self.viewed, self.unordered = frozenset(viewed), frozenset(unordered)

    def _counter(self, slots: Sequence[tuple[int, int]]) -> Callable[[Any, Any], None]:
        counted = self.came  # a branch that is an op is traced within the trace, and counts anew

        def came(gradients: Sequence[Any], _: Any) -> None:
            for at, number in slots:
                counted[number] += gradients[at] is not None

        return came

    def return_terms(
        self, joint: torch.fx.GraphModule, num_forward: int, fixed: Collection[int]
    ) -> list[str]:
        """Let a joint graph return the terms of sums, behind its other outputs.

        Args:
            joint: its outputs are those of the forward, then a gradient per input.
            num_forward: outputs of the first kind.
            fixed: inputs that change.

        Returns:
            Names of sums that stay.
        """
        (output,) = joint.graph.find_nodes(op="output")
        results: list[Any] = list(output.args[0])
        inputs = joint.graph.find_nodes(op="placeholder")
        if self.split is None:
            seen = {_torch.storage_key(tensor_of(node)) for node in results[:num_forward] if _is_tensor(node)}
            free = [number for number in sorted(self.computed - set(fixed)) if self.most.get(number, 0) > 1]
            free = [number for number in free if _torch.storage_key(tensor_of(inputs[number])) not in seen]
            free = [number for number in free if number not in self.viewed]
            self.split = tuple((number, self.most[number] - 1) for number in free)
        rest: list[Any] = []
        for number, num in self.split:
            first, *more = _terms(results[num_forward + number], self.came.get(number, 0))
            results[num_forward + number] = first
            rest += [*more, *[None] * (num - len(more))]
        output.args = ((*results, *rest),)
        sums = {
            number: gradient.name
            for number in sorted(self.computed | self.leaves)
            for gradient in results[num_forward + number : num_forward + number + 1]
            if isinstance(gradient, torch.fx.Node) and gradient.target is torch.ops.aten.add.Tensor
            if number not in dict(self.split) and self.most.get(number, 0) > 1
        }
        self.summed = tuple(name for number, name in sums.items() if number in self.leaves)
        named = [name for number, name in sums.items() if number in self.computed]
        named += [
            f"the order of the sum that is the gradient of {inputs[number].name}, of which a view is returned"
            for number in sorted(self.unordered - sums.keys())
        ]
        return named + _sums_behind_views(joint, num_forward)

    def handed_on(self, args: Sequence[Any]) -> tuple[list[Any], Rest]:
        """Make stand-ins of inputs, to which a gradient comes per use, and the place for the later terms."""
        given, rest = list(args), Rest()
        for number, num in self.split or ():
            mine, one = slice(len(rest), len(rest) + num), given[number]
            rest += [None] * num
            if torch.is_grad_enabled() and one.requires_grad:
                given[number] = _PerUse.apply(one, rest, mine, *[one] * num)  # type: ignore[no-untyped-call]
        for number in self.viewed if torch.is_grad_enabled() else ():
            given[number] = given[number].view_as(given[number])
        return given, rest


class _PerUse(torch.autograd.Function):
    """An input as it is, whose gradient reaches it term by term."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, rest: Rest, mine: slice, *again: torch.Tensor) -> torch.Tensor:
        del again
        ctx.rest, ctx.mine = rest, mine
        ctx.set_materialize_grads(False)
        return given

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor | None) -> Any:
        more = ctx.rest[ctx.mine]
        ctx.rest[ctx.mine] = [None] * len(more)
        return first, None, None, *more


def _terms(gradient: Any, num: int) -> list[Any]:
    """Take the sum that a gradient is apart, in the order in which its terms came."""
    later: list[Any] = []
    while len(later) + 1 < num and gradient.target is torch.ops.aten.add.Tensor and not gradient.kwargs:
        gradient, term = gradient.args
        later.append(term)
    return [gradient, *reversed(later)]


def _input_behind(output: Any, ends: Mapping[Any, int]) -> tuple[int, Any] | None:
    """The input that an output is a view of, and the node of that view, None where it is the input."""
    if not isinstance(output, torch.Tensor) or not output.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(output)
    node: Any = edge.node
    at, before = edge.output_nr, None
    for _ in range(_MOST_VIEWS):
        if (number := ends.get((node, at))) is not None:
            return number, before
        if len(node.next_functions) != 1 or not _is_view(node):
            return None
        before = node
        node, at = node.next_functions[0]
    return None


_MOST_VIEWS = 8
_VIEWS = ("View", "Alias", "Transpose", "TBackward", "Permute", "Slice", "Select", "AsStrided")


def _is_view(node: Any) -> bool:
    found: bool = node.name().startswith(
        (*_VIEWS, "Unsqueeze", "Squeeze", "Expand", "Split", "Unbind", "Reshape")
    )
    return found


def _sums_behind_views(joint: torch.fx.GraphModule, num_forward: int) -> list[str]:
    """Name sums of a value's gradients where views of the value are returned, and the graph reads it too.

    Gradients of all that look into it come as one: eager adds those of a view to what the graph makes of it.
    """
    (output,) = joint.graph.find_nodes(op="output")
    described = list(output.meta.get("desc") or [])[:num_forward]
    returned: dict[int, list[Any]] = {}
    for node, what in zip(output.args[0], described, strict=False):
        if _is_tensor(node) and node.op == "call_function":
            returned.setdefault(_torch.storage_key(tensor_of(node)), []).append(what)
    num_views = {repr(what): len(group) - 1 for group in returned.values() for what in group}
    found = []
    for node in joint.graph.find_nodes(op="placeholder"):
        what = getattr(node.meta.get("desc"), "output", None)
        hidden = "IntermediateBase" in type(what).__name__
        adds = _adds(node) if num_views.get(repr(what)) else []
        few = 1 if hidden and num_views[repr(what)] == 1 else 0
        found += [add.name for add in adds] if len(adds) > few else []
    return found


def _adds(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The sums that a gradient goes into, one after the other."""
    found: list[torch.fx.Node] = []
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user.target is torch.ops.aten.add.Tensor:
                found.append(user)
                waiting.append(user)
            elif isinstance(tensor_of(user), torch.Tensor) and "view" in str(user.target):
                waiting.append(user)
    return found


def _is_computed(value: Any, leaves: bool) -> bool:
    """Tell whether an input may be used elsewhere, too: parameters are only where a model is in pieces."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return False
    return leaves or not isinstance(value, torch.nn.Parameter)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(tensor_of(node), torch.Tensor)
