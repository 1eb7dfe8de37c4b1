"""Recurrent layers as one op: a forward of many steps is one loop on the device, not one op per step.

Idea        For the time of a capture, `torch.nn.GRU`, `LSTM` and `RNN` inside a model are replaced by a
            module with their parameters that calls one op per layer and direction. The kernel reads every
            weight once per step and sample. A gradient computes gates again from the states, so that a step
            of training keeps those alone, and the cells of an LSTM.
Source      equations of `torch.nn.GRU`, `torch.nn.LSTM` and `torch.nn.RNN`
Guarantee   The model is as it was afterwards; results are those of PyTorch but for the order of sums.
Complexity  That of the layer.
Gaps        No packed sequences, no projections; no gradient of the state that a layer begins from.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor, nn

from tightrope.core import UnsupportedOpError

KINDS: Final = {"RNN_TANH": 0, "RNN_RELU": 1, "GRU": 2, "LSTM": 3}


@torch.library.custom_op("tightrope_micro::recurrent", mutates_args=())
def recurrent(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor | None,
    c: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    kind: int,
    backwards: bool,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one layer in one direction, step by step.

    Args:
        x: [steps, batch, inputs].
        w: [gates * hidden, inputs], of what comes in.
        u: [gates * hidden, hidden], of the state.
        b: bias of the first; None = 0.
        c: bias of the second; None = 0.
        h0: [batch, hidden], the state before; None = 0.
        c0: the same, the cell of an LSTM before.
        kind: of `KINDS`.
        backwards: last step first.
        keeps: whether the cells of all steps are returned, as a gradient needs them.

    Returns:
        [steps, batch, hidden], the last state, the last cell or all.
    """
    zero = x.new_zeros(x.shape[1], u.shape[1])
    h, cell = (zero if one is None else one for one in (h0, c0))
    made, cells = (x.new_empty(*x.shape[:2], u.shape[1]) for _ in range(2))
    for at in range(len(x))[:: -1 if backwards else 1]:
        a, s = nn.functional.linear(x[at], w, b), nn.functional.linear(h, u, c)
        if kind == KINDS["GRU"]:
            (ar, az, an), (sr, sz, sn) = a.chunk(3, 1), s.chunk(3, 1)
            z = torch.sigmoid(az + sz)
            h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + sr) * sn) + z * h
        elif kind == KINDS["LSTM"]:
            i, f, g, o = (a + s).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
        else:
            h = torch.relu(a + s) if kind else torch.tanh(a + s)
        made[at], cells[at] = h, cell
    return made, h.clone(), cells if keeps else cell.clone()


@recurrent.register_fake
def _(
    x: Tensor, w: Tensor, u: Tensor, b: Any, c: Any, h0: Any, c0: Any, kind: int, backwards: bool, keeps: bool
) -> tuple[Tensor, Tensor, Tensor]:
    made, state = (*x.shape[:2], u.shape[1]), (x.shape[1], u.shape[1])
    return x.new_empty(made), x.new_empty(state), x.new_empty(made if keeps else state)


_GATES: Final = (
    "(Tensor x, Tensor w, Tensor u, Tensor? b, Tensor? c, Tensor? h0, Tensor? c0, Tensor y, Tensor cells, "
    "Tensor? gy, Tensor? gh, Tensor? gc, int kind, bool backwards, bool keeps) -> "
)
"""What gradients of gates are computed from: what the layer read and made, and gradients of that."""
torch.library.define("tightrope_micro::recurrent_gates", f"{_GATES}Tensor")
torch.library.define("tightrope_micro::recurrent_gates_gru", f"{_GATES}(Tensor, Tensor)")
torch.library.define(
    "tightrope_micro::recurrent_weight", "(Tensor g, Tensor y, Tensor? h0, bool backwards) -> Tensor"
)
# These three stand in captured steps alone: the kernels of the device compute them, PyTorch does not.


def _gates(x: Tensor, w: Tensor, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:2], w.shape[0])


def _gates_gru(x: Tensor, w: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _gates(x, w), _gates(x, w)


def _state_weight(g: Tensor, y: Tensor, *_: Any) -> Tensor:
    return g.new_empty(g.shape[2], y.shape[2])


torch.library.register_fake("tightrope_micro::recurrent_gates", _gates)
torch.library.register_fake("tightrope_micro::recurrent_gates_gru", _gates_gru)
torch.library.register_fake("tightrope_micro::recurrent_weight", _state_weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:7], output[0], output[2])
    ctx.numbers = inputs[7:]


