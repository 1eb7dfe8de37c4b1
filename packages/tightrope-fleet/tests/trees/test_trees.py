"""One forest, whoever holds the data; refused by the judge where it is not what boosting gives."""

import dataclasses
import re

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score

from tightrope.core import InfeasibleError, PlanFileError, TightropeError
from tightrope_fleet.judge.trees import forest_problems, padded_bytes
from tightrope_fleet.secure import PartyGoneError, plain_sum
from tightrope_fleet.trees.bins import agree_cuts
from tightrope_fleet.trees.columns import train_over_columns
from tightrope_fleet.trees.forest import Forest, TreeNode, load_forest
from tightrope_fleet.trees.job import TreeJob, run_tree_job
from tightrope_fleet.trees.paillier import make_key
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.parties import PartyTable
from tightrope_fleet.trees.quality import auc
from tightrope_fleet.trees.rows import share_rows, train_over_rows
from tightrope_fleet.trees.table import read_table
from tightrope_fleet.trees.wire import Wire, forecast_grow, most_columns

pytest.importorskip("cryptography")

PARAMS = Boosting(trees=3, depth=4, bins=40)


@pytest.fixture(scope="module")
def breast():
    table, labels = load_breast_cancer(return_X_y=True)
    table = table.astype(np.float32)
    table[::9, 4] = np.nan
    table[:, 7] = np.round(table[:, 7], 2)
    return table, labels.astype(np.float64)


@pytest.fixture(scope="module")
def central(breast):
    return train_over_rows([PartyTable("all", *breast)], PARAMS)[0]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_any_number_of_parties_of_rows_gives_the_central_forest(breast, central, count, masks, skewed):
    parties = share_rows(*breast, count, seed=count, skewed=skewed)
    forest, cuts, wire = train_over_rows(parties, PARAMS, masks=masks)
    assert forest.hash == central.hash
    due = forecast_grow(PARAMS, int(cuts.starts[-1]))
    assert {wire.bytes_of(party.name) for party in parties} == {due}
    assert due == padded_bytes(PARAMS.trees, PARAMS.depth, PARAMS.leaves, int(cuts.starts[-1]))


@pytest.mark.parametrize("counts", [(30,), (15, 15), (4, 20, 6)])
def test_columns_in_the_clear_give_the_central_forest(breast, central, counts):
    ends = np.cumsum(counts)
    parts = np.split(breast[0], ends[:-1], axis=1)
    parties = [PartyTable(f"p{i}", part, breast[1] if i == 0 else None) for i, part in enumerate(parts)]
    assert train_over_columns(parties, PARAMS)[0].hash == central.hash


def test_encrypted_columns_give_the_central_forest(breast):
    pytest.importorskip("gmpy2")
    table, labels = breast[0][:120], breast[1][:120]
    params = Boosting(trees=2, depth=2, bins=8)
    parties = [PartyTable("a", table[:, :24], labels), PartyTable("b", table[:, 24:])]
    forest, _, wire = train_over_columns(parties, params, protection="paillier")
    assert forest.hash == train_over_rows([PartyTable("all", table, labels)], params)[0].hash
    assert wire.bytes_of("b") > 2 * 120 * 512


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": 9},
        {"loss": "squared"},
        {"gamma": 2.0},
        {"hessian": "one"},
        {"padded": False},
        {"bins": 255},
    ],
    ids=str,
)
def test_every_setting_gives_one_forest_too(breast, change):
    params = dataclasses.replace(PARAMS, **change)
    alone = train_over_rows([PartyTable("all", *breast)], params)[0]
    shared, _, wire = train_over_rows(share_rows(*breast, 3), params, masks=True)
    columns = [PartyTable("a", breast[0][:, :11], breast[1]), PartyTable("b", breast[0][:, 11:])]
    assert alone.hash == shared.hash == train_over_columns(columns, params)[0].hash
    if not params.padded:
        padded = train_over_rows(share_rows(*breast, 3), dataclasses.replace(params, padded=True))[2]
        assert wire.bytes_of("party0") < padded.bytes_of("party0")


