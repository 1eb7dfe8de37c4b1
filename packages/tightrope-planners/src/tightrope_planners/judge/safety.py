"""Check ops on parallel streams, and the addresses that they use, by brute force.

Idea        The closure of "has ended before" as one set of ancestors per op; every pair of uses and
            every pair of storages that share an address is looked up in it. No clocks, no positions.
Guarantee   Passes exactly when, in every execution that streams and waits allow, no op uses a storage
            while another changes it, and no op writes to an address whose last tenant is still in use.
Complexity  O(N^2) bits and O(waits N) bit operations for N ops, then one look-up per pair: for graphs
            of up to 20,000 ops.

    stream 0   a---b------d      wait (y, d): the ancestors of d are a, b, x and y
    stream 1     x---y---/       nothing orders b and x: they may run at once
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from tightrope.core import Bytes, JudgeError, Offset, OpId, StorageId

_MAX_OPS: Final = 20_000

OpSet: TypeAlias = int
"""Bit v stands for op v."""


class Tenant(NamedTuple):
    """A storage as ops use it.

    Attributes:
        bytes: size.
        writer: op that allocates it, -1 = the caller, who also keeps it elsewhere.
        reads: ops that read it.
        mutates: ops that change it in place.
        resident: used after the last op.
    """

    bytes: Bytes
    writer: OpId = -1
    reads: tuple[OpId, ...] = ()
    mutates: tuple[OpId, ...] = ()
    resident: bool = False


def ancestors(streams: Sequence[int], waits: Sequence[tuple[OpId, OpId]]) -> list[OpSet]:
    """Compute, for every op, the ops that have ended in every execution when it starts.

    Args:
        streams: stream of each op, in issue order.
        waits: pairs (earlier op, later op).

    Raises:
        JudgeError: more than 20,000 ops, or a wait for an op that is not issued before.
    """
    if len(streams) > _MAX_OPS:
        raise JudgeError(f"streams: {len(streams)} ops; the closure is for graphs of up to {_MAX_OPS}.")
    direct: list[list[OpId]] = [[] for _ in streams]
    for earlier, later in waits:
        if not 0 <= earlier < later < len(streams):
            raise JudgeError(f"streams: wait ({earlier}, {later}) is not for an op issued before.")
        direct[later].append(earlier)
    ended: list[OpSet] = []
    latest: dict[int, OpId] = {}
    for op, stream in enumerate(streams):
        known: OpSet = 0
        for other in [latest[stream], *direct[op]] if stream in latest else direct[op]:
            known |= ended[other] | 1 << other
        ended.append(known)
        latest[stream] = op
    return ended


def check_uses(streams: Sequence[int], waits: Sequence[tuple[OpId, OpId]], tenants: Sequence[Tenant]) -> None:
    """Refuse two uses of a storage, one of them writing, that may run at once.

    Args:
        streams: stream of each op, in issue order.
        waits: pairs (earlier op, later op).
        tenants: the storages.

    Raises:
        JudgeError: names the storage and the ops, or what is malformed.
    """
    _check_uses(ancestors(streams, waits), tenants)


def check_sharing(
    streams: Sequence[int],
    waits: Sequence[tuple[OpId, OpId]],
    tenants: Sequence[Tenant],
    offsets: Sequence[Offset],
    *,
    arena: Bytes,
    alignment: Bytes = 1,
) -> None:
    """Refuse waits and offsets with which some execution reads what another op has overwritten.

    Args:
        streams: stream of each op, in issue order.
        waits: pairs (earlier op, later op).
        tenants: the storages.
        offsets: one per storage, -1 for those of the caller.
        arena: bytes reserved.
        alignment: every offset is a multiple of this.

    Raises:
        JudgeError: names the storages and the ops.
    """
    ended = ancestors(streams, waits)
    _check_uses(ended, tenants)
    if len(offsets) != len(tenants):
        raise JudgeError(f"offsets: {len(offsets)} given for {len(tenants)} storages.")
    for number, (tenant, offset) in enumerate(zip(tenants, offsets, strict=True)):
        inside = offset % alignment == 0 and 0 <= offset <= arena - tenant.bytes
        if not (offset == -1 if tenant.writer < 0 else inside):
            raise JudgeError(f"offsets: storage {number} ({tenant.bytes} bytes) must not lie at {offset}.")
    users = [_users(tenant) for tenant in tenants]
    for a, b in _sharing(tenants, offsets):
        if not (_over(tenants, users, ended, a, b) or _over(tenants, users, ended, b, a)):
            raise JudgeError(
                f"offsets: storages {a} and {b} share addresses at {max(offsets[a], offsets[b])}, and "
                "nothing orders their uses."
            )


def _check_uses(ended: list[OpSet], tenants: Sequence[Tenant]) -> None:
    for number, tenant in enumerate(tenants):
        uses = {**dict.fromkeys(tenant.reads, False), **dict.fromkeys(tenant.mutates, True)}
        known = -1 <= tenant.writer < len(ended) and all(tenant.writer < op < len(ended) for op in uses)
        if tenant.bytes < 0 or not known:
            raise JudgeError(f"streams: storage {number} is used before it is written, or by no op.")
        if tenant.writer >= 0:
            uses[tenant.writer] = True
        for later, changes in uses.items():
            for earlier in uses:
                if earlier < later and (changes or uses[earlier]) and not ended[later] >> earlier & 1:
                    raise JudgeError(
                        f"streams: ops {earlier} and {later} use storage {number}, one of them writes it, "
                        "and nothing orders them."
                    )


def _users(tenant: Tenant) -> OpSet:
    return sum(1 << op for op in {tenant.writer, *tenant.reads, *tenant.mutates} if op >= 0)


def _over(
    tenants: Sequence[Tenant], users: list[OpSet], ended: list[OpSet], first: StorageId, second: StorageId
) -> bool:
    """Tell whether all uses of ``first`` have ended when ``second`` is written."""
    return not tenants[first].resident and not users[first] & ~ended[tenants[second].writer]


def _sharing(tenants: Sequence[Tenant], offsets: Sequence[Offset]) -> Iterator[tuple[StorageId, StorageId]]:
    """List the pairs of storages that share an address."""
    live: list[StorageId] = []
    placed = (number for number, tenant in enumerate(tenants) if tenant.writer >= 0 and tenant.bytes)
    for number in sorted(placed, key=offsets.__getitem__):
        live = [other for other in live if offsets[other] + tenants[other].bytes > offsets[number]]
        yield from ((other, number) for other in live)
        live.append(number)
