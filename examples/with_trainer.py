"""Train with the Trainer of transformers under a byte budget: one more callback.

python examples/with_trainer.py
"""

import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

import tightrope
from tightrope.integrations.transformers import TightropeTrainerCallback

BUDGET = "3MiB"


class Classifier(nn.Module):
    """Blocks with their loss, as the Trainer calls them."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
        self.net = nn.Sequential(*layers, nn.Linear(64, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2048, 64)
    data = [{"x": row, "labels": row[:4].argmax()} for row in x]
    model = Classifier()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                per_device_train_batch_size=512,
                max_steps=12,
                logging_steps=4,
                learning_rate=1e-2,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,  # type: ignore[arg-type]
            callbacks=[TightropeTrainerCallback(budget=BUDGET)],  # the one line
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    report = tightrope.report(model)
    print(report)
    held = report.observed_total <= report.budget
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, within the budget: {held}")


if __name__ == "__main__":
    main()
