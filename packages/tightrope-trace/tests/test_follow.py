"""Profiles told with the model at hand: one forward without values, found again among the ops."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.cli.command import run
from tightrope.core import Doubt, Module, TightropeError
from tightrope_trace import DryRun, annotate, dry_run, parse_profile, read
from tightrope_trace.follow import follow

TREE = (Module("", "Net"), Module("a", "Linear", 0), Module("b", "Block", 0), Module("b.c", "Linear", 2))
RUN = DryRun(TREE, ("linear", "relu", "linear", "mul"), (1, 0, 3, 2))


def told(*names: str, groups: list[int] | None = None, native: bool = True) -> list[tuple[int, str]]:
    found = follow(names, groups or [0] * len(names), RUN, native=native)
    return [(owner, doubt.value) for owner, doubt in zip(found.owners, found.doubts, strict=True)]


def match(*names: str) -> float | None:
    return follow(names, [0] * len(names), RUN).match


STEP = ("linear", "relu", "linear", "mul")
SURE = [(1, "none"), (0, "none"), (3, "none"), (2, "none")]


def test_a_forward_that_is_found_as_it_is_is_proved() -> None:
    assert told("stack", *STEP, "mean") == [(0, "none"), *SURE, (0, "none")]
    assert match("stack", *STEP, "mean", *STEP) == 1.0
    assert told(*STEP, *STEP, groups=[0] * 4 + [1] * 4) == SURE * 2


@pytest.mark.parametrize("native", [True, False])
def test_an_op_more_is_of_the_module_around_and_in_doubt(native: bool) -> None:
    found = told("linear", "relu", "linear", "isfinite", "mul", native=native)
    assert found == [*SURE[:3], (2, "place"), (2, "place")]
    between = told("linear", "relu", "isfinite", "linear", "mul", native=native)
    assert between == [*SURE[:2], (0, "place"), *SURE[2:]]
    assert match("linear", "relu", "isfinite", "linear", "mul") == pytest.approx(0.8)


def test_a_model_beside_the_one_at_hand_is_outside_and_no_proof() -> None:
    found = follow([*STEP, "conv2d", "batch_norm"], [0] * 6, RUN)
    assert found.owners[4:] == [0, 0]
    assert found.match == pytest.approx(4 / 6)


def test_a_profile_without_the_model_does_not_match() -> None:
    assert match("conv2d", "batch_norm", "relu") == 0.0


class Shared(nn.Module):
    """One block under two names, a norm with running means, and a head that shares the table's weights."""

    def __init__(self, choose: bool = False) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.first, self.again, self.choose = block, block, choose
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.again(self.first(self.table(tokens)))
        if self.choose and x.sum() > 1e9:
            x = -x
        scores: torch.Tensor = self.head(x)
        return scores


@pytest.mark.parametrize("choose", [False, True])
def test_a_dry_run_leaves_everything_as_it_was(choose: bool) -> None:
    model, tokens = Shared(choose), torch.tensor([0, 1, 2])
    before = {name: (id(value), value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    state = torch.get_rng_state()
    found = dry_run(model, (tokens,))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict(keep_vars=True).items():
        assert id(value) == before[name][0]
        assert torch.equal(value, before[name][1])
    assert not any(module._forward_hooks for module in model.modules())
    paths = [found.modules[owner].path for owner in found.owners]
    layers = [path for path, name in zip(paths, found.names, strict=True) if name == "aten::linear"]
    assert layers == ["first.0", "first.0", "head"]
    model(tokens)[0, 0].item()  # values are there again


def test_a_forward_that_fails_says_so() -> None:
    with pytest.raises(TightropeError, match="one forward of Linear on the inputs given fails: RuntimeError"):
        dry_run(nn.Linear(3, 3), (torch.ones(2, 4),))


class Swapped(nn.Module):
    """Two layers alike that run in another order than they are defined in: names cannot tell."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.one(self.other(x))
        return out


def profiled(model: nn.Module, x: torch.Tensor, folder: Path) -> bytes:
    with profile(activities=[ProfilerActivity.CPU]) as watcher:
        model(x).sum().backward()
    file = folder / "profile.json"
    watcher.export_chrome_trace(str(file))
    return file.read_bytes()


def owners(trace_of: Callable[[], object]) -> list[str]:
    trace = trace_of()
    return [trace.modules[e.module].path for e in trace.events if e.name == "aten::linear"]  # type: ignore[attr-defined]


def test_layers_that_names_cannot_tell_apart_are_in_doubt_and_told_by_the_model(tmp_path: Path) -> None:
    model, x = Swapped(), torch.ones(2, 4)
    slices = parse_profile(profiled(model, x, tmp_path))
    run_of = dry_run(model, (x,))
    by_names = annotate(slices, run_of.modules)
    assert owners(lambda: by_names) == ["one", "other"]
    assert by_names.summary.match == 0.98
    assert {e.doubt for e in by_names.events if e.name == "aten::linear"} == {Doubt.ORDER}
    with_model = annotate(slices, run=run_of)
    assert owners(lambda: with_model) == ["other", "one"]
    assert with_model.summary.match == 1.0
    assert not with_model.summary.order_doubts + with_model.summary.place_doubts


def test_the_command_calls_the_model_unless_it_is_told_not_to(tmp_path: Path) -> None:
    file, code, out = tmp_path / "profile.json", tmp_path / "swapped.py", tmp_path / "found.trace"
    profiled(Swapped(), torch.ones(2, 4), tmp_path)
    code.write_text(
        "import torch\nfrom test_follow import Swapped\n"
        "def build():\n    return Swapped(), (torch.ones(2, 4),)\n"
        "def broken():\n    return Swapped(), (torch.ones(2, 5),)\n"
    )
    sure = run("trace", file, "--model", f"{code}:build", "-o", out)
    assert sure.code == 0, sure.err
    assert "modules match the profile to 100.0 %\n" in sure.out
    assert read(out).summary.match == 1.0
    names = run("trace", file, "--model", f"{code}:build", "--names-only", "--json")
    assert json.loads(names.out)["match"] == 0.98
    assert json.loads(names.out)["order_doubts"] > 0
    broken = run("trace", file, "--model", f"{code}:broken")
    assert broken.code == 0
    assert "careful: modules come from names and order alone: one forward of Swapped" in broken.err
    assert "by the order of definition alone" in broken.out
