"""Letters that are wrong: mutated, forged, cut off, with descriptors that are no memory. No node ends."""

import fcntl
import os
import random
import socket
import uuid
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import fabric_functions
import msgspec
import pytest
import torch

from tightrope.core import RankError, TightropeError
from tightrope_ranks.fabric import LocalFabric, SharedFabric
from tightrope_ranks.fabric.letters import (
    HandleItem,
    InlineItem,
    Letter,
    LetterKind,
    NestItem,
    PlaceItem,
    PlainItem,
    encode,
)
from tightrope_ranks.fabric.node import FabricNode

Pair = tuple[FabricNode, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A node 0, and the bare socket of a node 1 that sends what it likes."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node = FabricNode(0, {1: mine}, timeout=5.0)
    yield node, theirs
    node.close()
    theirs.close()


def place(own: bool, arena: int, block: int, at: int, *shape: int, dtype: str = "float32") -> PlaceItem:
    return PlaceItem(own, arena, block, at, dtype, shape)


WRONG = {
    "no arena": place(False, 0, 0, 0, 4),
    "negative arena": place(True, -1, 0, 0, 4),
    "block that was not lent": place(True, 0, 0, 0, 4),
    "negative block": place(True, 0, -64, -64, 4),
    "before its block": place(False, 7, 64, 0, 4),
    "beyond the arena": place(False, 7, 0, 0, 2**40),
    "negative length": place(False, 7, 0, 0, -4, -4),
    "lengths that overflow": place(False, 7, 0, 0, 2**62, 2**62, 0),
    "not aligned": place(False, 7, 0, 1, 4),
    "no such dtype": place(False, 7, 0, 0, 4, dtype="float3"),
    "few bytes": InlineItem(b"123", "float32", (1,)),
    "no bytes for a shape": InlineItem(b"", "float32", (2**40,)),
    "unknown node": HandleItem(99, 1),
    "no such mark": NestItem([msgspec.msgpack.Ext(1, b"\x00\x00\x00\x05")], ()),
    "wrong inside": NestItem([msgspec.msgpack.Ext(1, b"\x00")], (place(False, 0, 0, 0, 4),)),
}


def received(pair: Pair, data: bytes, descriptors: Sequence[int] = ()) -> Letter | None:
    """Send bytes to the node, let it read, and return its answer."""
    node, link = pair
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    link.sendmsg([data], rights)
    node.pump(lambda: False, 0.05)
    try:
        return msgspec.msgpack.decode(link.recv(2**20, socket.MSG_DONTWAIT), type=Letter)
    except BlockingIOError:
        return None


@pytest.mark.parametrize("item", WRONG.values(), ids=WRONG)
def test_a_call_with_a_value_that_cannot_be_is_answered_with_an_error(pair: Pair, item: Any) -> None:
    node, _ = pair
    memory = os.memfd_create("one", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 4096)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    good = place(False, 7, 0, 0, 4)
    letter = Letter(LetterKind.CALL, 5, "tightrope.echo", (good,), True, arenas=((7, 4096),))
    answer = received(pair, encode(letter), [memory])
    assert answer is not None
    assert (answer.kind, answer.number) == (LetterKind.RESULT, 5)
    before = len(os.listdir("/proc/self/fd"))
    answer = received(pair, encode(Letter(LetterKind.CALL, 6, "tightrope.echo", (good, item))))
    assert answer is not None
    assert (answer.kind, answer.number) == (LetterKind.ERROR, 6)
    assert "cannot" in answer.name
    assert answer.freed == ((7, 0),)  # the block of the other argument
    reply = node.call_async(1, "tightrope.ping")
    assert received(pair, encode(Letter(LetterKind.RESULT, 1, items=(item,), single=True))) is not None
    with pytest.raises(RankError, match="the answer of node 1"):
        reply.wait()
    assert node.peers[1].refused == 2
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(memory)


def test_descriptors_that_are_no_memory_are_closed_and_refused(pair: Pair) -> None:
    node, _ = pair
    small, (reader, writer) = os.memfd_create("small"), os.pipe()
    os.ftruncate(small, 4096)  # it may be cut while it is read
    before = len(os.listdir("/proc/self/fd"))
    call = ((0, 4096),)
    for arenas, descriptors in (
        (call, [small]), (call, [reader]), (call, []), ((), [small]), (((0, 2**40),), [small]),
        (((0, 0),), [small]), (((-1, 4096),), [small]), (((2**40, 4096),), [small]),
        (call, [small] * 2), (tuple((one, 4096) for one in range(200)), [small] * 200),
    ):  # fmt: skip
        letter = Letter(LetterKind.CALL, 3, "tightrope.ping", arenas=arenas)
        answer = received(pair, encode(letter), descriptors)
        assert answer is not None
        assert (answer.kind, answer.number) == (LetterKind.ERROR, 3)
        assert len(os.listdir("/proc/self/fd")) == before
    for one in (small, reader, writer):
        os.close(one)
    assert node.peers[1].refused == 10


def test_orders_that_a_peer_may_not_give_are_counted(pair: Pair) -> None:
    node, link = pair
    counts = [(99, 1, 1), (1, 99, 1), (1, 1), ("a", 0, 1), (1, [0], 1)]
    letters = [Letter(LetterKind.COUNT, items=tuple(PlainItem(one) for one in values)) for values in counts]
    letters += [Letter(LetterKind.FREED, freed=(one,)) for one in ((0, 0), (-1, 0), (5, 64))]
    letters += [Letter(LetterKind.STOP), Letter(LetterKind.RESULT, 77), Letter(LetterKind.ERROR, 78)]
    for letter in letters:
        assert received(pair, encode(letter)) is None
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    large = b"x" * min(2**20 + 8000, link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 1024)
    for data in (b"", b"\x00", large, b"\xc1", encode(Letter(LetterKind.CALL, 1))[:-1]):
        assert received(pair, data) is None
    assert node.peers[1].refused == len(letters) - 1 + 5  # a count of a tensor that is gone is no fault
    assert node.peers[1].alive
    assert not node.stopped
    assert received(pair, encode(Letter(LetterKind.CALL, 9, "tightrope.ping"))) is not None


def mutated(draw: random.Random) -> bytes:
    """A letter of which bytes or whole fields are changed."""
    items = (
        InlineItem(b"1234", "float32", (1,)), place(draw.random() < 0.5, 0, 64, 64, 40), HandleItem(1, 3),
        PlainItem({"a": [1, "b"]}), NestItem([msgspec.msgpack.Ext(1, b"\x00")], (HandleItem(0, 2),)),
    )  # fmt: skip
    kind = draw.choice([LetterKind.CALL, LetterKind.KEEP, LetterKind.RESULT, LetterKind.COUNT])
    chosen = tuple(draw.choices(items, k=draw.randrange(4)))
    data = encode(Letter(kind, draw.randrange(2**40), "test.add", chosen, freed=((0, 64),)))
    if draw.random() < 0.5:
        fields = msgspec.msgpack.decode(data)
        where: Any = fields
        while isinstance(where[at := draw.randrange(len(where))], list) and where[at] and draw.random() < 0.8:
            where = where[at]
        where[at] = draw.choice([-1, 2**63, 2**31, -(2**62), None, "t", b"", [], {}, 1.5, True, [[0]], "v"])
        return msgspec.msgpack.encode(fields)
    raw = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(raw))
        match draw.randrange(4):
            case 0:
                raw[at] = draw.randrange(256)
            case 1:
                raw[at] ^= 1 << draw.randrange(8)
            case 2:
                raw[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 3:
                raw = raw[: at + 1] if draw.random() < 0.3 else raw[:at] + raw[at + 1 :] or raw
    return bytes(raw)


def stops(data: bytes) -> bool:
    """Whether a letter orders the node to stop, which node 0 may."""
    try:
        return msgspec.msgpack.decode(data, type=Letter).kind == LetterKind.STOP
    except Exception:
        return False


@pytest.mark.few(1)
@pytest.mark.parametrize("num", [300, 10_000])
def test_mutated_letters_end_no_node(num: int) -> None:
    draw, one = random.Random(num), torch.randn(5000)
    with SharedFabric(2, modules=["fabric_functions"]) as fabric:
        assert torch.equal(fabric.call(1, "test.add", one, 1.0), one + 1.0)
        folder = f"/proc/{fabric.processes[0].pid}/fd"
        before, memory = len(os.listdir(folder)), os.memfd_create("small")
        os.ftruncate(memory, 64)
        for number in range(num):
            data = mutated(draw)
            if stops(data):
                continue
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [memory] * draw.randrange(3)))]
            fabric.node.peers[1].link.sendmsg([data], rights if number % 5 == 0 else [])
            if number % 100 == 99:
                assert torch.equal(fabric.call(1, "test.add", one, 1.0), one + 1.0)
        assert fabric.processes[0].poll() is None
        assert fabric.call(1, "test.refused")[0] > num / 4
        assert len(os.listdir(folder)) == before
        os.close(memory)


