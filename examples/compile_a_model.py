"""Train a model under a budget: one line before an unchanged loop, and a report after it."""

import torch

import tightrope


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8)]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(0.1), torch.nn.Linear(256, 10))


def train(model: torch.nn.Module, *, num_steps: int = 5) -> list[float]:
    torch.manual_seed(1)
    data, labels = torch.randn(512, 256), torch.randint(10, (512,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(num_steps):
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    expected = train(make())
    model = tightrope.compile(make(), budget="13MiB")  # the unplanned step needs about 16 MiB
    assert train(model) == expected
    print(tightrope.report(model))


if __name__ == "__main__":
    main()
