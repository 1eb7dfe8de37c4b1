"""A4: sequence-parallel layers beside torch's own over DTensor, on four real ranks.

Both train two layers in float32 without dropout. The peer is `parallelize_module` with `SequenceParallel`
norms, inputs gathered by `PrepareModuleInput`, and column- and row-wise products, as torch's tutorial has it.
"""

import math
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from benchmarks.micro.rows import Row
from benchmarks.sequence.ranks import on_ranks
from tightrope_ranks.sequence import (
    Division,
    Stack,
    count_anew,
    counted,
    divide,
    measure_saved,
    part_of,
    sum_shared_gradients,
)

S, B, H, A, NUM_LAYERS, WORLD = 128, 2, 128, 8, 2, 4
NORMS: Final = 2 * NUM_LAYERS


def serial() -> tuple[Stack, torch.Tensor, torch.Tensor]:
    """The whole model with its gradients, its rows and the gradient of what it returned."""
    torch.manual_seed(0)
    model = Stack(NUM_LAYERS, H, A, S, Division())
    rows, along = torch.randn(S, B, H, requires_grad=True), torch.randn(S, B, H)
    model(rows).backward(along)
    return model, rows, along


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def ours(rank: int, regather: bool) -> dict[str, Any]:
    """Saved bytes, error of gradients, collectives of forward and backward."""
    whole, rows, along = serial()
    model = Stack(NUM_LAYERS, H, A, S, Division(mode="sequence", ranks=WORLD, regather=regather))
    divide(whole, model, rank)
    mine = slice(rank * S // WORLD, (rank + 1) * S // WORLD)
    part = rows.detach()[mine].clone().requires_grad_()
    saved = measure_saved(model, lambda: model(part))
    count_anew()
    model(part).backward(along[mine])
    calls = counted()
    sum_shared_gradients(model)
    assert part.grad is not None
    assert rows.grad is not None
    worst = error(part.grad, rows.grad[mine])
    for (name, given), held in zip(whole.named_parameters(), model.parameters(), strict=True):
        assert given.grad is not None
        assert held.grad is not None
        wanted = part_of(name.split(".", 2)[2], given.grad, rank, WORLD)
        worst = max(worst, error(held.grad, wanted))
    return {"saved": saved, "error": worst, **calls}


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(H, 3 * H), nn.Linear(H, H)
        hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
        self.register_buffer("mask", torch.zeros(S, S).masked_fill(hidden, -1e4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(rows)  # [b, s, 3 h / t], head by head
        batch, sequence, width = qkv.shape
        size = H // A
        split = qkv.view(batch, sequence, width // (3 * size), 3 * size).transpose(1, 2)
        query, key, value = split.chunk(3, -1)
        scores = torch.add(self.mask, query @ key.transpose(-1, -2), alpha=1 / math.sqrt(size))  # type: ignore[arg-type]
        found = (torch.softmax(scores, -1) @ value).transpose(1, 2)
        return self.out(found.reshape(batch, sequence, -1))  # type: ignore[no-any-return]


class _Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(H, 4 * H), nn.Linear(4 * H, H)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(rows)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(H), _Attention()
        self.norm_2, self.perceptron = nn.LayerNorm(H), _Perceptron()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows + self.attention(self.norm_1(rows))
        return rows + self.perceptron(self.norm_2(rows))  # type: ignore[no-any-return]


_NAMES: Final = {
    "norm_1": "norm_1",
    "qkv": "attention.qkv",
    "out": "attention.out",
    "norm_2": "norm_2",
    "up": "perceptron.up",
    "down": "perceptron.down",
}


def peer(rank: int) -> dict[str, Any]:
    """The same over DTensor."""
    whole, rows, along = serial()
    mesh = init_device_mesh("cpu", (WORLD,))
    model = nn.Sequential(*(_Block() for _ in range(NUM_LAYERS)))
    with torch.no_grad():
        for source, target in zip(whole.layers, model, strict=True):
            for name, value in source.named_parameters():
                module, _, kind = name.partition(".")
                target.get_parameter(f"{_NAMES[module]}.{kind}").copy_(value)
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model:
        parallelize_module(
            block,
            mesh,
            {
                "norm_1": SequenceParallel(),
                "attention": gathered,
                "attention.qkv": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "norm_2": SequenceParallel(),
                "perceptron": gathered,
                "perceptron.up": ColwiseParallel(),
                "perceptron.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )
    mine = slice(rank * S // WORLD, (rank + 1) * S // WORLD)
    part = rows.detach().transpose(0, 1)[:, mine].contiguous().requires_grad_()
    own = {_local(p).untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        result = model(part)
    end = result.to_local() if isinstance(result, DTensor) else result
    torch.autograd.backward(end, along.transpose(0, 1)[:, mine])
    assert part.grad is not None
    assert rows.grad is not None
    return {"saved": sum(seen.values()), "error": error(part.grad.transpose(0, 1), rows.grad[mine])}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def work(rank: int) -> dict[str, Any]:
    """All figures of a rank."""
    whole, rows, _ = serial()
    base = measure_saved(whole, lambda: whole(rows))
    distributed.barrier()
    return {"serial": base, "ours": ours(rank, True), "kept": ours(rank, False), "peer": peer(rank)}


def a4(quick: bool) -> list[Row]:
    """Compare the worst rank of each."""
    del quick
    found = on_ranks(WORLD, work)
    share = max(one["ours"]["saved"] / one["serial"] for one in found)
    worst = max(one["ours"]["error"] for one in found)
    extra = max((one["ours"]["gather"] - one["kept"]["gather"]) / NORMS for one in found)
    theirs = max(one["peer"]["saved"] / one["serial"] for one in found)
    return [
        Row(
            "A4",
            "saved bytes at 4 ranks <= 0.27 of serial, gradient error <= 1e-6, <= 1 all-gather more per norm",
            f"{WORLD} real ranks: {share:.4f} of serial, error {worst:.1e}, {extra:.2f} gathers more per "
            f"norm ({found[0]['ours']['gather']} gathers, {found[0]['ours']['scatter']} scatters; kept: "
            f"{found[0]['kept']['gather']} gathers and {found[0]['kept']['saved'] / found[0]['serial']:.4f})",
            share <= 0.27 and worst <= 1e-6 and extra <= 1 and share < theirs,
            f"DTensor {theirs:.4f} of serial, error {max(one['peer']['error'] for one in found):.1e}",
        )
    ]