def test_quantiles_are_exact_and_do_not_depend_on_parties(breast):
    table = breast[0]
    alone = agree_cuts([table], bins=16, summed=plain_sum)
    shared = agree_cuts(np.array_split(table, 5), bins=16, summed=plain_sum)
    for one, other in zip(alone.cuts, shared.cuts, strict=True):
        assert np.array_equal(one, other)
    column = np.sort(table[:, 0])
    ranks = -(-np.arange(1, 16) * len(column) // 16)
    assert np.array_equal(
        alone.cuts[0], np.unique(column[ranks - 1])[np.unique(column[ranks - 1]) > column[0]]
    )


def test_negative_values_and_zeros_of_both_signs_are_cut_in_order():
    table = np.array([[-2.5], [-0.0], [0.0], [3.0], [-7.0]], np.float32)
    assert agree_cuts([table], bins=9, summed=plain_sum).cuts[0].tolist() == [-2.5, 0.0, 3.0]


def _small(seed):
    random = np.random.default_rng(seed)
    table = random.integers(-3, 4, (40, 4)).astype(np.float32)
    table[random.random((40, 4)) < 0.15] = np.nan
    labels = (np.nan_to_num(table[:, 0]) + random.normal(0, 1, 40) > 0).astype(np.float64)
    return table, labels


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", [{}, {"leaves": 4}, {"loss": "squared"}, {"gamma": 0.5}], ids=str)
def test_the_judge_accepts_what_brute_force_gives(seed, change):
    table, labels = _small(seed)
    params = Boosting(**{"trees": 3, "depth": 3} | change)
    forest, cuts, _ = train_over_rows([PartyTable("all", table, labels)], params)
    cuts = [c.astype(np.float64) for c in cuts.cuts]
    assert forest_problems(forest.trees, forest.base, table.astype(float), labels, params, cuts) == []


@pytest.mark.parametrize("mutant", ["leaf", "cut", "side", "stump", "feature"])
def test_the_judge_refuses_forests_that_boosting_does_not_give(mutant):
    table, labels = _small(0)
    params = Boosting(trees=1, depth=3)
    forest, cuts, _ = train_over_rows([PartyTable("all", table, labels)], params)
    nodes = list(forest.trees[0])
    leaf = next(i for i, node in enumerate(nodes) if node.feature < 0)
    root = nodes[0]
    if mutant == "leaf":
        nodes[leaf] = msgspec.structs.replace(nodes[leaf], value=nodes[leaf].value * 1.01)
    elif mutant == "cut":
        nodes[0] = msgspec.structs.replace(root, cut=root.cut + 1)
    elif mutant == "side":
        nodes[0] = msgspec.structs.replace(root, left=root.right, right=root.left)
    elif mutant == "feature":
        nodes[0] = msgspec.structs.replace(root, feature=(root.feature + 1) % 4)
    else:
        nodes = [TreeNode(-1, value=0.0)]
    cuts = [c.astype(np.float64) for c in cuts.cuts]
    assert forest_problems([nodes], 0.0, table.astype(float), labels, params, cuts)


def test_quality_is_that_of_the_field(breast):
    table, labels = breast
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:400], order[400:]
    forest = train_over_rows([PartyTable("all", table[train], labels[train])], Boosting(trees=20))[0]
    score = forest.margin(table[test])
    assert auc(labels[test], score) == pytest.approx(roc_auc_score(labels[test], score))
    assert auc(labels[test], score) > 0.97


def test_digits_by_parties_of_rows():
    table, labels = load_digits(return_X_y=True)
    labels = (labels % 2).astype(np.float64)
    params = Boosting(trees=5, depth=3)
    shared = train_over_rows(share_rows(table.astype(np.float32), labels, 4), params, masks=True)[0]
    assert shared.hash == train_over_rows([PartyTable("all", table, labels)], params)[0].hash


