"""Train GPT-2 (random weights) on four gloo ranks, each held to a number of bytes."""

from typing import Any

import torch
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from tightrope_ranks import PipelineRun, plan, run_ranks
from tightrope_ranks.values.ranks import JointPlan

CONFIG = GPT2Config(
    n_layer=8, n_embd=64, n_head=4, n_positions=64, vocab_size=256, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
CONFIG._attn_implementation = "eager"
RANKS, MICRO, ROWS = 4, 8, 2


class Embedding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(CONFIG.vocab_size, CONFIG.n_embd)
        self.place = torch.nn.Embedding(CONFIG.n_positions, CONFIG.n_embd)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.token(ids) + self.place(torch.arange(ids.shape[-1]))
        return made


class Block(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        make: Any = GPT2Block
        self.block = make(CONFIG, layer_idx=number)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made: Any = self.block(hidden)
        return made if isinstance(made, torch.Tensor) else torch.as_tensor(made[0])


def layers() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    blocks = [Block(number) for number in range(CONFIG.n_layer)]
    norm, head = torch.nn.LayerNorm(CONFIG.n_embd), torch.nn.Linear(CONFIG.n_embd, CONFIG.vocab_size)
    return [Embedding(), *blocks, torch.nn.Sequential(norm, head)]


def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def batch() -> torch.Tensor:
    return torch.randint(
        CONFIG.vocab_size, (MICRO * ROWS, CONFIG.n_positions), generator=torch.manual_seed(1)
    )


def train(rank: int, num_ranks: int, made: JointPlan, limit: int) -> list[float]:
    """What every rank does; under torchrun this is the whole program."""
    whole, count = layers(), len(made.work.stages)
    cut = [len(whole) * k // count for k in range(count + 1)]
    mine = {s: torch.nn.Sequential(*whole[cut[s] : cut[s + 1]]) for s in made.work.local(rank)}
    run = PipelineRun(made, mine, loss, limit=limit)
    optimizer = torch.optim.SGD([p for one in mine.values() for p in one.parameters()], lr=0.5)
    ids, said = batch(), []
    for _ in range(3):
        losses = run.step(*([ids] if 0 in mine else []), target=ids)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        said += [float(torch.stack(losses).mean().detach())] if losses else []
    return said


if __name__ == "__main__":
    ids = batch()[:ROWS]
    made = plan(layers(), ids, ids, loss, ranks=RANKS, micro_batches=MICRO, budget="10MiB")
    print(made.method, [rank.peak for rank in made.ranks])
    losses = run_ranks(train, RANKS, made, 11 * 2**20)[-1]
    print(losses, "losses fall:", losses[-1] < losses[0])
