"""The judge of cut steps: a right one passes, and one with any one number changed does not."""

import random
from collections.abc import Iterator

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F

from tightrope.core import Argument, Bytes, Graph, JudgeError, Op, StorageId, View
from tightrope.core.values import EMPTY
from tightrope_micro import capture_step
from tightrope_micro.judge.cuts import check_cuts
from tightrope_micro.maps import with_maps_cut
from tightrope_micro.signs import with_signs
from tightrope_micro.tiles import rows_of, tile

Held = dict[StorageId, tuple[StorageId, Bytes]]


class Net(nn.Module):
    """Convolutions, norms, sums with the input and with a parameter, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.place = nn.Parameter(torch.randn(1, 4, 4, 4))
        self.second = nn.Conv2d(4, 8, 3, 2, padding=1)
        self.hidden, self.fc = nn.Linear(32, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + F.relu(self.norm(self.first(F.relu(x))) + self.place)
        x = F.relu(self.second(x)).flatten(1)
        return F.cross_entropy(self.fc(F.relu(self.hidden(x))), y)


def pair(*, adamw: bool) -> tuple[Graph, Graph, Held]:
    """A whole step, and it with maps and weights cut."""
    model = Net()
    make = torch.optim.AdamW if adamw else torch.optim.SGD
    step = capture_step(model, (torch.randn(1, 4, 4, 4), torch.tensor([1])), make(model.parameters(), lr=0.1))
    whole = with_signs(step.graph)
    base = with_maps_cut(whole, {(4, 4, 4): 2})
    tiled = tile(base, dict.fromkeys(rows_of(base), 2))
    pairs = zip(base.parts[0].inputs, whole.parts[0].inputs, strict=True)
    of = {one.view.base: other.view.base for one, other in pairs if one.view and other.view}
    return whole, tiled.graph, {s: (of[base], first) for s, (base, first) in tiled.origin.items()}


@pytest.mark.parametrize("adamw", [False, True])
def test_a_cut_step_passes(adamw: bool) -> None:
    whole, cut, held = pair(adamw=adamw)
    assert len(cut.ops) > 1.9 * len(whole.ops)
    check_cuts(whole, cut, held)


def changes(op: Op) -> Iterator[Op]:
    """The op with one thing wrong: another part of a tensor, another number, or another target."""
    for at, value in enumerate(op.arguments):
        wrong: list[Argument] = []
        if isinstance(value, View) and value.base != EMPTY:
            if value.offset:
                wrong.append(replace(value, offset=0))
        elif isinstance(value, float) and value:
            wrong.append(value * 1.5)
        for one in wrong:
            yield replace(op, arguments=(*op.arguments[:at], one, *op.arguments[at + 1 :]))
    for at, (name, value) in enumerate(op.keywords):
        if name in ("first", "channel") and value:
            keywords = (*op.keywords[:at], (name, 0), *op.keywords[at + 1 :])
            yield replace(op, keywords=keywords)
    if op.target == "micro.relu":
        yield replace(op, target="micro.gelu")


@pytest.mark.few(1)
@pytest.mark.parametrize("adamw", [False, True])
def test_every_change_to_a_cut_step_is_found(adamw: bool) -> None:
    whole, cut, held = pair(adamw=adamw)
    known = [(at, op) for at, one in enumerate(cut.ops) for op in changes(one)]
    assert len(known) > 40
    for at, op in random.Random(0).sample(known, 40):
        ops = (*cut.ops[:at], op, *cut.ops[at + 1 :])
        with pytest.raises(JudgeError):
            check_cuts(whole, replace(cut, ops=ops), held)


def test_an_op_that_is_missing_or_comes_too_early_is_found() -> None:
    whole, cut, held = pair(adamw=False)
    dropped = [at for at, op in enumerate(cut.ops) if op.mutates]
    assert len(dropped) > 20
    for at in dropped:
        with pytest.raises(JudgeError):
            check_cuts(whole, replace(cut, ops=(*cut.ops[:at], *cut.ops[at + 1 :])), held)
    reader = next(at for at, op in enumerate(cut.ops) if op.target == "micro.linear_input")
    late = next(
        at for at in range(reader + 1, len(cut.ops))
        if "weight_sgd" in cut.ops[at].target and set(cut.ops[at].mutates) & set(cut.ops[reader].reads)
    )  # fmt: skip
    ops = list(cut.ops)
    ops.insert(reader, ops.pop(late))
    with pytest.raises(JudgeError, match="leaves something else"):
        check_cuts(whole, replace(cut, ops=tuple(ops)), held)
