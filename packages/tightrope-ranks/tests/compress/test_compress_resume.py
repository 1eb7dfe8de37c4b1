"""An exchange goes on in other processes to the bit; a state that does not fit is refused."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compress_workers import join, start
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tightrope.core import JudgeError, PlanFileError
from tightrope_ranks.compress import GradientExchange, compress_gradients, seconds_of
from tightrope_ranks.compress.forecast import sent_of
from tightrope_ranks.compress.hook import WATCHED
from tightrope_ranks.values.exchange import ExchangePlan, ExchangeProblem, Message

CODECS = ("none", "bf16", "sign", "bits4")
BEFORE, AFTER = WATCHED + 5, 6


class Crossed(nn.Module):
    """Layers that run in another order than they are registered in: the first buckets of DDP are others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.first, self.middle = nn.Linear(64, 4), nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def mixed(problem: ExchangeProblem) -> ExchangePlan:
    """All codecs, next to each other, in messages of one or two gradients."""
    ends = (1, 2, 4, 5, 6)
    messages = tuple(Message(end, CODECS[number % len(CODECS)]) for number, end in enumerate(ends))
    return ExchangePlan(messages, seconds_of(problem, messages), sent_of(problem, messages), 0.0, "given")


class Training:
    """A net in training, and its exchange."""

    def __init__(self) -> None:
        self.net = Crossed()
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.001)
        self.exchange = compress_gradients(self.model, codecs=CODECS, choose=mixed, trials=0, timeout=30)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def run(self, first: int, behind: int) -> None:
        for step in range(first, behind):
            generator = torch.Generator().manual_seed(100 * step + distributed.get_rank())
            x = torch.randn(16, 32, generator=generator)
            self.optimizer.zero_grad()
            loss: Any = functional.cross_entropy(self.model(x), x[:, :4].argmax(1))
            loss.backward()
            self.optimizer.step()

    def save(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchange": self.exchange.state_dict(),
        }

    def load(self, saved: dict[str, Any], *, exchange: bool = True) -> None:
        self.net.load_state_dict(saved["net"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if exchange:
            self.exchange.load_state_dict(saved["exchange"])

    def bits(self) -> list[Tensor]:
        rests = self.exchange.residuals
        return [*self.net.state_dict().values(), *(rests[name] for name in sorted(rests))]


def _interrupted(rank: int, folder: str) -> None:
    join(rank, folder, 3)
    whole = Training()
    whole.run(0, BEFORE)
    assert {row[2] for row in whole.exchange.log} == set(CODECS)
    file = Path(folder, f"state{rank}.pt")
    torch.save(whole.save(), file)
    whole.run(BEFORE, BEFORE + AFTER)

    again = Training()
    again.load(torch.load(file, weights_only=True))
    came: list[int] = []
    take = again.exchange.on_bucket

    def noted(bucket: Any) -> Any:
        came.extend(one.numel() for one in bucket.parameters())
        return take(bucket)

    again.exchange.on_bucket = noted  # type: ignore[method-assign]
    again.run(BEFORE, BEFORE + 1)
    first = came[:]
    came.clear()
    again.run(BEFORE + 1, BEFORE + 2)
    assert first != came, "buckets of the first step are in another order"
    again.run(BEFORE + 2, BEFORE + AFTER)
    assert again.exchange.plan == whole.exchange.plan
    assert all(torch.equal(one, other) for one, other in zip(again.bits(), whole.bits(), strict=True))

    without = Training()
    without.load(torch.load(file, weights_only=True), exchange=False)
    without.run(BEFORE, BEFORE + AFTER)
    state = whole.net.state_dict()
    assert not all(torch.equal(one, state[name]) for name, one in without.net.state_dict().items())

    other = torch.load(Path(folder, f"state{(rank + 1) % 3}.pt"), weights_only=True)["exchange"]
    with pytest.raises(PlanFileError, match=f"is of rank {(rank + 1) % 3} of 3; this is rank {rank} of 3"):
        without.exchange.load_state_dict(other)
    mine = torch.load(file, weights_only=True)["exchange"]
    text = json.loads(mine["exchange"])
    mine["exchange"] = json.dumps(text | {"step": text["step"] + (rank == 1)})
    with pytest.raises(PlanFileError, match="different steps"):
        without.exchange.load_state_dict(mine)
    mine["exchange"] = json.dumps(text | {"step": -1 if rank == 1 else text["step"]})
    with pytest.raises(PlanFileError, match="contradict" if rank == 1 else "Another rank refused its state"):
        without.exchange.load_state_dict(mine)
    mine["exchange"] = json.dumps(text)
    without.exchange.load_state_dict(mine)  # the queue goes on
    for one in (whole, again, without):
        one.exchange.close()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    start(_interrupted, tmp_path, 3)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    meet = tmp_path_factory.mktemp("one") / "meet"
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    found = Training()
    found.run(0, BEFORE)
    yield found
    found.exchange.close()
    distributed.destroy_process_group()


def changed(text: str, **values: Any) -> str:
    return json.dumps(json.loads(text) | values)


def _sized(text: str) -> str:
    raw = json.loads(text)
    raw["problem"]["stream"]["sizes"][0] += 4
    return json.dumps(raw)


def _claimed(text: str) -> str:
    raw = json.loads(text)
    raw["plan"]["sent"] += 1
    return json.dumps(raw)


def _resting(change: Callable[[Tensor], Any]) -> Callable[[dict[str, Any]], Any]:
    """Change the last residual; what is before it must not be loaded alone."""

    def spoil(one: dict[str, Any]) -> dict[str, Any]:
        *_, (name, rest) = one["residuals"].items()
        return one | {"residuals": one["residuals"] | {name: change(rest)}}

    return spoil


def _renamed(text: str) -> str:
    return text.replace('"sign"', '"zip"')


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda one: [one], r"has the keys \['exchange', 'residuals'\]; given was list"),
        (lambda one: {"exchange": one["exchange"]}, "has the keys"),
        (lambda one: one | {"exchange": 5}, "must have a text"),
        (lambda one: one | {"exchange": "{"}, "exchange state"),
        (lambda one: one | {"exchange": one["exchange"] + "\ud800"}, r"has '\\ud800', which is no character"),
        (lambda one: one | {"exchange": one["exchange"].replace("sign", "\\ud800")}, "exchange state"),
        (
            lambda one: one | {"exchange": changed(one["exchange"], schema=9)},
            "schema 9; this version reads 1",
        ),
        (lambda one: one | {"exchange": changed(one["exchange"], step=-1)}, "contradict"),
        (lambda one: one | {"exchange": changed(one["exchange"], plan=None)}, "contradict"),
        (lambda one: one | {"exchange": changed(one["exchange"], more=1)}, "unknown field"),
        (
            lambda one: one | {"exchange": changed(one["exchange"], ranks=2)},
            "rank 0 of 2; this is rank 0 of 1",
        ),
        (
            lambda one: one | {"exchange": _sized(one["exchange"])},
            "6 gradients that are not the 6 of this model",
        ),
        (
            lambda one: one | {"exchange": _renamed(one["exchange"])},
            "the codec 'zip'; allowed are none, bf16",
        ),
        (lambda one: one | {"exchange": _claimed(one["exchange"])}, "bytes sent"),
        (lambda one: one | {"residuals": {"first.weight": torch.zeros(3)}}, "residual of 'first.weight'"),
        (lambda one: one | {"residuals": {"other": torch.zeros(3)}}, "residual of 'other'"),
        (lambda one: one | {"residuals": {"last.bias": torch.zeros(4).double()}}, "residual of 'last.bias'"),
        (lambda one: one | {"residuals": {"last.bias": 4}}, "residual of 'last.bias'"),
        (_resting(lambda rest: rest * math.nan), "residual of .* is not finite"),
        (_resting(lambda rest: rest + math.inf), "residual of .* is not finite"),
        (_resting(lambda rest: rest.to("meta")), "fits no gradient"),
        (_resting(lambda rest: rest.to_sparse()), "fits no gradient"),
        (_resting(lambda rest: rest[None]), "fits no gradient"),
        (lambda one: one | {"residuals": {}}, "has no residual of"),
        (lambda one: one | {"residuals": dict(list(one["residuals"].items())[1:])}, "has no residual of"),
    ],
)
def test_a_state_that_misfits_is_refused_and_changes_nothing(
    training: Training, spoil: Callable[[dict[str, Any]], Any], says: str
) -> None:
    exchange = training.exchange
    before = exchange.state_dict()
    with pytest.raises((PlanFileError, JudgeError), match=says):
        exchange.load_state_dict(spoil(exchange.state_dict()))
    after = exchange.state_dict()
    assert after["exchange"] == before["exchange"]
    assert all(after["residuals"][name] is rest for name, rest in before["residuals"].items())


