"""Programs of several processes give the bits of one process; how their lines are counted."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.fabric import lines
from benchmarks.fabric.cases import alone, federated, games, pipeline, recommender

Train = Callable[[int], list[Tensor]]


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 3
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
def test_players_that_ask_the_learner_for_moves_give_the_bits_of_one_process() -> None:
    check(games.train(2), alone.games(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "expected"), [(pipeline.train, alone.pipeline), (recommender.train, alone.recommender)]
)
def test_modules_and_optimizers_elsewhere_give_the_bits_of_one_process(train: Train, expected: Train) -> None:
    check(train(2), expected(2))


@pytest.mark.slow
def test_a_client_that_is_killed_is_left_out_of_the_average() -> None:
    found = federated.train(3, lost=1)
    check(found, alone.federated(3, lost=1))
    assert not torch.equal(found[0], alone.federated(3)[0])


def test_lines_and_tokens_are_those_that_a_reader_counts() -> None:
    text = (
        '"""A module."""\n\nimport os  # why\n\n\ndef one() -> str:\n    """Say."""\n    return """a\nb"""\n'
    )
    code = lines.python_code(text)
    assert list(code) == [3, 6, 8, 9]
    assert code[3] == ["import", "os"]
    schema = lines.schema_code("message A {\n  // what\n  bytes data = 1;\n}\n\n")
    assert schema == {0: ["message", "A", "{"], 2: ["bytes", "data", "=", "1", ";"], 3: ["}"]}


@pytest.mark.parametrize("case", lines.CASES)
def test_every_version_calculates_what_is_counted_for_neither(case: str) -> None:
    ours, theirs = lines.counted(case)
    assert 0 < ours[0] < theirs[0]
    for name in (case, f"{case}_grpc"):
        text = (lines._FOLDER / f"{name}.py").read_text()
        assert "from benchmarks.fabric.cases import nets" in text
        assert "pickle" not in text