def test_a_block_that_was_not_lent_leaves_the_rest_of_its_letter(fabric: SharedFabric) -> None:
    one = torch.randn(5000)
    assert torch.equal(fabric.call(1, "test.add", one, 1.0), one + 1.0)
    before = fabric.call(1, "test.refused")[0]
    fabric.node.peers[1].freed[0].append(1 << 20)
    assert torch.equal(fabric.call(1, "test.add", one, 2.0), one + 2.0)
    assert fabric.call(1, "test.refused")[0] == before + 1


SAID = {
    "lone surrogate": r"'test.fault' raised TightropeError: .*cannot be sent",
    "surrogate inside": r"'test.fault' raised TightropeError: .*cannot be sent",
    "surrogate key": r"'test.fault' raised TightropeError: .*cannot be sent",
    "surrogate in an error": r"'test.fault' raised ValueError: no \\ud800",
    "error without text": r"'test.fault' raised SilentError: it has no text",
    "exit": r"'test.fault' raised SystemExit: 3",
    "generator exit": r"'test.fault' raised GeneratorExit",
    "set": r"'test.fault' raised TightropeError: .*\(of type set\)",
    "nested tensor": r"'test.fault' raised TightropeError: a nested tensor .*Give dense ones",
}


def test_whatever_a_function_does_its_node_lives_and_its_caller_gets_an_error(fabric: SharedFabric) -> None:
    assert SAID.keys() == fabric_functions.FAULTS.keys()
    before = [one.pid for one in fabric.processes]
    for kind, said in SAID.items():
        with pytest.raises(RankError, match=said):
            fabric.call(1, "test.fault", kind)
        assert fabric.call(1, "tightrope.ping") == before[0]
    with pytest.raises(RankError, match=r"raised SystemExit: 3"):
        LocalFabric(2).call(1, "test.fault", "exit")


