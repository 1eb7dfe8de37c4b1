"""Codecs: gradients to bytes and back.

Idea        ``none``, ``fp16`` and ``bf16`` are summed in the network (all-reduce). ``sign``, ``bits2``,
            ``bits4``, ``bits8`` and ``topk`` are gathered from all ranks and summed by each in the same
            order. The quantised ones are one kernel: blocks of 4,096 numbers with a scale of their own; 1 bit
            is the sign with the mean size as scale; more bits are rounded up or down at random, so that the
            mean is right.
Source      Error feedback: Karimireddy et al., ICML 2019. Stochastic rounding: Alistarh et al., QSGD, 2017.
Guarantee   A codec sees each gradient alone: what it makes of one depends on the gradient, its residual, the
            step and its name, never on what travels with it. So a new plan with the same codecs changes when
            bytes are sent, and no bit of what arrives. All ranks decode equal bits. A gradient that is not
            finite arrives as one that is not, and leaves the residual as it was.
Complexity  Linear; ``topk`` n log k.
Gaps        32-bit floats only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor, distributed

from tightrope.core import Bytes
from tightrope_ranks.compress import quantise

Group: TypeAlias = distributed.ProcessGroup
TOP_PART: Final = 0.01
"""Of the numbers of a gradient that ``topk`` sends, at least one."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it goes through the queue.

    Attributes:
        wire: what this rank sends.
        gathered: room for what all ranks send; None where the network sums into ``wire``.
    """

    wire: Tensor
    gathered: Tensor | None


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to send gradients.

    Attributes:
        name: of it.
        kind: ``reduce``: summed in the network; ``gather``: by each rank.
        size: bytes of a gradient with so many numbers, encoded.
        encode: gradients, residuals, ids and the seed of the step to what is sent.
        decode: what arrived, and the gradients to write the mean into.
        feedback: whether it leaves residuals.
    """

    name: str
    kind: Literal["reduce", "gather"]
    size: Callable[[int], Bytes]
    encode: Callable[[Sequence[Tensor], Sequence[Tensor] | None, Sequence[int], int, int], Encoded]
    decode: Callable[[Encoded, Sequence[Tensor], int], None]
    feedback: bool = False

    def sent(self, count: int, ranks: int) -> Bytes:
        """Bytes that one of ``ranks`` ranks sends for a gradient with ``count`` numbers, rounded up."""
        size = self.size(count)
        return -(-2 * (ranks - 1) * size // ranks) if self.kind == "reduce" else (ranks - 1) * size


def _room(encoded: Tensor, ranks: int) -> Encoded:
    return Encoded(encoded, torch.empty((ranks, encoded.numel()), dtype=encoded.dtype))


def _parts(wire: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = torch.split(wire, [one.numel() for one in tensors])
    return parts


def _plain(dtype: torch.dtype, name: str, size: Bytes) -> Codec:
    def encode(
        tensors: Sequence[Tensor],
        residuals: Sequence[Tensor] | None,
        ids: Sequence[int],
        seed: int,
        ranks: int,
    ) -> Encoded:
        wire = torch.empty(sum(one.numel() for one in tensors), dtype=dtype)
        for one, part in zip(tensors, _parts(wire, tensors), strict=True):
            if dtype == torch.float32:
                torch.div(one, ranks, out=part)
            else:
                part.copy_(one / ranks)  # divided first: sums of halves must not overflow
        return Encoded(wire, None)

    def decode(encoded: Encoded, tensors: Sequence[Tensor], ranks: int) -> None:
        for one, part in zip(tensors, _parts(encoded.wire, tensors), strict=True):
            one.copy_(part)

    return Codec(name, "reduce", lambda count: count * size, encode, decode)


def _quantised(bits: int, name: str) -> Codec:
    def encode(
        tensors: Sequence[Tensor],
        residuals: Sequence[Tensor] | None,
        ids: Sequence[int],
        seed: int,
        ranks: int,
    ) -> Encoded:
        counts = [one.numel() for one in tensors]
        wire = torch.empty(sum(quantise.encoded_bytes(count, bits) for count in counts), dtype=torch.uint8)
        rests = None if residuals is None else [one.data_ptr() for one in residuals]
        places = [one.data_ptr() for one in tensors]
        quantise.encode(bits, places, rests, counts, ids=ids, seed=seed, out=wire.data_ptr())
        return _room(wire, ranks)

    def decode(encoded: Encoded, tensors: Sequence[Tensor], ranks: int) -> None:
        assert encoded.gathered is not None
        places, counts = [one.data_ptr() for one in tensors], [one.numel() for one in tensors]
        stride, wire = encoded.wire.numel(), encoded.gathered.data_ptr()
        quantise.decode(bits, wire, stride, ranks, counts, 1 / ranks, places)

    return Codec(
        name, "gather", lambda count: quantise.encoded_bytes(count, bits), encode, decode, feedback=True
    )


def _num_top(count: int) -> int:
    return max(1, round(count * TOP_PART)) if count else 0


def _encode_top(
    tensors: Sequence[Tensor], residuals: Sequence[Tensor] | None, ids: Sequence[int], seed: int, ranks: int
) -> Encoded:
    parts: list[Tensor] = []
    for number, one in enumerate(tensors):
        value = one if residuals is None else one + residuals[number]
        places = value.abs().topk(_num_top(one.numel()), sorted=False).indices
        kept = value[places]
        parts += [places.to(torch.int32).view(torch.uint8), kept.contiguous().view(torch.uint8)]
        if residuals is not None and bool(torch.isfinite(kept).all()):
            residuals[number].copy_(value)
            residuals[number][places] = 0
    return _room(torch.cat(parts), ranks)


def _decode_top(encoded: Encoded, tensors: Sequence[Tensor], ranks: int) -> None:
    assert encoded.gathered is not None
    begin = 0
    for one in tensors:
        num = 4 * _num_top(one.numel())
        one.zero_()
        for rank in range(ranks):
            mine = encoded.gathered[rank, begin : begin + 2 * num].clone()
            places, values = mine[:num].view(torch.int32), mine[num:].view(torch.float32)
            one.index_add_(0, places, values, alpha=1 / ranks)
        begin += 2 * num


CODECS: Final[Mapping[str, Codec]] = {
    one.name: one
    for one in (
        _plain(torch.float32, "none", 4),
        _plain(torch.float16, "fp16", 2),
        _plain(torch.bfloat16, "bf16", 2),
        _quantised(1, "sign"),
        _quantised(2, "bits2"),
        _quantised(4, "bits4"),
        _quantised(8, "bits8"),
        Codec("topk", "gather", lambda count: 8 * _num_top(count), _encode_top, _decode_top, feedback=True),
    )
}
"""All codecs, by name."""
DEFAULT_CODECS: Final = ("none", "bf16")
"""Each number arrives within a part of 2^-8 or so, however large it is, in all of the training. Not so by
``fp16`` (numbers below 6e-8 vanish, those above 65,504 are infinite, which may first happen late) nor by the
codecs with a scale per block (small numbers drown next to large ones)."""
MOST_ERROR: Final = 0.01
"""Relative error above which a default codec is not chosen; see `calibrate.relative_errors`."""


def exchange(encoded: Encoded, group: Group | None) -> None:
    """Let a message through the network: the one collective of each message.

    Args:
        encoded: what this rank sends; receives the sum, or what all ranks sent.
        group: whose ranks take part.
    """
    if encoded.gathered is None:
        distributed.all_reduce(encoded.wire, group=group)
    else:
        distributed.all_gather(list(encoded.gathered.unbind()), encoded.wire, group=group)
