"""Train a U-Net in fewer bytes: its skip connections stay alive the longest, and a plan makes them again.

python examples/u_net.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope


def double(width_in: int, width_out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (width_in, width_out):
        layers += [
            nn.Conv2d(width, width_out, 3, padding=1),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Three levels of 8, 16 and 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([double(1, 8), double(8, 16)])
        self.bottom = double(16, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.after = nn.ModuleList([double(32, 16), double(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = functional.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, block in zip(self.up, self.after, strict=True):
            x = block(torch.cat([up(x), skips.pop()], dim=1))
        return functional.cross_entropy(self.head(x), labels)


def train(budget: str | None) -> tuple[list[float], str]:
    torch.manual_seed(0)
    net, images = UNet(), torch.randn(4, 1, 64, 64)
    if budget is not None:
        tightrope.compile(net, budget=budget, progress=False)  # the one line
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = net(images, (images[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, "" if budget is None else str(tightrope.report(net))


def main() -> None:
    eager, _ = train(None)
    planned, report = train("70%")
    print(report)
    print(f"loss {planned[0]:.2f} -> {planned[-1]:.2f}, equal to eager in every step: {planned == eager}")


if __name__ == "__main__":
    main()
