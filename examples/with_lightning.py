"""Train with Lightning under a byte budget: one more callback.

python examples/with_lightning.py
"""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import tightrope
from tightrope.integrations.lightning import TightropeCallback

BUDGET = "3MiB"


class Classifier(LightningModule):
    """What `training_step` calls, here `self.net`, is planned."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
        self.net = nn.Sequential(*layers, nn.Linear(64, 4))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, labels = batch
        loss = functional.cross_entropy(self.net(x), labels)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)
    x = torch.randn(2048, 64)
    model = Classifier()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[TightropeCallback(budget=BUDGET)],  # the one line
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, x[:, :4].argmax(dim=1)), batch_size=512))
    report = tightrope.report(model.net)
    print(report)
    held = report.observed_total <= report.budget
    print(f"loss {model.losses[0]:.2f} -> {model.losses[-1]:.2f}, within the budget: {held}")


if __name__ == "__main__":
    main()
