"""Rows of a leaf, weights, classes and early stopping: one forest for any parties, judged, and predicted."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_wine

from tightrope.core.errors import PlanFileError, TightropeError
from tightrope_fleet.judge.trees import forest_problems, padded_bytes
from tightrope_fleet.trees.columns import train_over_columns
from tightrope_fleet.trees.forest import Forest, TreeNode, load_forest
from tightrope_fleet.trees.job import TreeJob, run_tree_job
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.parties import PartyTable, held_out
from tightrope_fleet.trees.private import Privacy
from tightrope_fleet.trees.rows import train_over_rows
from tightrope_fleet.trees.wire import forecast_grow

pytest.importorskip("cryptography")

SETTINGS: list[dict[str, Any]] = [
    {"min_rows": 6},
    {"weights": True},
    {"loss": "squared", "weights": True},
    {"loss": "softmax", "classes": 3},
    {"loss": "softmax", "classes": 3, "min_rows": 4, "weights": True},
    {"stop": 2, "trees": 30},
    {"stop": 2, "trees": 30, "min_rows": 3, "leaves": 5},
]


def small(
    seed: int, classes: int = 2
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Rows with gaps, labels, and weights of which some are 0."""
    random = np.random.default_rng(seed)
    table = random.integers(-3, 4, (60, 4)).astype(np.float32)
    table[random.random((60, 4)) < 0.15] = np.nan
    score = np.nan_to_num(table[:, 0]) + random.normal(0, 1, 60)
    labels = np.digitize(score, np.linspace(-1, 1, classes - 1) if classes > 2 else [0.0]).astype(np.float64)
    return table, labels, random.integers(0, 4, 60).astype(np.float64)


def made(change: dict[str, Any], seed: int) -> tuple[PartyTable, Boosting]:
    """One party of all rows, and what is asked for."""
    kept = {name: value for name, value in change.items() if name != "weights"}
    params = Boosting(**{"trees": 3, "depth": 3, "child_weight": 0.1} | kept)
    table, labels, weights = small(seed, params.classes or 2)
    return PartyTable("all", table, labels, weights if "weights" in change else None), params


def divided(party: PartyTable, count: int) -> list[PartyTable]:
    """Divide rows over parties."""
    parts = np.array_split(np.random.default_rng(1).permutation(len(party.table)), count)
    assert party.labels is not None
    return [
        PartyTable(
            f"p{at}", party.table[rows], party.labels[rows],
            None if party.weights is None else party.weights[rows],
        )
        for at, rows in enumerate(parts)
    ]  # fmt: skip


@pytest.mark.parametrize("change", SETTINGS, ids=str)
def test_any_parties_give_one_forest(change: dict[str, Any]) -> None:
    party, params = made(change, 0)
    alone = train_over_rows([party], params)[0]
    assert alone.hash == train_over_rows(divided(party, 4), params, masks=True)[0].hash
    if params.stop:  # rows are held out by their place where parties have other columns
        return
    columns = [
        PartyTable("a", party.table[:, :1], party.labels, party.weights), PartyTable("b", party.table[:, 1:])
    ]  # fmt: skip
    assert alone.hash == train_over_columns(columns, params)[0].hash


@pytest.mark.parametrize(
    "change", [{"min_rows": 6}, {"weights": True, "min_rows": 3}, {"stop": 2, "min_rows": 3}]
)
def test_encrypted_columns_give_the_forest_of_plain_ones(change: dict[str, Any]) -> None:
    party, params = made(change, 2)
    params = dataclasses.replace(params, trees=2, depth=2)
    columns = [
        PartyTable("a", party.table[:, :1], party.labels, party.weights), PartyTable("b", party.table[:, 1:])
    ]  # fmt: skip
    plain = train_over_columns(columns, params)[0]
    assert plain.hash == train_over_columns(columns, params, protection="paillier")[0].hash


@pytest.mark.few(9)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", SETTINGS, ids=str)
def test_the_judge_accepts_the_forest_and_its_bytes(change: dict[str, Any], seed: int) -> None:
    party, params = made(change, seed)
    job = run_tree_job([party], TreeJob(params))
    table, labels = party.table.astype(float), party.labels
    assert labels is not None
    weights = np.ones(60) if party.weights is None else party.weights
    weights = np.where(held_out(party, params), 0.0, weights)
    cuts = [c.astype(np.float64) for c in job.cuts.cuts]
    forest = job.forest
    assert forest_problems(forest.trees, forest.base, table, labels, params, cuts, weights=weights) == []
    if "weights" in change:
        assert forest_problems(forest.trees, forest.base, table, labels, params, cuts)
    bins, counted = int(job.cuts.starts[-1]), params.min_rows > 1
    each = padded_bytes(params.outputs, params.depth, params.leaves, bins, counted=counted)
    assert forecast_grow(params, bins) == params.trees * (each + 16 * (params.stop > 0))
    promise = job.promises[0]
    assert promise.forecast is not None
    assert promise.observed is not None
    assert promise.observed <= promise.forecast
    assert params.stop or promise.observed == promise.forecast