def test_a_wire_limit_is_met_by_fewer_bins_or_refused(breast):
    parties = share_rows(*breast, 2)
    free = run_tree_job(parties, TreeJob(PARAMS))
    least = free.promises[0].observed
    result = run_tree_job(parties, TreeJob(PARAMS, wire_limit=int(least / 3)))
    assert result.params.bins < PARAMS.bins
    assert result.promises[0].holds
    assert result.promises[0].forecast == result.promises[0].observed
    with pytest.raises(InfeasibleError, match="with 2 bins per feature 3 trees take"):
        run_tree_job(parties, TreeJob(PARAMS, wire_limit=1000))


@pytest.mark.parametrize(
    ("leaves", "depth", "seed"),
    [(0, 4, 0), (0, 4, 1), (2, 4, 2), (5, 4, 3), (9, 4, 4), (1, 4, 5), (500, 2, 6)],
)
def test_bytes_over_columns_stay_within_their_forecast_and_limits_are_refused_at_once(leaves, depth, seed):
    random = np.random.default_rng(seed)
    table = random.normal(size=(50 + 13 * seed, 6)).astype(np.float32)
    labels = (table[:, 0] * table[:, 3] > 0).astype(float)
    parties = [
        PartyTable(f"p{at}", table[:, at : at + 2], labels if at == 0 else None) for at in range(0, 6, 2)
    ]
    params = Boosting(trees=3, depth=depth, leaves=leaves, child_weight=0.0)
    free = run_tree_job(parties, TreeJob(params, "columns")).promises[0]
    assert free.observed <= free.forecast <= 2 * free.observed
    tight = run_tree_job(parties, TreeJob(params, "columns", wire_limit=int(free.forecast * 0.7)))
    assert tight.promises[0].holds
    assert tight.params.bins < params.bins
    parties[1].fails_at = 1  # a training would end here
    with pytest.raises(InfeasibleError, match=r"the limit is 1000 B per party; .* take up to") as caught:
        run_tree_job(parties, TreeJob(params, "columns", wire_limit=1000))
    parties[1].fails_at = None
    named = int(re.search(r"up to (\d+) B", str(caught.value)).group(1))
    assert run_tree_job(parties, TreeJob(params, "columns", wire_limit=named)).promises[0].holds


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize(("leaves", "weight"), [(0, 0.0), (0, 1.0), (300, 1.0)])
def test_few_rows_bound_the_bytes_of_deep_trees_over_columns(leaves, weight, loss):
    random = np.random.default_rng(leaves)
    table = random.normal(size=(90, 4)).astype(np.float32)
    labels = (random.random(90) > 0.5).astype(float)
    parties = [PartyTable("a", table[:, :2], labels), PartyTable("b", table[:, 2:], None)]
    params = Boosting(trees=2, depth=14, leaves=leaves, child_weight=weight, loss=loss)
    promise = run_tree_job(parties, TreeJob(params, "columns", wire_limit="10MB")).promises[0]
    assert promise.observed <= promise.forecast < 8 * promise.observed
    assert promise.asked == 10_000_000
    assert promise.forecast < most_columns(params, rows=90, bins=180, parties=2) / (3 if leaves else 50)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"wire_limit": "ten"}, "wire_limit 'ten' is not an amount"),
        ({"wire_limit": 1.5}, "wire_limit 1.5 is not an amount of memory"),
        ({"wire_limit": -1}, "wire_limit"),
        ({"seconds_limit": "soon"}, "seconds_limit"),
    ],
)
def test_limits_that_are_none_are_refused_where_they_are_given(limits, said):
    with pytest.raises(TightropeError, match=said):
        TreeJob(PARAMS, **limits)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"y,a\n1,2\n\xff,3\n", "line 3: not UTF-8 text"),
        (b"y,a\n1,2\n0," + b"9" * 200_000 + b"\n", "line 3: not CSV: a value has more than"),
        (b'y,"a\nb"\n1,2\n,3\n', "line 4: the label 'y' is missing"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_by_its_line(tmp_path, data, said):
    (tmp_path / "bank.csv").write_bytes(data)
    with pytest.raises(TightropeError, match=f"bank.csv', {said}"):
        read_table(tmp_path / "bank.csv")


@pytest.mark.parametrize("leaves", [0, 6])
def test_nodes_in_which_a_party_has_one_value_alone_are_grown(leaves):
    random = np.random.default_rng(0)
    table = random.normal(size=(80, 2)).astype(np.float32)
    labels = (table[:, 0] > 0).astype(float)
    params = Boosting(trees=2, depth=4, leaves=leaves, child_weight=0.0)
    for same in (np.ones((80, 1), np.float32), (np.arange(80) == 0).astype(np.float32)[:, None]):
        both = PartyTable("both", np.hstack([table, same]), labels)
        apart = [PartyTable("labels", table, labels), PartyTable("rare", same)]
        found = run_tree_job(apart, TreeJob(params, "columns")).forest
        assert found.hash == run_tree_job([both], TreeJob(params)).forest.hash
    alone = run_tree_job([PartyTable("none", np.ones((80, 1), np.float32), labels)], TreeJob(params)).forest
    assert all(len(tree) == 1 for tree in alone.trees)


def test_a_party_that_stops_answering_is_named(breast):
    parties = share_rows(*breast, 3)
    parties[1].fails_at = 40
    with pytest.raises(PartyGoneError, match="'party1' does not answer: its message 40"):
        train_over_rows(parties, PARAMS, masks=True, wire=Wire())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Boosting(depth=0), "depth=0: give a whole number from 1 to 16"),
        (lambda: Boosting(loss="hinge"), "loss='hinge': give logistic or squared"),
        (lambda: PartyTable("a", np.zeros((2, 2)), np.zeros(3)), "2 rows need as many labels"),
        (lambda: PartyTable("a", np.array([[1.0, np.inf]])), "row 0, feature 1 is infinite"),
        (lambda: train_over_rows([], PARAMS), "give one or more"),
        (
            lambda: train_over_rows([PartyTable("a", np.ones((2, 1)), np.array([0, 2]))], PARAMS),
            "label 2 in row 1",
        ),
        (lambda: make_key(1024, fraction=32, largest=1.0, num_rows=9), "can be broken: give 2048"),
    ],
)
def test_bad_input_is_refused_by_name(make, message):
    with pytest.raises(TightropeError, match=message):
        make()


