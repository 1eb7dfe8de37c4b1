"""What a thread waits for a processor is counted, and said where times were measured meanwhile."""

import os
import subprocess
import sys
import time

import pytest

from tightrope.price.waiting import Waiting, read_times


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.skipif(read_times() == (0, 0), reason="the system does not say how long threads wait")
def test_a_thread_that_shares_its_processor_waits_for_it() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})  # a child inherits it
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            with Waiting() as waiting:
                work(0.3)
        finally:
            other.kill()
            other.wait()
    finally:
        os.sched_setaffinity(0, allowed)
    assert 0.2 < waiting.share < 1


def test_what_takes_no_time_says_nothing() -> None:
    with Waiting() as waiting:
        pass
    assert waiting.share == 0
