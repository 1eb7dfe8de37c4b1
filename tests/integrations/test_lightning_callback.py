"""Lightning's `Trainer`: which modules the callback compiles, and what it says when there are none."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import BudgetSyntaxError, TightropeError

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer

from tightrope.integrations.lightning import TightropeCallback

pytestmark = [
    pytest.mark.slow,  # lightning is 10 seconds of imports
    pytest.mark.filterwarnings("ignore"),  # Lightning's, about its data loaders
]


class Coder(LightningModule):
    """Calls its two parts, or one of them only, or neither as a module."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Linear(8, 8)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        calls = {
            "itself": lambda: self(batch),
            "two parts": lambda: self.decoder(self.encoder(batch)),
            "one part": lambda: self.encoder(batch),
            "no module": lambda: self.encoder[0].forward(batch),  # type: ignore[operator]
        }
        return calls[self.calls]().square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Coder):
    """Validation calls the whole; training a part, and fails when it is told to."""

    fails = False

    def validation_step(self, batch: Tensor, _: int) -> None:
        self(batch)

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        if self.fails:
            raise ValueError("as told")
        return super().training_step(batch, number)


def fit(module: LightningModule, budget: str = "1GiB") -> LightningModule:
    trainer = Trainer(
        accelerator="cpu",
        max_steps=2,
        callbacks=[TightropeCallback(budget=budget, progress=False)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=16)
    trainer.fit(module, data, data if isinstance(module, Validated) else None)
    return module


def planned(module: LightningModule) -> set[str]:
    return {name for name, part in module.named_modules() if part._compiled_call_impl is not None}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [("itself", {""}), ("two parts", {"encoder", "decoder"}), ("one part", {"encoder"})],
)
def test_what_the_training_step_calls_is_planned(calls: str, expected: set[str]) -> None:
    module = fit(Coder(calls))
    assert planned(module) == expected
    for name in expected:
        assert tightrope.report(module.get_submodule(name)).level == "L1"


def test_validation_before_the_first_step_plans_nothing_and_takes_nothing_away() -> None:
    module = fit(Validated("one part"))
    assert planned(module) == {"encoder"}
    assert tightrope.report(module.encoder).level == "L1"


def test_a_fit_that_fails_leaves_modules_as_they_were() -> None:
    module = Validated("one part")
    module.fails = True
    with pytest.raises(ValueError, match="as told"):
        fit(module)
    assert planned(module) == set()


def test_a_second_fit_takes_the_second_budget() -> None:
    module = fit(fit(Coder("itself")), "2GiB")
    assert planned(module) == {""}
    assert tightrope.report(module).budget == 2 << 30


def test_a_step_that_goes_past_every_module_is_refused() -> None:
    with pytest.raises(TightropeError, match=r"nothing of this Coder is planned.*self\(x\)"):
        fit(Coder("no module"))


def test_a_wrong_budget_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(BudgetSyntaxError, match="8 apples"):
        TightropeCallback(budget="8 apples")
    with pytest.raises(TypeError, match="seed_"):
        TightropeCallback(budget="1GiB", seed_=3)
