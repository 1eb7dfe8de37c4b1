"""Training over ranks gives what one process gives; few bits give its accuracy; bytes are as planned."""

import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_workers import dense, died, trained
from msgspec.structs import replace as changed

from benchmarks.graphs.made import clustered
from tightrope.core import InfeasibleError, RankError
from tightrope_ranks import run_ranks
from tightrope_ranks.graphs.layers import EdgeBlock, build
from tightrope_ranks.graphs.planning import GraphOptions, columns_of, complete, plan
from tightrope_ranks.graphs.traffic import uniform
from tightrope_ranks.graphs.training import GraphJob, jobs_of
from tightrope_ranks.judge.graphs import check_graph_plan
from tightrope_ranks.values.graphs import NodeGraph

SMALL = clustered(3, num=300, clusters=4, columns=20, mixed=0.3)
LARGE = clustered(5, num=1200, mixed=0.2, columns=32)
APART = NodeGraph(
    np.stack([np.arange(200), np.arange(200) ^ 1]),  # pairs
    np.eye(200, 6, dtype=np.float32),
    np.arange(200) % 3,
    np.arange(200) < 50,  # of the first rank alone
    *np.zeros((2, 200), bool),
)
FLOATS = [GraphOptions(model=model, bits=32, epochs=1, hidden=16) for model in ("gcn", "sage", "gat")]
CHOSEN = [GraphOptions(bits=bits, epochs=40, hidden=32, every=15, group=20) for bits in (32, None)]
GAT = GraphOptions(model="gat", bits=4, epochs=2, hidden=16)


def with_holds(ranks: int, *holds: tuple[str, ...]) -> list[GraphJob]:
    """Give a training whose ranks hold their halos in these ways, in turn."""
    jobs = jobs_of(SMALL, ranks, GAT)
    draft = changed(jobs[0].plan, holds=tuple(holds[rank % len(holds)] for rank in range(ranks)))
    made = complete(draft, uniform(draft, 4))
    check_graph_plan(SMALL.edges, made)
    return [replace(job, plan=made) for job in jobs]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ranks, folder = request.param, tmp_path_factory.mktemp("jobs")
    with pytest.raises(InfeasibleError) as refused:
        plan(SMALL, ranks, replace(GAT, limit=1))
    jobs = [jobs_of(SMALL, ranks, one) for one in FLOATS]
    jobs.append(with_holds(ranks, ("kept", "kept", "kept")))
    jobs.append(with_holds(ranks, ("kept", "packed", "fetched"), ("kept", "fetched", "fetched")))
    jobs.append(with_holds(ranks, ("fetched", "fetched", "packed"), ("kept", "packed", "kept")))
    jobs.append(jobs_of(SMALL, ranks, replace(GAT, limit=refused.value.smallest_found)))
    jobs.append(jobs_of(APART, ranks, GraphOptions(epochs=7), np.arange(200) * ranks // 200))
    jobs += [jobs_of(LARGE, ranks, one) for one in CHOSEN] if ranks == 2 else []
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    found = list(zip(*run_ranks(trained, ranks, str(folder)), strict=True))
    return {"ranks": ranks, "floats": found[:3], "held": found[3:7], "apart": found[7], "chosen": found[8:]}


def test_floats_give_loss_and_gradients_of_one_process(answers: dict[str, Any]) -> None:
    for options, ranks in zip(FLOATS, answers["floats"], strict=True):
        loss, gradients = dense(SMALL, options.model, build(options.model, columns_of(SMALL, options), 0))
        for told, _, _ in ranks:
            assert abs(told["losses"][0] - loss) <= 1e-6
            for name, grad in gradients.items():
                assert float((told["gradients"][name] - grad).abs().max()) <= 1e-6, (options.model, name)


def test_whatever_is_held_of_halos_the_bytes_are_those_of_the_plan(answers: dict[str, Any]) -> None:
    for ranks in answers["held"]:
        for rank, (told, sent, peak) in enumerate(ranks):
            made = told["plan"]
            assert (peak, sent) == (made.peaks[rank], made.sent[rank])
            assert made.limit is None or peak <= made.limit
    assert answers["held"][3][0][0]["plan"].limit is not None


def test_halos_that_are_packed_or_sent_again_give_the_bits_of_those_that_are_kept(
    answers: dict[str, Any],
) -> None:
    kept, mixed = (ranks[0][0] for ranks in answers["held"][:2])
    assert kept["losses"] == mixed["losses"]
    assert all(torch.equal(one, kept["state"][name]) for name, one in mixed["state"].items())


def test_parts_without_edges_between_them_and_without_labels_are_trained(answers: dict[str, Any]) -> None:
    for told, sent, peak in answers["apart"]:
        assert told["plan"].routes == told["plan"].messages == ()
        assert sent == peak == 0
        assert told["losses"][-1] < told["losses"][0]
        assert told["accuracy"].keys() == {"train"}


def test_chosen_bits_reach_the_accuracy_of_floats_and_are_judged(answers: dict[str, Any]) -> None:
    if answers["ranks"] != 2:
        pytest.skip("these two trainings run on two ranks")
    floats, few = (ranks[0][0] for ranks in answers["chosen"])
    assert floats["accuracy"]["test"] > 0.8
    assert few["accuracy"]["test"] >= floats["accuracy"]["test"] - 0.003
    check_graph_plan(LARGE.edges, few["plan"])
    used = {bits for message in few["plan"].messages for bits in message.widths}
    assert used <= {2, 4, 8}
    assert len(used) > 1
    bound, found = few["plan"].bound
    assert bound <= found <= bound * 1.05
    assert max(few["plan"].sent) < max(floats["plan"].sent) / 4
    assert few["forecast"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_ends_every_other_rank_in_ten_seconds(tmp_path: Path, how: int) -> None:
    options = FLOATS[0] if how == signal.SIGKILL else replace(FLOATS[0], silence=9.0)
    (tmp_path / "jobs").write_bytes(pickle.dumps([jobs_of(SMALL, 3, options)]))
    with pytest.raises(
        RankError, match=r"(?s)rank 0: RankError: .* did not come through.*Another rank"
    ) as error:
        run_ranks(died, 3, str(tmp_path), how, seconds=100)
    assert "rank 1: ended with exit code -9" in str(error.value)
    assert "rank 2: RankError: " in str(error.value)
    for rank in (0, 2):
        assert float((tmp_path / f"noticed{rank}").read_text()) <= 10


@pytest.mark.parametrize("options", FLOATS, ids=lambda one: one.model)
def test_layers_that_read_sums_alone_keep_no_halo(options: GraphOptions) -> None:
    edges = jobs_of(SMALL, 2, options)[0].part.marginal
    block, rows = EdgeBlock(edges), torch.ones(edges.rows, 20, requires_grad=True)
    layer, held = build(options.model, (20, 8), 0)[0], []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (held.append(one), one)[1], lambda one: one):
        layer(rows, block)
    places = [one.untyped_storage().data_ptr() for one in held]
    assert (rows.untyped_storage().data_ptr() in places) == (options.model == "gat")


def test_one_rank_needs_no_message() -> None:
    made = plan(SMALL, 1)
    assert made.routes == made.messages == ()
    assert made.peaks == made.sent == (0,)
    assert np.unique(made.owner).tolist() == [0]
