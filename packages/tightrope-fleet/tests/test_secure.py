"""Sums are exact, messages tell nothing, and parties may go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("cryptography")

from tightrope.core import TightropeError
from tightrope_fleet.secure import (
    PartyGoneError,
    agree,
    expand,
    from_words,
    join_secret,
    plain_sum,
    split_secret,
    to_words,
)
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.rows import share_rows, train_over_rows
from tightrope_fleet.trees.wire import Wire

NAMES = ["a", "b", "c", "d", "e"]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=2, max_size=5))
def test_a_masked_sum_is_the_plain_one(vectors):
    words = [to_words(np.array(vector)) for vector in vectors]
    group = agree(NAMES[: len(words)])
    for round_ in range(2):
        sent = {m.name: m.mask(w, round_=round_) for m, w in zip(group.members, words, strict=True)}
        assert np.array_equal(group.total(sent, round_=round_), plain_sum(words))


@pytest.mark.parametrize("gone", [(), ("a",), ("e",), ("b", "d")])
def test_a_sum_survives_parties_that_go(gone):
    words = {name: to_words(np.arange(7.0) * place) for place, name in enumerate(NAMES)}
    group = agree(NAMES, recover=True, threshold=3)
    sent = {m.name: m.mask(words[m.name]) for m in group.members if m.name not in gone}
    due = plain_sum([words[name] for name in sent])
    assert np.array_equal(group.total(sent), due)


def test_too_few_parties_are_refused_by_name():
    group = agree(NAMES, recover=True, threshold=4)
    sent = {m.name: m.mask(to_words(np.ones(1))) for m in group.members[:3]}
    with pytest.raises(PartyGoneError, match="'d' does not answer in round 0: 3 of 5 did and 4 of 5 have to"):
        group.total(sent)
    with pytest.raises(PartyGoneError, match="all have to"):
        agree(NAMES).total({})


def test_both_secrets_of_a_party_are_never_given():
    group = agree(NAMES, recover=True)
    member = group.members[0]
    member.reveal("b", "own")
    with pytest.raises(TightropeError, match="will not give the pair share too"):
        member.reveal("b", "pair")


def test_a_mask_is_used_once():
    member = agree(["a", "b"]).members[0]
    member.mask(to_words(np.ones(1)))
    with pytest.raises(TightropeError, match="never used twice"):
        member.mask(to_words(np.ones(1)))


@pytest.mark.parametrize(("names", "threshold"), [(["a"], None), (["a", "a"], None), (NAMES, 2), (NAMES, 6)])
def test_agreements_that_keep_nothing_secret_are_refused(names, threshold):
    with pytest.raises(TightropeError):
        agree(names, recover=threshold is not None, threshold=threshold)


def test_fewer_shares_than_the_threshold_give_something_else():
    secret = bytes(range(32))
    shares = split_secret(secret, 5, 3)
    assert join_secret(shares[:3]) == join_secret(shares[2:]) == secret
    assert join_secret(shares[:2]) != secret


def test_fixed_point_refuses_what_does_not_fit():
    assert from_words(to_words(np.array([2.0**-32, -3.25]))).tolist() == [2.0**-32, -3.25]
    for value in (np.inf, np.nan, 2.0**31):
        with pytest.raises(TightropeError, match="fixed point"):
            to_words(np.array([value]))


def test_every_word_of_a_mask_is_different_and_they_are_uniform():
    words = expand(b"k" * 32, 20_000, 0)
    assert len(np.unique(np.concatenate([words, expand(b"k" * 32, 20_000, 1)]))) == 40_000
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 0.01


def test_what_the_server_sees_does_not_depend_on_the_data():
    random = np.random.default_rng(0)
    seen = []
    for scale in (1.0, 100.0):
        table = (random.normal(size=(200, 4)) * scale).astype(np.float32)
        labels = (table[:, 0] > scale).astype(np.float64)
        wire = Wire(keep=True)
        train_over_rows(
            share_rows(table, labels, 2), Boosting(trees=1, depth=3, bins=16), masks=True, wire=wire
        )
        seen.append(np.concatenate([words for _, words in wire.seen]) / 2.0**64)
    assert len(seen[0]) == len(seen[1])
    assert stats.ks_2samp(*seen).pvalue > 1e-4
    assert all(stats.kstest(one, "uniform").pvalue > 1e-4 for one in seen)
