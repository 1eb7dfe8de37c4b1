"""Whole steps whose loss runs in chunks of rows where nothing fits without."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tightrope
from tightrope.capture import chunks
from tightrope.core import InfeasibleError, TightropeError, VerificationError
from tightrope.native.build import compiler
from tightrope.run.ledger.accounts import accounts
from tightrope.run.step import TrainingStep, step

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
ROWS, WIDTH, VOCABULARY = 256, 16, 4096


@pytest.fixture(autouse=True)
def _limits_end() -> Iterator[None]:
    yield
    gc.collect()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, VOCABULARY, bias=False),
    )  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids, labels = torch.randint(VOCABULARY, (2, ROWS), generator=generator).unbind(0)
    return ids, labels.where(torch.arange(ROWS) % 7 != 0, -100)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9, foreach=False)


def stepping(budget: str | int, net: nn.Module | None = None, **options: Any) -> TrainingStep:
    net = net or model()
    return step(
        lambda ids, labels: cross_entropy(net(ids), labels),
        budget=budget, model=net, optimizer=sgd(net), progress=False, **options,
    )  # fmt: skip


def smallest(**options: Any) -> int:
    """The number that a refusal names; nothing of the refused step is held afterwards."""
    gc.collect()
    found = named(**options)
    gc.collect()  # a refusal keeps the frames that it passed
    return found


def named(**options: Any) -> int:
    train = stepping(2**20, **options)
    with pytest.raises(InfeasibleError) as refused:
        train(*batch())
    assert refused.value.smallest_found is not None
    assert refused.value.lower_bound <= refused.value.smallest_found
    return refused.value.smallest_found


def trained(train: TrainingStep, num: int = 3) -> tuple[list[float], list[Tensor]]:
    losses = [float(train(*batch())) for _ in range(num)]
    return losses, [parameter.detach().clone() for parameter in train.model.parameters()]


@pytest.fixture(scope="module")
def eagerly() -> tuple[list[float], list[Tensor]]:
    with accounts().unlimited():
        net = model()
        optimizer, losses = sgd(net), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = cross_entropy(net(batch()[0]), batch()[1])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        optimizer.zero_grad()
    return losses, list(net.parameters())


def test_a_number_named_with_chunks_is_smaller_and_works(eagerly: tuple[list[float], list[Tensor]]) -> None:
    whole, least = smallest(chunk=False), smallest()
    held = accounts().charged()
    assert least - held < 0.5 * (whole - held)
    train = stepping(least, verify="graph")
    losses, parameters = trained(train)
    report = train.report()
    assert report.num_chunks == 8
    assert "8 chunks of rows" in str(report)
    assert "within a tolerance" in report.verified
    assert report.observed_total <= report.budget
    assert report.forecast_peak == report.observed_peak
    assert losses == pytest.approx(eagerly[0], rel=1e-6)
    del train
    with accounts().unlimited():
        for mine, other in zip(parameters, eagerly[1], strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_an_ample_budget_leaves_the_loss_whole(eagerly: tuple[list[float], list[Tensor]]) -> None:
    train = stepping("1GiB")
    losses, parameters = trained(train)
    assert train.report().num_chunks == 0
    assert losses == eagerly[0]
    assert all(torch.equal(*pair) for pair in zip(parameters, eagerly[1], strict=True))


@pytest.mark.slow
def test_no_more_chunks_than_it_takes() -> None:
    ample = smallest(chunk=4)
    train = stepping(ample + 2**16)
    train(*batch())
    assert train.report().num_chunks == 4


def test_the_comparison_finds_a_chunk_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    written = chunks._ChunkWriter.written

    def short(self: chunks._ChunkWriter) -> torch.fx.Graph:
        graph = written(self)
        gone = graph.find_nodes(op="call_function", target=torch.ops.aten.addmm_.default)[0]
        graph.erase_node(gone)
        return graph

    monkeypatch.setattr(chunks._ChunkWriter, "written", short)
    train = stepping(smallest(chunk=4) + 2**16, verify="graph", chunk=4)
    with pytest.raises(VerificationError, match="differs"):
        train(*batch())


@pytest.mark.slow
def test_gradients_of_parameters_without_an_optimizer() -> None:
    net = model()

    def loss(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(net(ids), labels)

    train = step(loss, budget=2**20, model=net, progress=False)
    with pytest.raises(InfeasibleError) as refused:
        train(*batch())
    assert refused.value.smallest_found is not None
    train = step(loss, budget=refused.value.smallest_found, model=net, progress=False, verify="graph")
    train(*batch())
    assert train.report().num_chunks
    found = [parameter.grad for parameter in net.parameters()]
    accounts().release(train)
    with accounts().unlimited():
        wanted = torch.autograd.grad(loss(*batch()), list(net.parameters()))
        for mine, other in zip(found, wanted, strict=True):
            assert mine is not None
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("chunk", [True, None, 1, 0.5, "all", -2])
def test_a_wrong_number_of_chunks_is_refused(chunk: Any) -> None:
    with pytest.raises(TightropeError, match="chunk="):
        stepping("1GiB", chunk=chunk)


def weighted(**options: Any) -> TrainingStep:
    net = model()

    def loss(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(net(ids), labels, weight=torch.ones(VOCABULARY))

    return step(loss, model=net, optimizer=sgd(net), progress=False, **options)


@pytest.mark.slow
def test_a_loss_that_cannot_be_split_is_named_with_what_keeps_it_whole() -> None:
    why = r"aten.nll_loss_forward.default \(test_chunked_step.py:\d+\) reads aten._log_softmax"
    with pytest.raises(TightropeError, match=f"chunk=4: the loss cannot be split.*{why}"):
        weighted(budget="1GiB", chunk=4)(*batch())
    with pytest.raises(InfeasibleError, match=f"The loss is not split.*{why}"):
        weighted(budget="1MiB")(*batch())
    with pytest.raises(InfeasibleError) as refused:
        weighted(budget="1MiB", chunk=False)(*batch())
    assert "split" not in str(refused.value)
    with pytest.raises(InfeasibleError, match=f"nothing wide in it has rows for chunk={2 * ROWS}"):
        stepping("1MiB", chunk=2 * ROWS)(*batch())


@pytest.mark.slow
def test_where_little_is_missing_finer_chunks_are_tried() -> None:
    train = stepping(smallest(chunk=16), verify="graph")
    train(*batch())
    assert train.report().num_chunks == 16  # 8 have 32 rows each


@pytest.mark.slow
def test_bits_of_eager_leave_the_loss_whole() -> None:
    with pytest.raises(TightropeError, match="bit for bit"):
        stepping("1GiB", chunk=4, verify="eager")
    train = stepping(smallest() + 2**16, verify="eager")
    with pytest.raises(InfeasibleError):
        train(*batch())


@pytest.mark.slow
def test_a_step_in_chunks_is_saved_and_runs_again(tmp_path: Path) -> None:
    train = stepping(smallest(chunk=4) + 2**18, chunk=4)
    train(*batch())
    with accounts().unlimited():
        tightrope.save(train, tmp_path / "step.tightrope", batch())
    loss = float(train(*batch()))
    del train
    gc.collect()
    found = tightrope.load(tmp_path / "step.tightrope", budget="1GiB")()
    assert float(found["loss"]) == loss
