"""The interception in C++: what it costs, and what it does for ops that read by pointers."""

import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.flop_counter import FlopCounterMode

from tightrope.run.evict.context import evict

_MOST = 3.0
"""Times eager's time that hundreds of small ops may take; about 1.5 are measured."""


def _packed() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model, x = nn.GRU(16, 32, num_layers=2), torch.randn(200, 3, 16)
    for _ in range(2):
        packed = pack_padded_sequence(x * 1.5, torch.tensor([200, 150, 100]))
        padded, _ = pad_packed_sequence(model(packed)[0])
        padded.square().mean().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


def test_what_a_composite_op_reads_by_pointers_neither_goes_nor_moves() -> None:
    expected = _packed()
    with evict("1200KiB", poison=True) as eviction:
        found = _packed()
    assert eviction.num_recomputed
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _seconds(tensors: list[torch.Tensor]) -> float:
    start = time.thread_time()
    for _ in range(60):
        for one in tensors:
            one.mul(2.0).add_(one)
    return time.thread_time() - start


def test_a_small_op_costs_little_more_than_in_eager() -> None:
    tensors = [torch.ones(64, 64) for _ in range(5)]
    _seconds(tensors)
    eager = min(_seconds(tensors) for _ in range(7))
    with evict("64MiB") as eviction:
        watched = min(_seconds(tensors) for _ in range(7))
    assert eviction.num_ops == 7 * 60 * 5 * 2
    assert watched <= _MOST * eager


def test_a_mode_inside_of_the_block_sees_the_ops_as_well() -> None:
    x = torch.ones(32, 32)
    with evict("1MiB") as eviction:
        before = eviction.num_ops
        with FlopCounterMode(display=False) as counter:
            y = x @ x
        assert (y @ y).sum() > 0
        assert eviction.num_ops >= before + 3
    assert counter.get_total_flops() == 2 * 32**3


def test_what_nobody_holds_any_more_is_not_moved_out() -> None:
    with evict("8MiB") as block:
        gone, stays = torch.ones(1 << 16) * 2, torch.ones(1 << 12) * 3
        assert block._watch is not None
        window = block._watch.window
        held = window.held(resident=True)
        assert len(held) == 2
        del gone
        for one in held:
            window.move_out(one)
        assert window.held(resident=True) == []
        assert stays.sum() == 3 << 12
