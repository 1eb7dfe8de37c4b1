"""Sizes, capacities and the command line."""

import json
import random

import pytest
import torch
from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.core import TightropeError
from tightrope_experts import capacity_of, limited, places_of
from tightrope_experts.sizes import ExpertSizes

RUN = CliRunner()
SIZES = ["--tokens", "4096", "--dim", "512", "--hidden", "128", "--experts", "16", "--k", "2"]


@pytest.mark.parametrize("seed", range(20))
def test_dropped_rows_are_those_that_come_last_at_a_full_expert(seed: int) -> None:
    draw = random.Random(seed)
    num_tokens, num_experts = draw.randint(1, 40), draw.randint(2, 6)
    k = draw.randint(1, num_experts)
    torch.manual_seed(seed)
    chosen = torch.rand(num_tokens, num_experts).topk(k).indices
    capacity = draw.randint(1, num_tokens)
    kept, lost = limited(chosen, num_experts, capacity)
    filled, dropped = [0] * num_experts, [0] * num_experts
    for choice in range(k):  # first choices first, then token by token
        for token in range(num_tokens):
            expert = int(chosen[token, choice])
            assert int(places_of(chosen, num_experts)[token, choice]) == filled[expert] + dropped[expert]
            if filled[expert] < capacity:
                filled[expert] += 1
                assert int(kept[token, choice]) == expert
            else:
                dropped[expert] += 1
                assert int(kept[token, choice]) == num_experts
    assert lost.tolist() == dropped


def test_capacities_are_those_of_tutel() -> None:
    assert capacity_of(1.0, 4096, 16, 2) == 512
    assert capacity_of(-1.5, 4096, 16, 1) == 384
    assert capacity_of(0, 4096, 16, 1) is None
    chosen = torch.tensor([[0], [0], [1]])
    same, none = limited(chosen, 2, None)
    assert same is chosen
    assert not none.any()


def test_the_command_says_bytes_and_rounds() -> None:
    done = RUN.invoke(app, ["experts", *SIZES, "--ranks", "4"])
    assert done.exit_code == 0
    assert "kept for the backward" in done.output
    found = json.loads(RUN.invoke(app, ["experts", *SIZES, "--ranks", "4", "--json"]).output)
    sizes = ExpertSizes(tokens=4096, dim=512, hidden=128, experts=16, k=2, ranks=4)
    assert found["kept"] == sizes.kept == 4096 * 2 * (256 * 4 + 8 + 4)
    assert found["worst"]["rows"] == 4 * found["even"]["rows"] == 4 * 8192
    assert found["worst"]["rounds"] == 32
    assert found["weights"] == 4 * (512 * 256 + 512 * 128) * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--k", "17"], "k=17: a token chooses at most 16 experts"),
        (["--ranks", "5"], "16 experts do not divide over 5 ranks"),
        (["--rows", "0"], "greater than or equal to 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: list[str], said: str) -> None:
    done = RUN.invoke(app, ["experts", *SIZES, *options])
    assert done.exit_code != 0
    assert said in f"{done.output}{done.exception}"


def test_sizes_are_looked_at_in_python_too() -> None:
    with pytest.raises(TightropeError, match="tokens=0"):
        ExpertSizes(tokens=0, dim=1, hidden=1, experts=1)
