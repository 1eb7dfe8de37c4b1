"""What torch's allocator keeps: against an allocator written another way, and layers counted by hand."""

import random

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tightrope.core import DeviceLink, Machine, Tier
from tightrope.core.units import round_up
from tightrope_ranks.pipeline.estimate import estimate_ranks
from tightrope_ranks.pipeline.measure import shape_layers
from tightrope_ranks.pipeline.pool import Pool
from tightrope_ranks.pipeline.rank_layout import RankLayout
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.together import LayerInside

MIB = 1 << 20
GPU = Machine("gpu", (Tier("hbm", 2**40, read=1e12),), {"matmul": 1e14}, device="cuda")


class Slow:
    """Segments as lists of (bytes, owner), looked through from the first to the last."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[tuple[int, int]]]] = []

    @property
    def reserved(self) -> int:
        return sum(size for _, blocks in self.segments for size, _ in blocks)

    def allocate(self, owner: int, size: int) -> None:
        size = max(512, round_up(size, 512))
        small = size <= MIB
        holes = [
            (have, number, place)
            for number, (kind, blocks) in enumerate(self.segments)
            for place, (have, whose) in enumerate(blocks)
            if whose < 0 and kind == small and have >= size
        ]
        if not holes:
            new = 2 * MIB if small else 20 * MIB if size < 10 * MIB else round_up(size, 2 * MIB)
            self.segments.append((small, [(new, -1)]))
            holes = [(new, len(self.segments) - 1, 0)]
        have, number, place = min(holes)
        cut = have - size >= 512 if small else have - size > MIB
        blocks = self.segments[number][1]
        blocks[place : place + 1] = [(size, owner), (have - size, -1)] if cut else [(have, owner)]

    def free(self, owner: int) -> None:
        for number, (kind, blocks) in enumerate(self.segments):
            joined: list[tuple[int, int]] = []
            for size, whose in ((size, -1 if whose == owner else whose) for size, whose in blocks):
                if joined and joined[-1][1] == whose == -1:
                    joined[-1] = joined[-1][0] + size, -1
                else:
                    joined.append((size, whose))
            self.segments[number] = kind, joined


@pytest.mark.parametrize("seed", range(20))
def test_a_pool_keeps_what_an_allocator_of_lists_keeps(seed: int) -> None:
    rng, live = random.Random(seed), dict[int, int]()
    pool, slow = Pool(), Slow()
    for owner in range(300):
        if live and rng.random() < 0.45:
            gone = rng.choice(sorted(live))
            pool.free(live.pop(gone))
            slow.free(gone)
        size = int(2 ** rng.uniform(4, 25))
        live[owner] = pool.allocate(size)
        slow.allocate(owner, size)
        assert pool.reserved == slow.reserved


def test_all_that_is_freed_is_one_hole_again() -> None:
    pool = Pool()
    blocks = [pool.allocate(3 * MIB) for _ in range(6)]
    assert pool.reserved == 20 * MIB
    for at in (blocks[one] for one in (1, 3, 5, 0, 2, 4)):
        pool.free(at)
    pool.allocate(19 * MIB)
    assert pool.reserved == 20 * MIB


class Loss(nn.Module):
    """Logits in bfloat16, and their loss in float32."""

    def forward(self, x: Tensor) -> Tensor:
        logits = (x * 2).float()
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def test_a_loss_takes_seven_times_the_bytes_of_its_logits() -> None:
    x = torch.empty(1024, 16384, dtype=torch.bfloat16, device="meta", requires_grad=True)  # 32 MiB
    inside: list[LayerInside] = []
    shape_layers([nn.Identity(), Loss()], x, GPU, inside=inside)
    run = inside[1].run
    assert run is not None
    assert run.outgoing
    pool, live = Pool(), {}
    for number, size in run.events:
        if size:
            live[number] = pool.allocate(size)
        else:
            pool.free(live.pop(number))
    assert 7 * 32 * MIB <= pool.reserved <= 7 * 32 * MIB + 4 * MIB  # 1 + 2 + 2 forward, 2 more backward


class Wide(nn.Module):
    """Keeps its product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4096, 4096, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


def test_a_step_of_one_layer_is_counted_by_hand() -> None:
    x = torch.empty(4096, 4096, device="meta")  # 64 MiB, as are the weight and all that is made
    found = estimate_ranks([Wide()], x, ranks=1, machine=GPU, micro_batches=1)
    # held: weight and gradient. Forward: the product, then its tanh while the product is there, which is
    # freed. Backward: the gradient of the output takes the hole, that of the product and of the weight more.
    assert found.reserved == (2 + 4) * 64 * MIB


def cluster(devices: int) -> Machine:
    """Devices with one link between them."""
    return msgspec.structs.replace(GPU, devices=devices, links=(DeviceLink("link", 1e-6, 1e11),))


X = torch.empty(4096, 4096, device="meta")
PLAIN = PipelineOptions((1,), split=False, again=False, seconds=0.0)


def kept(ranks: int, pipeline: int, micro: int, sharded: bool = False) -> tuple[int, RankLayout]:
    """Tell what is kept for eight layers, in multiples of 64 MiB, and the layout."""
    found = estimate_ranks(
        [Wide() for _ in range(8)], X, ranks=ranks, pipeline=pipeline, machine=cluster(ranks),
        micro_batches=micro, sharded=sharded, options=PLAIN,
    )  # fmt: skip
    assert found.reserved % (64 * MIB) == 0
    return found.reserved // (64 * MIB), found.layout


def test_what_replicas_divide_and_gather_is_counted_by_hand() -> None:
    # Eight parameters and gradients; a layer's tanh each; and in the first backward the gradients of the
    # output, of the product, of the weight and of the input.
    assert kept(2, 1, 2)[0] == 16 + 8 + 4
    divided, layout = kept(2, 1, 2, sharded=True)
    assert layout.by_layer
    # Half of the first; two buffers on the stream that gathers; tanhs, the gathered layer, those gradients.
    # Copies of gradients take the places of tanhs.
    assert divided == 8 + 2 + 8 + 1 + 4


def test_messages_have_buffers_on_both_ends() -> None:
    # Rank 0 of 2: four layers' parameters and gradients; two micro-batches' tanhs; gradients' buffers.
    # What was sent stays, so the second backward makes its four gradients while all tanhs are there.
    assert kept(2, 2, 2)[0] == 8 + 2 * 4 + 2 + 4


def test_a_layer_whose_derivative_fails_on_shapes_has_no_figure() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: object, *along: Tensor) -> Tensor:
            raise NotImplementedError

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = Fails.apply(x)  # type: ignore[no-untyped-call]
            return made

    found = estimate_ranks(
        [Wide(), Layer()], torch.empty(64, 4096, device="meta"), ranks=1, machine=GPU, micro_batches=1
    )
    assert found.reserved == 0
