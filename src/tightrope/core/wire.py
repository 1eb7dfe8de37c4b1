"""Instructions that concern more than one rank.

A transfer is started by one instruction on each side and runs beside what is computed; `Sync` on the buffer
waits for its end. Messages from one rank to another arrive in the order in which they were sent, so the
receiver names them in that order.

    rank 0   Run(0F3)  Send(out, to 1, "0F3") ........ Sync(out)  Release(out)
    rank 1   Alloc(in)  Recv(in, from 0, "0F3") .. Sync(in)  Run(1F3)
"""

from typing import Literal

import msgspec

CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce"]


class Send(msgspec.Struct, frozen=True, tag="send", array_like=True):
    """Start to send a buffer; it may not change nor end before a `Sync` on it.

    Attributes:
        buffer: what is sent.
        peer: rank that receives it.
        what: the value, such as ``0F3``: what stage 0 makes of micro-batch 3.
        link: position in `Machine.links`.
        stream: that it runs on, first in, first out; 0 computes.
    """

    buffer: int
    peer: int
    what: str
    link: int = 0
    stream: int = 1


class Recv(msgspec.Struct, frozen=True, tag="recv", array_like=True):
    """Start to receive into a buffer; it holds nothing before a `Sync` on it.

    Attributes:
        buffer: where it goes.
        peer: rank that sends it.
        what: the value, such as ``0F3``.
        link: position in `Machine.links`.
        stream: that it runs on, first in, first out; 0 computes.
    """

    buffer: int
    peer: int
    what: str
    link: int = 0
    stream: int = 1


class Collective(msgspec.Struct, frozen=True, tag="collective", array_like=True):
    """Start a collective; the target holds nothing new before a `Sync` on it.

    Attributes:
        kind: what is done.
        source: buffer that goes in.
        target: buffer that comes out; may be the source.
        group: position in `Machine.groups`; -1 = the replicas of this rank.
        what: the value, such as ``2UNSHARD``.
        link: position in `Machine.links`.
        stream: that it runs on, first in, first out; 0 computes.
        ns: forecast of its time.
    """

    kind: CollectiveKind
    source: int
    target: int
    group: int
    what: str
    link: int = 0
    stream: int = 2
    ns: int = 0


class Encode(msgspec.Struct, frozen=True, tag="encode", array_like=True):
    """Write a buffer into another one in fewer bytes, as ``codec`` does."""

    source: int
    target: int
    codec: str
    stream: int = 0
    ns: int = 0


class Decode(msgspec.Struct, frozen=True, tag="decode", array_like=True):
    """Undo `Encode`."""

    source: int
    target: int
    codec: str
    stream: int = 0
    ns: int = 0