def test_residuals_are_refused_where_they_would_be_ignored(training: Training) -> None:
    other = compress_gradients(DistributedDataParallel(Crossed()), codecs=CODECS, feedback=False)
    with pytest.raises(PlanFileError, match="feedback=False ignores"):
        other.load_state_dict(training.exchange.state_dict())
    other.close()


def test_a_state_saved_before_its_plan_ran_has_residuals_of_zeros(training: Training) -> None:
    whole, again = Training(), Training()
    step = 0
    while whole.exchange.plan is None:
        whole.run(step, step + 1)
        step += 1
    assert not whole.exchange.residuals
    saved = copy.deepcopy(whole.save())
    assert saved["exchange"]["residuals"]
    again.load(saved)
    for one in (whole, again):
        one.run(step, step + 3)
    assert all(torch.equal(one, other) for one, other in zip(whole.bits(), again.bits(), strict=True))
    assert any(one.any() for one in again.exchange.residuals.values())
    for one in (whole, again):
        one.exchange.close()


def test_a_state_without_a_plan_goes_on_watching(training: Training) -> None:
    other = compress_gradients(DistributedDataParallel(Crossed()), codecs=CODECS)
    state = other.state_dict()
    assert json.loads(state["exchange"])["plan"] is None
    other.load_state_dict(state)
    assert isinstance(other, GradientExchange)
    assert other.report().startswith("watching: 0")
    other.close()
