"""The queue keeps the order, tells who waits what went wrong, and holds messages to a rate."""

import threading
import time
from itertools import pairwise

import pytest

from tightrope.core import RankError
from tightrope_ranks.compress.queue import Link, MessageQueue


def test_messages_go_in_order_and_one_at_a_time() -> None:
    queue, seen = MessageQueue(), []
    tickets = [
        queue.put(lambda number=number: seen.append(number), f"message {number}") for number in range(50)
    ]  # type: ignore[misc]
    for ticket in tickets:
        queue.wait(ticket)
    queue.close()
    assert seen == list(range(50))
    assert all(one.end <= other.start for one, other in pairwise(tickets))


def test_what_goes_wrong_is_told_and_nothing_is_sent_after_it() -> None:
    queue = MessageQueue()

    def fail() -> None:
        raise RuntimeError("Connection closed by peer")

    lost, later = queue.put(fail, "message 0"), None
    with pytest.raises(
        RankError, match=r"message 0 did not come through: Connection closed.*start all ranks again"
    ):
        queue.wait(lost)
    with pytest.raises(RankError, match="cannot be sent"):
        later = queue.put(lambda: None, "message 1")
    assert later is None
    queue.close()


def test_a_message_that_never_ends_is_an_error_after_the_time_out() -> None:
    queue, end = MessageQueue(timeout=0.2), threading.Event()
    start = time.perf_counter()
    with pytest.raises(RankError, match=r"took more than 0\.2 s"):
        queue.wait(queue.put(lambda: (end.wait(5), None)[1], "message 0"))
    assert time.perf_counter() - start < 2
    end.set()


def test_a_slow_link_takes_its_time() -> None:
    queue = MessageQueue(link=Link(rate=1e6, latency=0.01))
    ticket = queue.put(lambda: None, "message 0", 50_000)
    queue.wait(ticket)
    queue.close()
    assert ticket.end - ticket.start >= 0.059
