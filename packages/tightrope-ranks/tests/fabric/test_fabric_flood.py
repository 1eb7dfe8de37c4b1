"""Many calls at once: both ways, from several threads, with time-outs and an end."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fabric_functions
import pytest
import torch

from tightrope.core import RankError, TightropeError
from tightrope_ranks.fabric import LocalFabric, RemoteTensor, SharedFabric
from tightrope_ranks.fabric.node import FabricNode
from tightrope_ranks.fabric.reply import Reply

_ = fabric_functions


def drawn(seed: int, num: int, most: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Tensors of 4 B to so many bytes, evenly over the powers of two, and their numbers."""
    draw = random.Random(seed)
    for number in range(num):
        size = int(2 ** draw.uniform(0, (most // 4).bit_length() - 1))
        yield number, torch.full((size,), float(number % 1000))


def flood(fabric: SharedFabric | FabricNode, node: int, seed: int, num: int, most: int) -> int:
    """Begin all calls before the first is waited for; count the right results."""
    replies = [
        (number, len(one), fabric.call_async(node, "test.total", [one]))
        for number, one in drawn(seed, num, most)
    ]
    return sum(reply.wait(600) == size * float(number % 1000) for number, size, reply in replies)


@pytest.mark.few(1)
@pytest.mark.parametrize(("num", "most"), [(500, 2**20), (25_000, 2**20)])
def test_calls_in_flight_both_ways_and_from_two_threads_end(num: int, most: int) -> None:
    """As many from each of two threads here, and from the other node at the same time."""
    with SharedFabric(2, modules=["fabric_functions"], timeout=600, shared=2**26) as fabric:
        found = []
        threads = [
            threading.Thread(target=lambda seed=seed: found.append(flood(fabric, 1, seed, num, most)))
            for seed in (1, 2)
        ]
        for thread in threads:
            thread.start()
        theirs = fabric.call(1, "test.flood", 0, 3, 2 * num, most)
        for thread in threads:
            thread.join()
        assert (sorted(found), theirs) == ([num, num], 2 * num)


@pytest.mark.parametrize(("num", "size"), [(20, 500_000), (16_000, 1)])
def test_calls_that_fill_the_sockets_end(num: int, size: int) -> None:
    with SharedFabric(2) as fabric:
        value = b"y" * size if size > 1 else torch.ones(1)
        replies = [fabric.call_async(1, "tightrope.echo", value) for _ in range(num)]
        assert all(bool(reply.wait(300) == value) for reply in replies)


def test_two_threads_call_and_are_called(fabric: SharedFabric) -> None:
    wrong: list[object] = []

    def calls(node: int) -> None:
        for number in range(400):
            one = torch.full((1 + 997 * (number % 3),), float(number))
            found = fabric.call(node, "test.ask", 0, "test.add", one, 1.0)
            if not torch.equal(found, one + 1.0):
                wrong.append((node, number))

    threads = [threading.Thread(target=calls, args=(node,)) for node in (1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert not any(peer.replies for peer in fabric.node.peers.values())


def test_a_thread_keeps_its_time_out_while_another_waits(fabric: SharedFabric, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    other = threading.Thread(target=lambda: fabric.call(1, "test.wait_for", str(go_on), timeout=300))
    other.start()
    start = time.monotonic()
    with pytest.raises(RankError, match=r"took more than 0\.3 s"):
        fabric.call(1, "tightrope.ping", timeout=0.3)
    assert 0.29 <= time.monotonic() - start < 10
    go_on.touch()
    other.join(300)
    assert fabric.call(1, "tightrope.ping") > 0


def test_time_outs_and_close_hold_while_a_node_takes_nothing(tmp_path: Path) -> None:
    with SharedFabric(2, modules=["fabric_functions"], timeout=0.5) as fabric:
        fabric.call_async(1, "test.wait_for", str(tmp_path / "never"))
        start = time.monotonic()
        replies: list[Reply] = []
        with pytest.raises(RankError, match=r"'tightrope.echo' on node 1 took more than 0\.5 s"):
            replies.extend(fabric.call_async(1, "tightrope.echo", b"x" * 500_000) for _ in range(100))
        with pytest.raises(RankError, match="took more than"):
            replies[-1].wait(0.1)
        with pytest.raises(RankError, match="took more than"):
            fabric.call(1, "tightrope.echo", b"x" * 500_000, timeout=0.1)
        assert time.monotonic() - start < 30
        start = time.monotonic()
        fabric.close(0.5)
        assert time.monotonic() - start < 10  # 0.5 s, and what the machine needs to end a process
        with pytest.raises(RankError, match="did not end"):
            replies[-1].wait()
        with pytest.raises(RankError, match=r"ended|stopped"):
            fabric.call(1, "tightrope.ping")


def test_calls_within_calls_beyond_the_depth_of_a_thread_end(fabric: SharedFabric) -> None:
    replies = [fabric.call_async(1, "test.ask", 0, "test.add", torch.ones(1), 1.0) for _ in range(500)]
    assert all(float(reply.wait(300)[0]) == 2.0 for reply in replies)


def test_tensors_and_handles_inside_lists_and_dicts_arrive(fabric: SharedFabric) -> None:
    small, large = torch.arange(3.0), torch.randn(5000)
    for one in (fabric, LocalFabric(3)):
        handle = one.remote(1, "test.add", large, 1.0)
        given = {"a": [small, {"b": large, "n": 3}], "h": [handle], "none": None}
        found = one.call(1, "test.nested", given)
        assert torch.equal(found["double"][0], small * 2)
        assert torch.equal(found["double"][1]["same"], large)
        assert torch.equal(found["handle"], large + 1.0)
        assert found["n"] == 3
    kept = fabric.call(2, "tightrope.echo", {"h": fabric.remote(1, "test.add", small, 1.0)})
    assert isinstance(kept["h"], RemoteTensor)
    assert torch.equal(fabric.fetch(kept["h"]), small + 1.0)
    found = fabric.call(1, "test.zero_all", [large, large])
    assert not any(value.any() for value in found)
    assert large.any()
    with pytest.raises(TightropeError, match=r"cannot be sent"):
        fabric.call(1, "tightrope.echo", [large, object()])
    with pytest.raises(TightropeError, match=r"cannot be sent"):
        fabric.call(1, "tightrope.echo", [large, torch.empty(1, device="meta")])


def test_what_is_refused_leaves_no_memory() -> None:
    with SharedFabric(2, modules=["fabric_functions"]) as fabric:
        one = torch.randn(5000)
        for name, given in (("test.none_such", [one]), ("test.fail_with", [one]), ("test.unsendable", one)):
            with pytest.raises(RankError):
                fabric.call(1, name, {"one": given} if isinstance(given, list) else given)
        with pytest.raises(TightropeError):
            fabric.call(1, "tightrope.echo", [one, object()])
        fabric.node.tell()
        theirs = fabric.call(1, "test.kept")[1]
        fabric.node.pump(lambda: False, 0.1)
        assert [fabric.node.peers[1].own.live, theirs] == [0, 0]
