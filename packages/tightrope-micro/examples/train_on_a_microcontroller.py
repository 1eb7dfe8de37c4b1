"""Train a small residual CNN on handwritten digits within 64 KiB of RAM, on an emulated Cortex-M4F.

    python packages/tightrope-micro/examples/train_on_a_microcontroller.py

Where the emulator is not installed, the same C runs on this computer; it needs a C compiler.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from tightrope.cli.machines import find_machine
from tightrope_micro import capture_step, compile_step, run_on_board, run_on_host, value_bytes
from tightrope_micro.emulate import missing_tools

BATCH, NUM_STEPS, RAM = 8, 200, 64 * 1024


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        return self.fc(F.max_pool2d(x, 2).flatten(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.scores(x), y)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order] / 16, dtype=torch.float32)
    return images[:, None], torch.tensor(data.target[order])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, (x, y) = Net(), digits()
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = [(x[k : k + BATCH], y[k : k + BATCH]) for k in range(0, BATCH * NUM_STEPS, BATCH)]
    compiled = compile_step(capture_step(model, batches[0], rule), find_machine("nrf52840"), ram=RAM)
    inputs = [int(one.name[6:]) for one in compiled.manifest.held if one.kind == "input"]
    samples = [b"".join(value_bytes(batch[k]) for k in inputs) for batch in batches]
    with tempfile.TemporaryDirectory() as folder:
        out = compiled.write(Path(folder) / "step")
        if missing_tools():
            run, taken = run_on_host(out, samples), compiled.manifest.total
            print(f"on this computer ({missing_tools()}); promised RAM {taken} B")
        else:
            board = run_on_board(out, samples)
            run, taken = board, board.ram
            print(f"on the emulated board: arena {board.arena} B, stack {board.stack} B, RAM {taken} B")
    print(f"pages per step: {compiled.manifest.pages.pages_in} in, {compiled.manifest.pages.pages_out} out")
    for step in (0, NUM_STEPS // 2, NUM_STEPS - 1):
        print(f"step {step}: loss {run.losses[step]:.3f}")
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in run.values:
                values = np.frombuffer(run.values[name], np.float32).copy()
                tensor.copy_(torch.from_numpy(values).view_as(tensor))
        model.eval()
        right = (model.scores(x[BATCH * NUM_STEPS :]).argmax(1) == y[BATCH * NUM_STEPS :]).float().mean()
    print(f"accuracy on digits that were not trained on: {100 * float(right):.1f} %")
    print(f"within 64 KiB of RAM: {taken <= RAM}")


if __name__ == "__main__":
    main()
