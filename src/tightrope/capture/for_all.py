"""Contexts that change the process, shared by the threads that are inside of them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


class ForAll:
    """A context for all threads that are inside of it: it is entered with the first and left with the last.

    Entered by each thread for itself, two that overlap would leave it in another order than they entered it,
    and what the second found would stay for ever.

    Args:
        make: makes the context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._lock, self._num_inside, self._open = make, threading.Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside."""
        with self._lock:
            if not self._num_inside:
                self._open.enter_context(self._make())
            self._num_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                if not self._num_inside:
                    self._open.close()