def test_the_judge_refuses_a_leaf_with_fewer_rows() -> None:
    party, params = made({}, 0)
    forest, cuts, _ = train_over_rows([party], params)
    assert party.labels is not None
    strict = dataclasses.replace(params, min_rows=12)
    table, where = party.table.astype(float), [c.astype(np.float64) for c in cuts.cuts]
    assert forest_problems(forest.trees, forest.base, table, party.labels, strict, where)


def test_leaves_hold_as_many_rows_as_asked_for() -> None:
    party, params = made({"min_rows": 9, "depth": 6, "trees": 1}, 3)
    forest = train_over_rows([party], params)[0]
    _, counts = np.unique(forest.margin(party.table), return_counts=True)
    assert counts.min() >= 9
    assert len(counts) > 1


def test_a_weight_is_as_good_as_a_copy_of_the_row() -> None:
    party, params = made({"weights": True}, 1)
    assert party.weights is not None
    assert party.labels is not None
    times = party.weights.astype(int)
    copied = PartyTable("all", party.table.repeat(times, axis=0), party.labels.repeat(times))
    fine = dataclasses.replace(params, bins=255)
    one, other = train_over_rows([party], fine)[0], train_over_rows([copied], fine)[0]
    assert np.allclose(one.margin(party.table), other.margin(party.table), atol=1e-6)


def test_training_stops_where_held_out_rows_get_no_better() -> None:
    party, params = made({"stop": 3, "trees": 200, "rate": 0.5}, 0)
    seen: list[int] = []
    forest = train_over_rows([party], params, progress=seen.append)[0]
    assert 0 < len(forest.trees) < 200
    assert seen[-1] == len(forest.trees) + 3
    held = held_out(party, params)
    assert 0 < held.sum() < 30


def test_classes_are_told_apart_as_well_as_by_others() -> None:
    table, labels = load_wine(return_X_y=True)
    table, labels = table.astype(np.float32), labels.astype(np.float64)
    train = np.arange(len(table)) % 3 > 0
    params = Boosting(trees=20, depth=3, loss="softmax", classes=3)
    forest = train_over_rows([PartyTable("all", table[train], labels[train])], params)[0]
    chance = forest.predict(table[~train])
    assert np.allclose(chance.sum(axis=1), 1)
    assert (chance.argmax(axis=1) == labels[~train]).mean() > 0.9


@pytest.mark.slow
def test_ten_digits() -> None:
    table, labels = load_digits(return_X_y=True)
    train = np.arange(len(table)) % 4 > 0
    params = Boosting(trees=30, depth=4, rate=0.3, loss="softmax", classes=10, min_rows=2)
    party = PartyTable("all", table[train].astype(np.float32), labels[train].astype(np.float64))
    forest = train_over_rows([party], params)[0]
    right = forest.predict(table[~train].astype(np.float32)).argmax(axis=1) == labels[~train]
    assert right.mean() > 0.95


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": "softmax"}, "classes=0: give a whole number from 2"),
        ({"classes": 3}, "classes=3: give a whole number from 0 to 0"),
        ({"min_rows": 0}, "min_rows=0"),
        ({"stop": -1}, "stop=-1"),
        ({"hold_out": 1.0}, "hold_out=1.0: give a share"),
    ],
)
def test_settings_that_are_none_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        Boosting(**change)


def test_rows_that_do_not_fit_are_refused(tmp_path: Any) -> None:
    table, labels, weights = small(0, 3)
    with pytest.raises(TightropeError, match="a weight is below 0"):
        PartyTable("a", table, labels, weights - 1)
    with pytest.raises(TightropeError, match="the softmax loss takes 0 to 1"):
        train_over_rows([PartyTable("a", table, labels)], Boosting(loss="softmax", classes=2))
    for change in ({"stop": 2}, {"min_rows": 2}):
        params = Boosting(hessian="one", child_weight=0.0, **change)
        with pytest.raises(TightropeError, match="early stopping or a smallest number"):
            train_over_rows([PartyTable("a", table, labels > 1)], params, privacy=Privacy(1.0, ((-4, 4),)))
    with pytest.raises(TightropeError, match="takes no weights"):
        train_over_rows(
            [PartyTable("a", table, labels > 1, weights)], Boosting(hessian="one", child_weight=0.0),
            privacy=Privacy(1.0, ((-4, 4),)),
        )  # fmt: skip
    path = tmp_path / "forest.json"
    leaf = (TreeNode(-1),)
    for wrong in (
        Forest(("x",), 0.0, "softmax", (leaf, leaf, leaf), 2),
        Forest(("x",), 0.0, "squared", (leaf, leaf), 2),
    ):
        path.write_bytes(wrong.dump())
        with pytest.raises(PlanFileError):
            load_forest(str(path))
    good = Forest(("x",), 0.0, "softmax", (leaf, leaf), 2)
    path.write_bytes(good.dump())
    assert load_forest(str(path)) == good