def test_a_forest_goes_through_a_file_and_a_damaged_one_is_refused(central, tmp_path):
    path = tmp_path / "forest.json"
    path.write_bytes(central.dump())
    assert load_forest(str(path)).hash == central.hash
    bad = Forest(("x",), 0.0, "squared", ((TreeNode(0, 1.0, False, 0, 0),),))
    path.write_bytes(bad.dump())
    with pytest.raises(PlanFileError, match=r"\$\.trees\[0\]\[0\]"):
        load_forest(str(path))


def test_paillier_is_that_of_another_library():
    phe = pytest.importorskip("phe.paillier")
    key = make_key(2048, fraction=32, largest=1.0, num_rows=9)
    public = phe.PaillierPublicKey(int(key.public.modulus))
    theirs = phe.PaillierPrivateKey(public, *(int(half.prime) for half in key._halves))
    sealed = key.encrypt(-5, 7)
    assert theirs.raw_decrypt(int(sealed)) == ((-5 + key.offset) << key.public.second_bits) + 7
    assert key.decrypt(sealed * key.encrypt(3, 1) % key.public.square, [2]) == [(-2, 8)]


def test_packed_sums_come_back():
    pytest.importorskip("gmpy2")
    key = make_key(2048, fraction=32, largest=1.0, num_rows=4000)
    pairs = [(place * 1001 - 9000, place) for place in range(key.public.pairs)]
    packed = key.public.pack([key.encrypt(*pair) for pair in pairs])
    assert key.decrypt(packed, [1] * len(pairs)) == pairs
    assert key.encrypt(1, 1) != key.encrypt(1, 1)
