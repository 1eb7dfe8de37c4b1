"""A captured program: the graph, and what only this process has of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
import torch.fx

from tightrope.capture._torch import Layouts
from tightrope.core import Graph, StorageId


@dataclass(frozen=True)
class Arrived:
    """The gradients that come to a backward.

    Attributes:
        read: numbers of the outputs that they are of.
        layouts: of those that are laid out otherwise than their outputs.
    """

    read: frozenset[int]
    layouts: Layouts = ()


@dataclass(frozen=True)
class Resizable:
    """A call that was captured once for many sizes.

    Attributes:
        at: the same call for other sizes, one per input that is a number; nothing is traced.
        refused: says why sizes are another graph, or nothing.
        inputs: (name, shape) of the tensors that the caller hands over, in order; a size that may change
            is the position of its number, as a string.
    """

    at: "Callable[[tuple[int, ...]], Program]"
    refused: Callable[[tuple[int, ...]], str]
    inputs: tuple[tuple[str, tuple[int | str, ...]], ...]


@dataclass(frozen=True)
class Program:
    """A graph with the module that it was read from.

    Attributes:
        graph: all that planning and running needs.
        module: as captured: the unplanned computation, and the owner of constants.
        constants: the last inputs of the first part, which no caller hands over.
        keys: identity of a (fake) tensor's memory -> storage.
        changed: (output, input) pairs of the first part: the output is the input's new value.
        unlike: names of ops that eager may call otherwise; what else may differ, in words.
        summed: names of sums that are gradients of parameters; with another call before the backward, eager
            adds their terms one by one to the gradient of that call.
        rebuild: reads a module with changed layouts as this one was read.
        ends: number -> dtype and shape of an output, for the gradients that a backward may start from.
        strides: number -> how such a gradient has to be laid out.
        start: the gradients from which this one starts.
        covers: whether all other outputs lie on the way to those.
        terms: (input, number) for gradients that are returned term by term: all but the first of each stand
            behind the gradients of all inputs.
        call: the `tightrope.capture.dynamo.CapturedCall` that it was traced from; None = it has no backward.
        traced_from: traces the same call with a backward that starts from others.
        channels_last: traces the same call, given its inputs, with convolutions that work channels-last; its
            result is None where no input can be laid out so.
        sizes: those of its sizes that may change, one per input that is a number.
        resizable: the call for other sizes; None = every size is fixed.
        codes: of the functions that were captured, where the whole call was captured at once.
    """

    graph: Graph
    module: torch.fx.GraphModule
    constants: tuple[torch.Tensor, ...] = ()
    keys: Mapping[int, StorageId] = field(default_factory=dict)
    changed: tuple[tuple[int, int], ...] = ()
    unlike: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    rebuild: "Callable[[torch.fx.GraphModule], Program] | None" = None
    ends: Mapping[int, str] = field(default_factory=dict)
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    start: Arrived = Arrived(frozenset())
    covers: bool = False
    terms: tuple[tuple[int, int], ...] = ()
    call: Any = None
    traced_from: "Callable[[Arrived], Program] | None" = None
    channels_last: "Callable[[Sequence[Any], Arrived], Program | None] | None" = None
    sizes: tuple[int, ...] = ()
    resizable: Resizable | None = None
    codes: tuple[CodeType, ...] = ()

    @property
    def has_backward(self) -> bool:
        """Whether control goes to the caller and comes back."""
        return len(self.graph.parts) > 1
