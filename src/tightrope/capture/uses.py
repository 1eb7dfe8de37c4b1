"""Gradients of computed inputs, one per use: autograd adds them, in the order in which it does in eager.

Idea        Where the caller computed an input and uses it again later, eager begins the sum of its gradients
            with that of the later use. A captured graph cannot: it does not see that gradient. So it returns
            the terms of its own sum one by one, and autograd adds each to what has come already.
Guarantee   Where nothing else uses the input, the sum is the same: the terms come in the order of eager.
Complexity  Linear in the ops of the backward; the terms are live together when the backward ends.
Gaps        Inputs that change, or that an output looks into, keep their sums, and are named.

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
    """

    def __init__(self, real: Sequence[Any]) -> None:
        self.computed = frozenset(number for number, value in enumerate(real) if _is_computed(value))
        self.most: dict[int, int] = {}
        self.came: dict[int, int] = {}
        self.split: tuple[tuple[int, int], ...] | None = None

    def count(self, inputs: Mapping[int, torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Count the uses of traced inputs, and have the gradients counted that come to them.

        Args:
            inputs: number -> input, as traced.
            outputs: all from which a backward may start.
        """
        ends = {
            (edge.node, edge.output_nr): number
            for number in self.computed & inputs.keys()
            for edge in [torch.autograd.graph.get_gradient_edge(inputs[number])]
        }
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
                node.register_hook(self._counter(slots))

    def _counter(self, slots: Sequence[tuple[int, int]]) -> Callable[[Any, Any], None]:
        def came(gradients: Sequence[Any], _: Any) -> None:
            for at, number in slots:
                self.came[number] += gradients[at] is not None

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
            self.split = tuple((number, self.most[number] - 1) for number in free)
        rest: list[Any] = []
        for number, num in self.split:
            first, *more = _terms(results[num_forward + number], self.came.get(number, 0))
            results[num_forward + number] = first
            rest += [*more, *[None] * (num - len(more))]
        output.args = ((*results, *rest),)
        return [
            gradient.name
            for number in sorted(self.computed)
            for gradient in results[num_forward + number : num_forward + number + 1]
            if isinstance(gradient, torch.fx.Node) and gradient.target is torch.ops.aten.add.Tensor
            if number not in dict(self.split)
        ]

    def handed_on(self, args: Sequence[Any]) -> tuple[list[Any], Rest]:
        """Make stand-ins of inputs, to which a gradient comes per use, and the place for the later terms."""
        given, rest = list(args), Rest()
        for number, num in self.split or ():
            mine, one = slice(len(rest), len(rest) + num), given[number]
            rest += [None] * num
            if torch.is_grad_enabled() and one.requires_grad:
                given[number] = _PerUse.apply(one, rest, mine, *[one] * num)  # type: ignore[no-untyped-call]
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


def _is_computed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(tensor_of(node), torch.Tensor)
