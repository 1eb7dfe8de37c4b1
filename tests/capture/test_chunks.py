"""Splitting losses into chunks of rows: the same values, and what is not split."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from tests.capture.values_oracle import compare_values
from tightrope.capture.api import capture_program
from tightrope.capture.chunks import chunked, counts, finer_counts, why_whole
from tightrope.capture.program import Program
from tightrope.capture.whole import whole_program
from tightrope.core import Graph

ROWS, WIDTH, VOCABULARY = 66, 8, 4100
Loss = Callable[[Tensor, Tensor], Tensor]


class Head(nn.Module):
    """Hidden states times a vocabulary, and a loss."""

    def __init__(self, loss: Loss, *, bias: bool = False, shape: tuple[int, ...] = (ROWS,)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss, self.shape = loss, shape
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=bias)

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.linear(self.norm(hidden)), labels)


def labels(shape: tuple[int, ...] = (ROWS,)) -> Tensor:
    found = torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))
    found[..., :3], found[..., -5:] = -100, 0
    return found


def program_of(loss: Loss, *, bias: bool = False, shape: tuple[int, ...] = (ROWS,)) -> Program:
    model = Head(loss, bias=bias, shape=shape)
    hidden = torch.randn(*shape, WIDTH, requires_grad=True)
    return whole_program(capture_program(model, (hidden, labels(shape)), {})[0], {}).program


def differences(program: Program, split: Graph, shape: tuple[int, ...] = (ROWS,)) -> list[str]:
    name = next(one.name for one in program.graph.parts[0].inputs if one.view and one.view.dtype == "int64")
    return compare_values(program.graph, split, given={name: labels(shape)})


def flat(logits: Tensor, target: Tensor, **options: float) -> Tensor:
    return cross_entropy(logits.float().view(-1, VOCABULARY), target.view(-1), **options)  # type: ignore[arg-type]


LOSSES: dict[str, Loss] = {
    "mean": flat,
    "sum": partial(flat, reduction="sum"),
    "another ignored index": lambda y, t: flat(y, t.clamp(min=0), ignore_index=0),
    "label smoothing": lambda y, t: cross_entropy(y, t.clamp(min=0), label_smoothing=0.1),
    "smoothing and ignored rows": partial(flat, label_smoothing=0.1),
    "capped": lambda y, t: flat(30 * torch.tanh(y / 30), t),
    "scaled": lambda y, t: flat(y * 0.5, t) / 4,
    "by hand": lambda y, t: nll_loss(log_softmax(y, dim=-1), t),
    "a term in the sum of each row": lambda y, t: flat(y, t) + torch.logsumexp(y, -1).square().mean(),
    "and another term": lambda y, t: flat(y, t) + 1e-3 * torch.softmax(y, dim=-1).square().sum(),
}


@pytest.mark.few(10)
@pytest.mark.parametrize("num", [2, 3, 7])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_in_chunks_gives_the_values_of_the_whole(name: str, num: int) -> None:
    program = program_of(LOSSES[name])
    assert counts(program)
    split = chunked(program, num)
    assert split is not None
    wide = [s for s in split.graph.storages if s.bytes >= ROWS * VOCABULARY * 4 // 2 and not s.external]
    assert not wide or num == 2
    assert differences(program, split.graph) == []


def test_rows_in_two_dimensions_and_a_bias() -> None:
    shape = (3, 22)
    program = program_of(flat, bias=True, shape=shape)
    split = chunked(program, 5)
    assert split is not None
    assert differences(program, split.graph, shape) == []


UNSPLIT: dict[str, tuple[str, Loss]] = {
    "a weight per class": (
        "nll_loss_forward.default",
        lambda y, t: cross_entropy(y, t, weight=torch.ones(VOCABULARY)),
    ),
    "its backward needs the loss": ("nll_loss_backward.default", lambda y, t: flat(y, t).square()),
    "the logits stay": ("select.int", lambda y, t: flat(y, t) + y[0, 0] * y.cumsum(0)[-1, -1]),
    "some rows": ("slice.Tensor", lambda y, t: flat(y[:-1], t[:-1])),
}


@pytest.mark.parametrize("name", UNSPLIT)
def test_what_cannot_be_split_is_left_alone_and_named(name: str) -> None:
    op, loss = UNSPLIT[name]
    program = program_of(loss)
    assert counts(program) == ()
    assert finer_counts(program, 0) == ()
    assert chunked(program, 4) is None
    assert why_whole(program).startswith(f"aten.{op} (test_chunks.py:")


def test_finer_chunks_are_named_where_they_may_save_what_is_missing() -> None:
    program = program_of(flat)
    assert counts(program) == (2,)
    wide = ROWS * VOCABULARY * 4
    assert finer_counts(program, wide) == (4, 8, 16)
    assert finer_counts(program, wide + 1) == ()
    assert why_whole(program) == ""


def test_a_small_step_and_a_program_of_two_parts_are_left_alone() -> None:
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0)), (torch.randn(4, 8),)
    program = capture_program(model, batch, {})[0]
    assert counts(program) == ()
    large = capture_program(Head(flat), (torch.randn(ROWS, WIDTH), labels()), {})[0]
    assert len(large.graph.parts) == 2
    assert counts(large) == ()


def without(graph: Graph, gone: int) -> Graph:
    """The graph without one op."""
    ops = tuple(op for op in graph.ops if op.id != gone)
    return replace(graph, ops=tuple(replace(op, id=at) for at, op in enumerate(ops)))


def test_a_chunk_that_is_left_out_is_found() -> None:
    program = program_of(flat)
    split = chunked(program, 3)
    assert split is not None
    sums = [op.id for op in split.graph.ops if op.target == "aten.addmm_.default"]
    assert len(sums) == 2
    for gone in sums:
        assert differences(program, without(split.graph, gone))


def test_a_chunk_of_other_rows_is_found() -> None:
    program = program_of(flat)
    split = chunked(program, 3)
    assert split is not None
    ops = split.graph.ops
    found = 0
    for op in ops:
        for at, view in enumerate(op.arguments):
            if getattr(view, "offset", 0):
                moved = (*op.arguments[:at], replace(view, offset=0), *op.arguments[at + 1 :])  # type: ignore[type-var]
                wrong = (*ops[: op.id], replace(op, arguments=moved), *ops[op.id + 1 :])
                assert differences(program, replace(split.graph, ops=wrong)), op
                found += 1
    assert found >= 6
