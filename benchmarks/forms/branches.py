"""A block of branches that inference can merge."""

import torch
from torch import Tensor, nn


class BranchedBlock(nn.Module):
    """A 3x3 and a 1x1 convolution and the identity, each with a batch norm, and a sum (Ding et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(width, width, 1, bias=False)
        norms = [nn.BatchNorm2d(width) for _ in range(3)]
        self.norms = nn.ModuleList(norms)
        for one in norms:  # as if it had been trained
            nn.init.normal_(one.get_buffer("running_mean"), 0, 0.5)
            nn.init.uniform_(one.get_buffer("running_var"), 0.5, 2)
            nn.init.uniform_(one.weight, 0.5, 1.5)
            nn.init.normal_(one.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branches."""
        first, second, third = self.norms
        return torch.relu(first(self.wide(x)) + second(self.narrow(x)) + third(x))
