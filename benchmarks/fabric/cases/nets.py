"""What the four programs calculate, whatever carries their calls: models, a game, batches, updates."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Played = tuple[Tensor, Tensor, float]
"""States that a player saw, its moves, and 1 where it won, -1 where it lost."""
_STONES = 21


def policy() -> nn.Module:
    """Make the net that plays: stones that are left to a value per move."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_STONES + 1, 32), nn.Tanh(), nn.Linear(32, 3))


def play(ask: Callable[[Tensor], Tensor], seed: int) -> Played:
    """Take 1 to 3 stones in turn with an opponent that moves at random; who takes the last one wins."""
    generator = torch.Generator().manual_seed(seed)
    states, moves, left = [], [], _STONES
    while True:
        state = functional.one_hot(torch.tensor(left), _STONES + 1).float()
        move = int(torch.multinomial(torch.softmax(ask(state), 0), 1, generator=generator))
        states.append(state)
        moves.append(move)
        left -= move + 1
        if left <= 0:
            return torch.stack(states), torch.tensor(moves), 1.0
        left -= int(torch.randint(1, 4, (), generator=generator))
        if left <= 0:
            return torch.stack(states), torch.tensor(moves), -1.0


def learn(net: nn.Module, optimizer: torch.optim.Optimizer, games: Sequence[Played]) -> Tensor:
    """Make moves of games that were won likelier, and return the loss."""
    optimizer.zero_grad()
    loss = torch.zeros(())
    for states, moves, reward in games:
        loss = loss + reward * functional.cross_entropy(net(states), moves, reduction="sum")
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


class _First(nn.Module):
    """Words to states, and the first blocks of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(64, 32), _block()

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.block(self.embed(words))
        return found


def _block() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)


def stage(number: int) -> nn.Module:
    """Make the first or the second half of a small GPT."""
    torch.manual_seed(number)
    return _First() if number == 1 else nn.Sequential(_block(), nn.LayerNorm(32), nn.Linear(32, 64))


def micro_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield words and the words that follow."""
    words = torch.randint(64, (4, 2, 9), generator=torch.Generator().manual_seed(step))
    for one in words:
        yield one[:, :-1], one[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a micro-batch."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def table(number: int) -> nn.Module:
    """Make one of two tables of embeddings."""
    torch.manual_seed(10 + number)
    return nn.EmbeddingBag(200, 16, mode="sum")


def top() -> nn.Module:
    """Make what ranks from dense numbers and two embeddings."""
    torch.manual_seed(20)
    return nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))


def clicks(step: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return dense numbers, indices into both tables, and what was clicked."""
    generator = torch.Generator().manual_seed(step)
    indices = [torch.randint(200, (16, 5), generator=generator) for _ in range(2)]
    dense = torch.randn(16, 16, generator=generator)
    return dense, indices, (dense[:, :1] > 0).float()


def ranking_loss(head: nn.Module, dense: Tensor, rows: Sequence[Tensor], clicked: Tensor) -> Tensor:
    """Return the loss of a batch."""
    return functional.binary_cross_entropy_with_logits(head(torch.cat([dense, *rows], 1)), clicked)


def classifier() -> nn.Module:
    """Make the net of the federation."""
    torch.manual_seed(30)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def weights_of(net: nn.Module) -> list[Tensor]:
    """Return the parameters of a net."""
    return [one.detach().clone() for one in net.parameters()]


def locally(client: int, turn: int, weights: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Train on what one client has; return the weights and how many examples it has."""
    net, count = classifier(), 32 * client
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            parameter.copy_(weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(client))
    for _ in range(2 + turn):
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(net(x), x[:, :3].argmax(1)))
        optimizer.step()
    return weights_of(net), count


def mean_of(found: Sequence[tuple[Sequence[Tensor], int]]) -> list[Tensor]:
    """Average weights, those of clients with more examples more."""
    total = sum(count for _, count in found)
    parts = [[weight * (count / total) for weight in weights] for weights, count in found]
    return [torch.stack(some).sum(0) for some in zip(*parts, strict=True)]
