"""Errors of codecs are measured in real steps, and default codecs that are too rough never run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import pytest
import torch
from compress_workers import join, net, start, train
from msgspec.structs import replace
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compress.problems import random_problem
from tightrope.core import InfeasibleError, JudgeError, TightropeError
from tightrope_ranks.compress import Link, accepts, compress_gradients, hook, plan_exchange
from tightrope_ranks.compress.calibrate import relative_errors
from tightrope_ranks.compress.codecs import CODECS, DEFAULT_CODECS, MOST_ERROR, Encoded
from tightrope_ranks.compress.queue import MessageQueue
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import ExchangeLimits, ExchangeProblem


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageQueue]:
    meet = tmp_path_factory.mktemp("one") / "meet"
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    found = MessageQueue()
    yield found
    found.close()
    distributed.destroy_process_group()


def errors(names: Sequence[str], given: list[Tensor], queue: MessageQueue) -> list[float]:
    assert distributed.group.WORLD is not None
    ids = range(len(given))
    return relative_errors(
        names, given, [one.clone() for one in given], ids, 3, queue, distributed.group.WORLD
    )


def test_errors_are_those_of_the_definition(queue: MessageQueue) -> None:
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    sign, half, none = errors(("sign", "bf16", "none"), [x, torch.zeros(7)], queue)
    expected = (1 - x.abs().mean() ** 2 / x.square().mean()).sqrt()  # of a block that is one size and a sign
    assert sign == pytest.approx(float(expected), rel=1e-5)
    off = (x.to(torch.bfloat16).float() - x).norm() / x.norm()
    assert half == pytest.approx(float(off), rel=1e-5)
    assert none == 0


def test_one_gradient_that_vanishes_counts_however_large_the_others_are(queue: MessageQueue) -> None:
    assert errors(("fp16", "bf16"), [torch.ones(1000), torch.full((10,), 1e-9)], queue) == [
        pytest.approx(1.0),
        pytest.approx(0.0, abs=MOST_ERROR),
    ]
    infinite = errors(("fp16", "none"), [torch.full((10,), 1e6)], queue)
    assert infinite[0] > 1e5
    assert infinite[1] == 0


def test_defaults_have_no_codec_with_a_scale_per_block() -> None:
    """Whether of one bit or of more: their error depends on the gradients, and sign ruins training."""
    assert {CODECS[name].kind for name in DEFAULT_CODECS} == {"reduce"}
    assert DEFAULT_CODECS[0] == "none"


def rough(problem: ExchangeProblem) -> ExchangeProblem:
    codecs = (replace(problem.codecs[0], error=0.2), replace(problem.codecs[1], error=0.001))
    return replace(problem, codecs=codecs)


@pytest.mark.parametrize("seed", range(6))
def test_plans_keep_the_limit_of_the_error_and_their_bound_is_that_of_what_is_left(seed: int) -> None:
    problem = rough(random_problem(seed, 6, 2))
    limited = replace(problem, limits=ExchangeLimits(error=0.01))
    plan = plan_exchange(limited)
    check_exchange(limited, plan, exhaustive=True)
    alone = plan_exchange(replace(problem, codecs=problem.codecs[1:]))
    assert plan.messages == alone.messages
    with pytest.raises(InfeasibleError, match=r"'codec1', the most exact codec, has 0\.001"):
        plan_exchange(replace(problem, limits=ExchangeLimits(error=1e-4)))


def test_the_judge_refuses_a_codec_above_the_limit() -> None:
    problem = rough(random_problem(2, 6, 2))
    plan = plan_exchange(replace(problem, codecs=problem.codecs[:1]))
    check_exchange(problem, plan)
    with pytest.raises(JudgeError, match=r"'codec0' has a relative error of 0\.2; the limit is 0\.1"):
        check_exchange(replace(problem, limits=ExchangeLimits(error=0.1)), plan)


def _nine_tenths(encoded: Encoded, tensors: Sequence[Tensor], ranks: int) -> None:
    CODECS["bits8"].decode(encoded, tensors, ranks)
    for one in tensors:
        one.mul_(0.9)


def _refused_on_one(rank: int) -> None:
    model: Any = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    for wrong, says in (
        ({"timeout": -1}, "timeout=-1"),
        ({"codecs": [["a"]]}, r"codecs=\[\['a'\]\]"),
        ({}, "mixed_precision"),
    ):
        whole, given = model.mixed_precision, wrong if rank == 1 else {}
        model.mixed_precision = object() if rank == 1 and not wrong else whole
        with pytest.raises(TightropeError, match=says if rank == 1 else "Another rank refused its model"):
            compress_gradients(model, **given)
        model.mixed_precision = whole
    exchange = compress_gradients(model, codecs=("none",))  # nothing is left of the calls that were refused
    train(model, 1, rank)
    exchange.close()


def _planted(rank: int, folder: str) -> None:
    join(rank, folder, 2)
    codecs: Any = CODECS
    codecs["rough"] = with_changes(CODECS["bits8"], name="rough", decode=_nine_tenths)
    planted: Any = accepts
    for defaults, limit, chosen in (
        (("none", "rough"), None, "none"),
        (("none", "rough"), 0.2, "rough"),
        (DEFAULT_CODECS, None, "bf16"),
    ):
        planted.DEFAULT_CODECS = defaults
        model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
        exchange = compress_gradients(model, error=limit, trials=1, link=Link(rate=1e6))
        ran: set[str] = set()

        def note(step: int, ran: set[str] = ran, one: hook.GradientExchange = exchange) -> None:
            ran.update(row[2] for row in one.log)

        train(model, 40, 0, note)
        assert exchange.problem is not None
        assert not exchange.trying
        assert {row[2] for row in exchange.log} == {chosen}
        assert chosen != "none" or ran == {"none"}, "what is too rough runs in no step"
        found = {one.name: one.error for one in exchange.problem.codecs}
        assert found.get("rough", 0.1) == pytest.approx(0.1, rel=0.1)
        assert 1e-4 < found.get("bf16", 2e-3) < MOST_ERROR
        assert f"relative errors: none {found['none']:.2g}" in exchange.report()
        exchange.close()
    with pytest.raises(TightropeError, match="different models or arguments"):
        compress_gradients(DistributedDataParallel(net()), trials=rank)
    _refused_on_one(rank)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_a_planted_rough_codec_is_excluded_and_an_exact_one_is_chosen(tmp_path: Path) -> None:
    start(_planted, tmp_path, 2)
