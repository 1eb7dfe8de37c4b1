"""Recurrent cells whose loop over time is written in Python, and what their kernels are asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor, nn

from tightrope_forms.loops.kernel import LoopKernels
from tightrope_forms.values.loops import LoopProgram

Elements = dict[tuple[str, tuple[int, ...]], float]


class LoopNet(nn.Module):
    """A cell in a loop over the first axis of (steps, batch, features)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, hidden
        self.build()

    def build(self) -> None:
        """Make the weights."""
        raise NotImplementedError

    def start(self, x: Tensor) -> Any:
        """Make the first state."""
        return x.new_zeros(x.shape[1], self.hidden)

    def cell(self, x: Tensor, state: Any) -> Any:
        """Make the next state."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        """Return the states of all steps."""
        state, every = self.start(x), []
        for t in range(x.shape[0]):
            state = self.cell(x[t], state)
            every.append(state if isinstance(state, Tensor) else state[0])
        return torch.stack(every)


class LstmLoop(LoopNet):
    """`torch.nn.LSTMCell`."""

    def build(self) -> None:
        """Make the cell."""
        self.inner = nn.LSTMCell(self.inputs, self.hidden)

    def start(self, x: Tensor) -> Any:
        """Make both states."""
        return (x.new_zeros(x.shape[1], self.hidden),) * 2

    def cell(self, x: Tensor, state: Any) -> Any:
        """Call the cell."""
        return self.inner(x, state)


class GruLoop(LoopNet):
    """`torch.nn.GRUCell`."""

    def build(self) -> None:
        """Make the cell."""
        self.inner = nn.GRUCell(self.inputs, self.hidden)

    def cell(self, x: Tensor, state: Any) -> Any:
        """Call the cell."""
        return self.inner(x, state)


class RnnLoop(GruLoop):
    """`torch.nn.RNNCell`."""

    def build(self) -> None:
        """Make the cell."""
        self.inner = nn.RNNCell(self.inputs, self.hidden)  # type: ignore[assignment]


class ColumnLoop(LoopNet):
    """Products with weights on the left, and columns as examples."""

    def build(self) -> None:
        """Make the weights."""
        self.w = nn.Parameter(torch.randn(self.hidden, self.inputs))
        self.u = nn.Parameter(torch.randn(self.hidden, self.hidden) / self.hidden)

    def start(self, x: Tensor) -> Any:
        """Make the first state."""
        return x.new_zeros(self.hidden, x.shape[1])

    def cell(self, x: Tensor, state: Any) -> Any:
        """Make the next state."""
        return torch.tanh(self.w @ x.mT + self.u @ state)


class MinimalLoop(LoopNet):
    """A minimal gated unit as papers write it: products of concatenations, the second of a gated state."""

    def build(self) -> None:
        """Make the weights."""
        self.gate = nn.Linear(self.inputs + self.hidden, self.hidden)
        self.new = nn.Linear(self.inputs + self.hidden, self.hidden)

    def cell(self, x: Tensor, state: Any) -> Any:
        """Mix the state and a new one."""
        f = torch.sigmoid(self.gate(torch.cat([x, state], 1)))
        g = torch.tanh(self.new(torch.cat([x, f * state], 1)))
        return (1 - f) * state + f * g


class SlicedLoop(LoopNet):
    """Gates that are slices of one product."""

    def build(self) -> None:
        """Make the weights."""
        self.w, self.u = nn.Linear(self.inputs, 2 * self.hidden), nn.Linear(self.hidden, 2 * self.hidden)

    def cell(self, x: Tensor, state: Any) -> Any:
        """Mix the state and a new one."""
        both = self.w(x) + self.u(state)
        z, n = torch.sigmoid(both[:, : self.hidden]), torch.relu(both[:, self.hidden :])
        return z * state + (1 - z) * n


class PeepholeLoop(LoopNet):
    """An LSTM with peepholes over ``unbind``, which returns two things."""

    def build(self) -> None:
        """Make the weights."""
        self.w, self.u = (
            nn.Linear(self.inputs, 4 * self.hidden),
            nn.Linear(self.hidden, 4 * self.hidden, bias=False),
        )
        self.peep = nn.Parameter(torch.randn(3, self.hidden))

    def forward(self, x: Tensor) -> Any:
        """Return the states of all steps with the batch first, and the last cell."""
        h = c = self.start(x)
        every = []
        for one in x.unbind(0):
            i, f, g, o = (self.w(one) + self.u(h)).chunk(4, 1)
            i, f = torch.sigmoid(i + self.peep[0] * c), torch.sigmoid(f + self.peep[1] * c)
            c = f * c + i * torch.tanh(g)
            h = torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c)
            every.append(h)
        return torch.stack(every, 1), c


class StackedLoop(LoopNet):
    """An LSTM below a GRU and a head in one loop, with ops around it."""

    def build(self) -> None:
        """Make the cells."""
        self.low, self.high = nn.LSTMCell(self.inputs, self.hidden), nn.GRUCell(self.hidden, self.hidden)
        self.head = nn.Linear(self.hidden, 2)

    def forward(self, x: Tensor) -> Any:
        """Return the mean of the head over time."""
        x = torch.tanh(x)
        h = c = k = self.start(x)
        every = []
        for t in range(len(x)):
            h, c = self.low(x[t], (h, c))
            k = self.high(h, k)
            every.append(self.head(k))
        return torch.stack(every).mean(0)


class BackwardLoop(GruLoop):
    """From the last step to the first; only the last state is needed."""

    def forward(self, x: Tensor) -> Any:
        """Return the last state."""
        state = self.start(x)
        for t in reversed(range(len(x))):
            state = self.cell(x[t], state)
        return state


class LayerLoops(LoopNet):
    """One loop behind another, over lists."""

    def build(self) -> None:
        """Make the cells."""
        self.layers = nn.ModuleList(
            [nn.RNNCell(self.inputs, self.hidden), nn.RNNCell(self.hidden, self.hidden)]
        )

    def forward(self, x: Tensor) -> Any:
        """Return a sum over time, and the last state."""
        every, state = list(x), None
        for layer in self.layers:
            state, made = None, []
            for one in every:
                state = layer(one, state)
                made.append(state)
            every = made
        return torch.stack(every).sum(0), state


class MemoryLoop(LoopNet):
    """A state of two steps before, elements of every second step, and a cell without its first step."""

    def build(self) -> None:
        """Make the weights."""
        self.w, self.u = nn.Linear(self.inputs, self.hidden), nn.Linear(self.hidden, self.hidden)

    def forward(self, x: Tensor) -> Any:
        """Return the last two states and one between."""
        h = before = self.start(x)
        every = []
        for t in range(1, len(x)):
            h, before = torch.tanh(self.w(x[t]) + self.u(h) + before), h
            every.append(h)
        for t in range(0, len(x), 2):
            h = 0.9 * h + 0.1 * torch.relu(self.u(h) - self.w(x[t]))
        return h + before, every[2], torch.cat(every[::-1], 1)


CELLS: Final[tuple[type[LoopNet], ...]] = (
    LstmLoop, GruLoop, MinimalLoop, SlicedLoop, PeepholeLoop, StackedLoop, BackwardLoop, LayerLoops,
    ColumnLoop, MemoryLoop,
)  # fmt: skip


@contextmanager
def watched() -> Iterator[list[tuple[LoopProgram, int, dict[str, Tensor], dict[str, Tensor]]]]:
    """Note the arrays of every run of a kernel, before and after."""
    real, seen = LoopKernels.call, list[tuple[LoopProgram, int, dict[str, Tensor], dict[str, Tensor]]]()

    def call(self: LoopKernels, name: str, arrays: dict[str, Tensor], *rest: Any, **named: Any) -> None:
        before = {key: one.clone() for key, one in arrays.items()}
        real(self, name, arrays, *rest, **named)
        one = self.forward if name == "loop_forward" else self.backward
        assert one is not None
        seen.append((one.program, self.steps, before, {key: value.clone() for key, value in arrays.items()}))

    LoopKernels.call = call  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        LoopKernels.call = real  # type: ignore[method-assign]


def elements(program: LoopProgram, steps: int, arrays: dict[str, Tensor], *, first: bool) -> Elements:
    """Name the elements of arrays, of those that shrank the first ones alone, or the last ones."""
    found: Elements = {}
    for one in program.arrays:
        array = arrays.get(one.name)
        if array is None:
            continue
        if one.cells and one.over_time:
            times = {"s": 0, "d": steps}.get(one.name[0]) if first else None
            spans = [] if times is None else [times]
        else:
            spans = list(range(len(array))) if one.over_time else []
        rest = list(product(*map(range, one.shape)))
        for t in spans:
            for index in rest:
                found[one.name, (t, *index)] = float(array[(t % len(array), *index)])
        if not one.over_time:
            found |= {(one.name, index): float(array[index]) for index in rest}
    return found
