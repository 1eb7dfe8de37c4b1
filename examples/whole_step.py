"""One call per training step: forward, backward and update under one byte budget.

A gradient dies as soon as its parameter is updated, so the same training fits in fewer bytes. The
script trains the same small net twice, by hand and as a planned step, and compares the weights.

    python examples/whole_step.py
"""

import torch
from torch import Tensor, nn

from tightrope.run.step import step


def make_net() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(128, 4))


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, 256, 128, generator=generator)
    return list(zip(x, x[:, :, :4].argmax(dim=2), strict=True))


def by_hand(num: int) -> nn.Module:
    net = make_net()
    optimizer = make_optimizer(net)
    for x, y in batches(num):
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return net


def as_planned_step(num: int, budget: str) -> nn.Module:
    net = make_net()

    def loss_fn(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), y)

    train = step(loss_fn, budget=budget, model=net, optimizer=make_optimizer(net))
    for number, (x, y) in enumerate(batches(num)):
        print(f"step {number}: loss {train(x, y).item():.4f}")
    print(train.report())
    return net


def main() -> None:
    wanted = by_hand(5)
    got = as_planned_step(5, budget="95%")
    same = all(torch.equal(a, b) for a, b in zip(wanted.parameters(), got.parameters(), strict=True))
    print(f"weights equal, bit for bit: {same}")


if __name__ == "__main__":
    main()
