"""The nets that the recorder is measured on."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from benchmarks.zoo import REGISTRY, Scale, build, optimizer

CAPTURED = ("gpt2", "bert", "vit", "resnet18", "unet", "densenet121", "mobilenetv2", "moe")
FOREIGN = ("gpt2", "bert", "vit", "resnet18", "resnet50", "mobilenetv2", "recurrent", "embeddings")


class Recurrent(nn.Module):
    """Two stacked cells over time, called once a token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, 128)
        self.first, self.second = nn.LSTMCell(128, 256), nn.LSTMCell(256, 256)
        self.head, self.loss = nn.Linear(256, 2000), nn.CrossEntropyLoss()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        a = b = c = d = torch.zeros(tokens.shape[1], 256)
        losses = []
        for now, following in pairwise(tokens):
            a, b = self.first(self.table(now), (a, b))
            c, d = self.second(a, (c, d))
            losses.append(self.loss(self.head(c), following))
        return torch.stack(losses).mean()


class Embeddings(nn.Module):
    """Tables of embeddings, two perceptrons and products of all pairs, as DLRM has."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20_000, 64, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1))
        self.loss = nn.BCEWithLogitsLoss()
        self.pairs = torch.triu_indices(9, 9, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *[table(ids) for table, ids in zip(self.tables, sparse, strict=True)]], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        loss: torch.Tensor = self.loss(self.top(torch.cat([bottom, products], 1)).squeeze(1), clicked)
        return loss


@dataclass(frozen=True, slots=True)
class Net:
    """A model, its batch and its optimizer."""

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(*self.inputs).backward()
        self.optimizer.step()


def net(name: str, scale: Scale) -> Net:
    """Build a net by name: of the zoo, or one of the two here."""
    torch.manual_seed(0)
    if name in REGISTRY:
        case = build(name, scale=scale)
        return Net(name, case.model, case.inputs, optimizer(case, "adamw"))
    if name == "recurrent":
        model: nn.Module = Recurrent()
        inputs: tuple[torch.Tensor, ...] = (torch.randint(2000, (12, 16)),)
    else:
        model = Embeddings()
        inputs = (torch.randn(256, 13), torch.randint(20_000, (8, 256, 4)), torch.rand(256).round())
    return Net(name, model, inputs, torch.optim.AdamW(model.parameters()))