REFUSED = {
    "text": "a\ud800",
    "text inside": [torch.ones(2000), {"a": ["\ud800"]}],
    "key": {"\udcff": 1},
    "nested tensor": fabric_functions.nested_tensor(),
    "own mark": [torch.ones(2), msgspec.msgpack.Ext(1, b"\x00\x00\x00\x00")],
    "own mark alone": msgspec.msgpack.Ext(1, b"\x00\x00\x00\x00"),
    "raw bytes": [msgspec.Raw(b"\x01")],
    "tensor as a key": {torch.ones(2): 1},
    "set": {1, 2},
    "set as a key": {frozenset((1,)): 2},
    "time": {"when": [datetime(2020, 1, 1)]},
    "decimal": (1, Decimal("1.5")),
    "identifier": [uuid.UUID(int=1)],
    "kind": [LetterKind.CALL],
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_would_not_arrive_as_it_is_is_refused_at_the_call(fabric: SharedFabric, given: Any) -> None:
    for arguments in ((given,), (torch.ones(2000), given)):
        with pytest.raises(TightropeError, match=r"cannot be sent") as told:
            fabric.call(1, "tightrope.echo", *arguments)
        assert not isinstance(told.value, RankError)
    kept = {"a": [1, -2.5, None, True, "\u00e9", b"\xff"], 3: {(1, "b"): 2**63}}
    assert fabric.call(1, "tightrope.echo", kept) == kept
    with pytest.raises(TightropeError, match=r"cannot be sent"):
        fabric.call(1, "\ud800")
