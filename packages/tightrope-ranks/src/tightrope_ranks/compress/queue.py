"""One ordered queue of messages per rank: what is put in first goes through the network first.

Where collectives are started from several threads, or by what ran when another collective ended, two ranks
may start them in different orders, and each waits for the other. Here one thread starts each and waits for
its end.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tightrope.core import Bytes, RankError


@dataclass(frozen=True, slots=True)
class Link:
    """What a rank is connected by, where the queue has to hold it to that itself.

    Attributes:
        rate: bytes per second; None = whatever the network does.
        latency: seconds in front of each message.
    """

    rate: float | None = None
    latency: float = 0.0


@dataclass(slots=True)
class Ticket:
    """A message on its way.

    Attributes:
        what: for messages of errors.
        start: when its turn came, on the clock of `time.perf_counter`.
        end: when it was through.
        error: what went wrong.
    """

    what: str
    start: float = 0.0
    end: float = 0.0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class MessageQueue:
    """A thread that runs collectives one by one, in the order in which they were put in.

    Args:
        link: slows messages down in user space; default: as fast as they go.
        timeout: seconds that one message may take before the ranks are taken to be lost.
    """

    def __init__(self, *, link: Link | None = None, timeout: float = 60.0) -> None:
        self.link, self.timeout = link or Link(), timeout
        self._waiting: deque[tuple[Ticket, Callable[[], None], Bytes]] = deque()
        self._more = threading.Condition()
        self._failed: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tightrope-messages", daemon=True)
        self._thread.start()

    def put(self, send: Callable[[], None], what: str, sent: Bytes = 0) -> Ticket:
        """Put a message in.

        Args:
            send: its collective; returns when it is through.
            what: for messages of errors.
            sent: bytes of it, which a slowed link takes its time for.
        """
        ticket = Ticket(what)
        with self._more:
            if self._failed is not None or self._closed:
                raise RankError(f"{what} cannot be sent: {self._failed or 'the queue is closed'}.")
            self._waiting.append((ticket, send, sent))
            self._more.notify()
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Wait until a message is through.

        Raises:
            RankError: it failed, or took longer than the time-out: another rank ended, or is elsewhere.
        """
        if not ticket.done.wait(self.timeout):
            self._failed = TimeoutError(f"{ticket.what} took more than {self.timeout:g} s")
        error = ticket.error or (None if ticket.done.is_set() else self._failed)
        if error is not None:
            reason = str(error).strip().partition("\n")[0]
            raise RankError(
                f"{ticket.what} did not come through: {reason}. Another rank ended or left this step; end "
                "this process, and start all ranks again from the last checkpoint."
            ) from error

    def close(self) -> None:
        """End the thread when it has sent what is there; afterwards nothing can be put in."""
        with self._more:
            self._closed = True
            self._more.notify()
        if self._failed is None:
            self._thread.join(self.timeout)

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._waiting and not self._closed:
                    self._more.wait()
                if not self._waiting:
                    return
                ticket, send, sent = self._waiting.popleft()
            ticket.start = time.perf_counter()
            if self._failed is not None:
                ticket.error = self._failed
            else:
                try:
                    send()
                    self._hold(ticket.start, sent)
                except Exception as error:  # whatever a backend raises is told to who waits
                    ticket.error = self._failed = error
            ticket.end = time.perf_counter()
            ticket.done.set()

    def _hold(self, start: float, sent: Bytes) -> None:
        rate, latency = self.link.rate, self.link.latency
        least = latency + (sent / rate if rate else 0.0)
        if least:
            time.sleep(max(0.0, start + least - time.perf_counter()))
