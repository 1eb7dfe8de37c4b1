"""Calls of peers that wait to be served."""

import threading
from dataclasses import dataclass
from typing import Any

from tightrope_ranks.fabric.letters import Letter
from tightrope_ranks.fabric.peer import Peer


@dataclass(slots=True)
class IncomingCall:
    """A call of a peer that waits to be served."""

    peer: Peer
    letter: Letter
    given: list[Any]

    def take(self) -> list[Any]:
        """Return the arguments, which are nowhere else then."""
        given, self.given = self.given, []
        return given


class ServingDepth(threading.local):
    """How many calls a thread serves, one within the other."""

    depth = 0
