"""What cannot be one graph runs at the highest level that works; a step that lives to the end is silent."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import tightrope


class Masked(nn.Module):
    """A size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x[x[:, 0] > 0])
        return result


class Sparse(nn.Module):
    """Gradients without a storage."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.table(ids) * 2
        return result


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(batch).sum().backward()
    return [parameter.grad.to_dense() for parameter in model.parameters() if parameter.grad is not None]


def test_a_size_that_depends_on_values_is_planned_in_pieces() -> None:
    torch.manual_seed(0)
    model, batch = Masked(), torch.randn(32, 16)
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert "depends on values" in tightrope.report(model).why


def test_sparse_gradients_run_at_level_0() -> None:
    torch.manual_seed(0)
    model, batch = Sparse(), torch.randint(0, 50, (32,))
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(model).level == "L0"


@pytest.mark.slow
def test_a_step_that_lives_to_the_end_of_the_process_says_nothing() -> None:
    script = (
        "import torch, tightrope\nmodel = torch.nn.Linear(8, 8)\n"
        "train = tightrope.step(lambda x: model(x).sum(), budget='64MiB', model=model, progress=False)\n"
        "train(torch.ones(2, 8))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


class Inverse(nn.Module):
    """A kernel that raises an error that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8) + 0.1 * torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.linalg.inv(self.weight)


class Volume(Inverse):
    """A kernel that takes integers that count from one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linalg.slogdet(self.weight)[1]


@pytest.mark.parametrize(("kind", "level"), [(Inverse, "L0"), (Volume, "L1")])
def test_linear_algebra_runs(kind: type[nn.Module], level: str) -> None:
    model, batch = kind(), torch.ones(4, 8)
    wanted = gradients(model, batch)
    model.zero_grad()
    found = gradients(tightrope.compile(model, budget="64MiB", progress=False), batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(model).level == level
