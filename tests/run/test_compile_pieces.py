"""Models that become several graphs: each is planned within its share of the one budget."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import Seen, play

import tightrope
from benchmarks.zoo import build
from tightrope.capture.build import build_program
from tightrope.core import CaptureError, InfeasibleError
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts

X = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
IN_PIECES = pytest.warns(UserWarning, match="level L1 in pieces.*graph_break")


class Halves(nn.Module):
    """Two graphs, dropout and batch norm in both."""

    def __init__(self) -> None:
        super().__init__()

        def half() -> nn.Sequential:
            blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)]
            return nn.Sequential(*blocks, nn.BatchNorm1d(64))

        self.first, self.second = half(), half()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def made() -> nn.Module:
    torch.manual_seed(3)
    return Halves()


def steps(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()


def charge(room: int) -> int:
    """A budget of ``room`` bytes more than what is held now."""
    return accounts().held() + room


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo's own, with any backend
class TestPieces:
    @pytest.mark.parametrize("room", [1800 << 10, 6 << 20])
    def test_results_are_unchanged(self, room: int) -> None:
        wanted = play(made(), steps)
        model = tightrope.compile(made(), budget=charge(room), fallback="pieces", progress=False)
        with IN_PIECES:
            assert play(model, steps) == wanted
        report = tightrope.report(model)
        assert report.level == "L1"
        assert "sequence of graphs" in report.why
        assert len(compiled_of(model).calls.captured) == 2
        assert report.forecast_peak == report.observed_peak
        assert report.divergences == 0
        assert "bit for bit" in report.verified

    @pytest.mark.slow
    def test_the_budget_holds_and_what_is_left_is_used(self) -> None:
        budget = charge(1800 << 10)
        model = tightrope.compile(made(), budget=budget, fallback="pieces", progress=False)
        with IN_PIECES:
            play(model, steps)
        calls = compiled_of(model).calls
        assert len(calls.captured) == 2
        assert [len(running.turns) for running in calls.recent] == [4]  # planned as one
        assert calls.recent[0].prepared.plan.forecast.tdi_percent < 100
        assert tightrope.report(model).observed_total <= budget

    def test_an_impossible_budget_is_refused(self) -> None:
        model = tightrope.compile(made(), budget=charge(400 << 10), fallback="pieces", progress=False)
        with pytest.raises(InfeasibleError, match="smallest feasible"):
            play(model, steps)


class Asking(Halves):
    """Asks Python about a value, which no graph can."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x if float(x.detach().sum()) > 1e9 else x * 2)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
class TestOtherReasons:
    @pytest.mark.slow
    def test_a_value_that_python_asks_for(self) -> None:
        torch.manual_seed(3)
        plain = Asking()
        wanted = play(plain, steps)
        torch.manual_seed(3)
        model = tightrope.compile(Asking(), budget="64MiB", fallback="pieces", progress=False)
        with pytest.warns(UserWarning, match="in pieces.*data-dependent"):
            assert play(model, steps) == wanted

    @pytest.mark.slow
    def test_the_tree_lstm(self) -> None:
        def trees(model: nn.Module, see: Seen) -> None:
            for _ in range(5):
                model.zero_grad()
                loss = model(*case.inputs)
                loss.backward()
                see(loss)
                see.gradients(model)

        case = build("tree_lstm", scale="test")
        wanted = play(case.model, trees)
        case = build("tree_lstm", scale="test")
        model = tightrope.compile(case.model, budget="64MiB", fallback="pieces", progress=False)
        with pytest.warns(UserWarning, match="in pieces"):
            assert play(model, trees) == wanted

    def test_a_capture_that_fails_midway_leaves_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        captured: list[int] = []

        def fails_at_the_second(*args: Any, **options: Any) -> Any:
            captured.append(0)
            if len(captured) == 2:
                raise CaptureError("the second graph is refused.")
            return build_program(*args, **options)

        wanted = play(made(), steps)
        monkeypatch.setattr(sys.modules["tightrope.capture.dynamo"], "build_program", fails_at_the_second)
        model = tightrope.compile(made(), budget="64MiB", fallback="pieces", progress=False)
        with pytest.warns(UserWarning, match=r"level L0.*the second graph is refused"):
            assert play(model, steps) == wanted
        assert "the second graph is refused" in tightrope.report(model).why

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:tightrope. level L1 in pieces")
    def test_a_model_that_never_repeats_stops_being_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["tightrope.run.session.levels"], "_MAX_NEW", 2)

        def sizes(model: nn.Module, see: Seen) -> None:
            for size in range(4, 12):
                model.zero_grad()
                model(X[:size]).square().mean().backward()
                see.gradients(model)

        wanted = play(made(), sizes)
        model = tightrope.compile(made(), budget="64MiB", fallback="pieces", progress=False)
        with pytest.warns(UserWarning, match="ever more graphs, 6 so far"):
            assert play(model, sizes) == wanted
        assert tightrope.report(model).level == "L0"
