"""Low-rank adapters (Hu et al., 2022) on the linear layers of a frozen net."""

from torch import Tensor, nn

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a Llama block: attention and perceptron."""


class LoraLinear(nn.Module):
    """``base(x) + scale * up(down(x))`` with a frozen base.

    ``up`` starts with random values, not with the usual zeros: with zeros the gradient of ``down``
    is exactly zero, and a comparison of gradients would compare nothing.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x)) * self.scale
        return out


def add_lora(net: nn.Module, *, rank: int, alpha: float, targets: tuple[str, ...] = TARGETS) -> None:
    """Freeze ``net`` and put an adapter of ``rank`` on every linear layer named in ``targets``."""
    net.requires_grad_(False)
    for owner in list(net.modules()):
        for name, child in list(owner.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(owner, name, LoraLinear(child, rank, alpha))
