"""Whose turn it is to read the sockets of a node.

Idea        Of the threads that wait, one polls the sockets; the others sleep until it has read something. Who
            runs a function that a peer called has given its turn back, so that other threads go on.
Guarantee   No two threads poll or read at once. A thread that sleeps wakes when what it waits for was read.
Complexity  Two short holds of a lock per letter.
"""

import os
import select
import threading
import time
from collections.abc import Collection

Ready = list[tuple[int, int]]
"""Descriptors and the events that they have."""


class SocketTurns:
    """The sockets of a node, polled by one thread at a time.

    Attributes:
        lock: of all that the threads of a node share; held briefly, never while a thread polls or a function
            runs.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._news = threading.Condition(self.lock)
        self._asleep = 0
        self._polling = False
        self._poll = select.poll()
        self._writing: set[int] = set()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.POLLIN)

    def add(self, file: int) -> None:
        """Poll a socket from now on."""
        self._poll.register(file, select.POLLIN)

    def remove(self, file: int) -> None:
        """Poll a socket no longer; by the thread that has the turn."""
        self._writing.discard(file)
        self._poll.unregister(file)

    def begin(self, wait: float | None) -> bool:
        """Take the turn; where another thread has it, sleep until it ends. Tell whether it was taken.

        The lock is held before and afterwards.

        Args:
            wait: seconds to sleep at most; None = any.
        """
        self._asleep += 1  # before the look, as `end` looks after it: one of both sees the other
        try:
            if not self._polling:
                self._polling = True
                return True
            self._news.wait(wait)
        finally:
            self._asleep -= 1
        return False

    def poll(self, writing: Collection[int], wait: float | None) -> Ready:
        """Wait for events, in one's turn.

        Args:
            writing: sockets that letters wait for: until they take more, too.
            wait: seconds at most; None = any.
        """
        if writing or self._writing:
            for file in self._writing.symmetric_difference(writing):
                self._poll.modify(file, select.POLLIN | (select.POLLOUT if file in writing else 0))
            self._writing = set(writing)
        ready = self._poll.poll(None if wait is None else wait * 1e3)
        for number, (file, _) in enumerate(ready):
            if file == self._bell:
                os.eventfd_read(self._bell)
                del ready[number]
                break
        return ready

    def end(self) -> None:
        """Give the turn back, and wake those that sleep."""
        self._polling = False
        if self._asleep:
            with self.lock:
                self._news.notify_all()

    def ring(self) -> None:
        """Make the thread that polls, and all that sleep, look again; with the lock held."""
        if self._polling:
            os.eventfd_write(self._bell, 1)
        if self._asleep:
            self._news.notify_all()

    def close(self, seconds: float = 1.0) -> None:
        """Close the bell when no thread polls, or the time is over; with the lock held."""
        deadline = time.monotonic() + seconds
        self.ring()
        while self._polling and (left := deadline - time.monotonic()) > 0:
            self.begin(left)
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1
