"""The experts of a layer, seen in the ops that it runs: numbers, parameters and rows.

Idea        Products of rows by the weights of the expert that each chose are ops of their own, with all
            weights in one tensor. Their first argument are the rows, as often as they chose an expert.
Source      ``torch.nn.functional.grouped_mm``; the ops of tightrope-experts.
Guarantee   Bytes of parameters are exact. Those that the backward needs are of tensors with as many rows.
Complexity  Constant per op.
Gaps        A loop over modules is not known as experts. A layer has one set of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tightrope.capture._eager import tensors_in
from tightrope.core.units import Bytes

GROUPED: Final = ("aten::_grouped_mm", "tightrope_experts::spread_rows", "tightrope_experts::gather_rows")
"""Ops that multiply rows by the weights of the expert that each of them chose."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    Attributes:
        number: of them.
        parameters: bytes of their parameters.
        rows: bytes of the rows that a micro-batch sends to them, each as often as it chose one.
        kept: bytes that the backward needs of such rows.
        choices: experts per row; 0 = not seen.
    """

    number: int
    parameters: Bytes = 0
    rows: Bytes = 0
    kept: Bytes = 0
    choices: int = 0

    def divided(self, tensor: int, context: int) -> "Experts":
        """Tell the part of a rank where so many divide the layer, and its sequence."""
        ways = tensor * context
        return replace(
            self,
            parameters=-(-self.parameters // tensor),
            rows=-(-self.rows // ways),
            kept=-(-self.kept // ways),
        )

    def worst_rows(self, ways: int) -> Bytes:
        """Tell the bytes of rows that one of so many ranks gets at most: a row chooses an expert once.

        >>> [Experts(8, rows=100, choices=2).worst_rows(ways) for ways in (1, 2, 4, 8)]
        [100, 200, 400, 400]
        """
        each = self.number // ways
        share = min(self.choices, each) / self.choices if self.choices else 1.0
        return round(self.rows * ways * share)


class ExpertsSeen:
    """Watches the ops of a layer for experts."""

    def __init__(self) -> None:
        self.number = self.rows = self.count = self.choices = self._asked = 0
        self._kept: dict[int, tuple[int, Bytes]] = {}

    def see(self, op: Any, given: Any) -> None:
        """Note an op and its arguments."""
        name = str(op._schema.name)
        if name == "aten::topk":
            self._asked = int(given[0][1])
        if name not in GROUPED or self.number:
            return
        tensors = tensors_in(given)
        stacks = [one for one in tensors if one.dim() == 3]
        if stacks and tensors[0].dim() == 2:
            x, self.number, self.choices = tensors[0], stacks[0].shape[0], self._asked
            whole = [one.numel() for one in tensors if not one.is_floating_point()]
            self.count = x.shape[0] if name == GROUPED[0] else whole[0]
            self.rows = self.count * x.shape[1] * x.element_size()

    def keep(self, key: int, rows: int, size: Bytes) -> None:
        """Note a tensor that is kept for the backward."""
        self._kept[key] = rows, size

    def found(self, parameters: Sequence[tuple[Any, Bytes]]) -> Experts | None:
        """Put together what was seen, and the layer's parameters with their bytes."""
        if not self.number:
            return None
        size = sum(size for one, size in parameters if one.dim() == 3 and one.shape[0] == self.number)
        kept = sum(size for rows, size in self._kept.values() if rows == self.count)
        return Experts(self.number, size, self.rows, kept, self.choices)