def _backward(ctx: Any, gy: Tensor | None, gh: Tensor | None, gc: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of one layer's weights and of what comes in."""
    if any(ctx.needs_input_grad[5:7]):
        raise UnsupportedOpError(
            "a recurrent layer begins from a state that is trained: detach the state.", op="recurrent"
        )
    x, w, _, b, c, h0, *_, y, _ = ctx.saved_tensors
    kind, backwards, keeps = ctx.numbers
    given = [None if one is None else one.contiguous() for one in (gy, gh, gc if keeps else None)]
    op = "recurrent_gates_gru" if kind == KINDS["GRU"] else "recurrent_gates"
    found = getattr(torch.ops.tightrope_micro, op)(*ctx.saved_tensors, *given, *ctx.numbers)
    of_input, of_state = found if isinstance(found, tuple) else (found, found)
    flat = of_input.flatten(0, 1)
    return (
        (flat @ w).view(x.shape) if ctx.needs_input_grad[0] else None,
        flat.T @ x.flatten(0, 1),
        torch.ops.tightrope_micro.recurrent_weight(of_state, y, h0, backwards),
        None if b is None else flat.sum(0),
        None if c is None else of_state.flatten(0, 1).sum(0),
        *[None] * 5,
    )


recurrent.register_autograd(_backward, setup_context=_keep)


class _AsOps(nn.Module):
    """A recurrent layer that calls the op."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        if getattr(layer, "proj_size", 0):
            raise UnsupportedOpError(
                f"{type(layer).__name__} with proj_size has no kernel: leave out the projection.",
                op=type(layer).__name__,
            )
        self.layer = layer

    def _named(self, name: str, at: int, back: int) -> Tensor | None:
        found: Tensor | None = getattr(self.layer, f"{name}_l{at}{'_reverse' if back else ''}", None)
        return found

    def forward(self, x: Tensor, state: Any = None) -> Any:
        """Compute as the layer does."""
        layer, kind = self.layer, KINDS[self.layer.mode]
        alone = x.dim() == 2
        if alone:
            x = x.unsqueeze(1)
        elif layer.batch_first:
            x = x.transpose(0, 1)
        x = x.contiguous() if layer.training else x
        keeps = layer.training and kind == KINDS["LSTM"]
        cells = kind == KINDS["LSTM"]
        first, second = state if cells and state is not None else (state, None)
        ways, ends, last_cells = 2 if layer.bidirectional else 1, [], []
        for at in range(layer.num_layers):
            made = []
            for back in range(ways):
                k = at * ways + back
                sizes = (x.shape[1], layer.hidden_size)
                start = [None if one is None else one[k].reshape(sizes) for one in (first, second)]
                b, c = (
                    self._named(name, at, back) if layer.bias else None for name in ("bias_ih", "bias_hh")
                )
                w, u = self._named("weight_ih", at, back), self._named("weight_hh", at, back)
                y, h, cell = torch.ops.tightrope_micro.recurrent(
                    x, w, u, b, c, start[0], start[1] if cells else None, kind, bool(back), keeps
                )
                made.append(y)
                ends.append(h)
                last_cells.append(cell[0 if back else -1] if keeps else cell)
            x = made[0] if ways == 1 else torch.cat(made, -1)
            if layer.dropout and at < layer.num_layers - 1:
                x = nn.functional.dropout(x, layer.dropout, layer.training)
        y = x.squeeze(1) if alone else x.transpose(0, 1) if layer.batch_first else x
        h, cell = (
            kept[0][None] if len(kept) == 1 else torch.cat([one[None] for one in kept])
            for kept in (ends, last_cells)
        )
        h, cell = (one.squeeze(1) for one in (h, cell)) if alone else (h, cell)
        return (y, (h, cell)) if cells else (y, h)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.RNNBase]:
    """Whether a layer is one of PyTorch's own, without hooks that would be passed by."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return type(layer) in (nn.GRU, nn.LSTM, nn.RNN) and not hooked


@contextmanager
def recurrence_as_ops(model: nn.Module) -> Iterator[nn.Module]:
    """Replace the recurrent layers of a model inside a ``with`` block."""
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    swapped = [(p, name, child) for p, name, child in found if _is_plain(child)]
    try:
        for parent, name, child in swapped:
            parent._modules[name] = _AsOps(child).train(child.training)
        yield _AsOps(model).train(model.training) if _is_plain(model) else model
    finally:
        for parent, name, child in swapped:
            parent._modules[name] = child
