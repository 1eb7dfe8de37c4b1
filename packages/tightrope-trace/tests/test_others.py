"""Nets of the families of the benchmark: right with the model, never wrong where all is said to be proved."""

import warnings

import pytest

from benchmarks.recorder.families import FAMILIES
from benchmarks.recorder.others import Score, observed, score, told
from tightrope_trace import annotate, parse_profile

WAYS = ("model", "model, no args", "model, watched", "names", "names, no args")


def scores(family: str, seed: int) -> dict[str, Score]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about settings of its encoders
        return told(family, seed)


def check(family: str, seed: int) -> dict[str, Score]:
    found = scores(family, seed)
    assert set(found) == set(WAYS)
    for way, one in found.items():
        assert not one.misleads, (way, one)
        assert not one.silent or way == "model, watched", (way, one)
    assert found["model"].right == found["model"].match * 100 == 100
    assert found["model, no args"].right >= 97
    assert found["model"].stages >= 99
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_nets_are_told_with_the_model_and_doubted_without_it(family: str) -> None:
    check(family, 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_nets_are_told_with_the_model_and_doubted_without_it(family: str) -> None:
    for seed in range(50, 62):
        check(family, seed)


@pytest.mark.few(1)
@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "seed", "least"),
    [
        ("torch_transformer", 14, 97.0), ("own_transformer", 16, 97.0), ("recommender", 4, 100.0),
        ("ranged_recommender", 5, 100.0), ("graph", 18, 100.0), ("experts", 16, 99.0), ("siamese", 1, 100.0),
    ],
)  # fmt: skip
def test_names_alone_tell_what_they_once_did_not(family: str, seed: int, least: float) -> None:
    found = scores(family, seed)["names, no args"]
    assert found.right >= least
    assert found.stages >= 96


def test_accumulated_gradients_are_of_the_module_that_made_them_where_numbers_are_known() -> None:
    truth = observed("plain", 0)
    found = score(annotate(parse_profile(truth.data), truth.modules), truth, 0)
    assert found.right == 100.0
