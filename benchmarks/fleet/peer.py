"""Other programs, run by an interpreter of their own: one JSON request a line, one JSON answer a line.

``TIGHTROPE_PEERS`` names that interpreter; without it, the one that runs this is tried.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class PeerMissingError(Exception):
    """The peer is not installed there."""


class Peer:
    """A running peer."""

    def __init__(self, script: str, install: str) -> None:
        python = os.environ.get("TIGHTROPE_PEERS", sys.executable)
        self._install = install
        self._process = subprocess.Popen(
            [python, str(HERE / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        for line in self._process.stdout:  # libraries print to standard output too
            if line.startswith("{"):
                answer = json.loads(line)
                if "missing" in answer:
                    raise PeerMissingError(f"not installed ({answer['missing']}): {self._install}")
                return answer
        raise PeerMissingError(f"did not answer: {self._install}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


@contextmanager
def peer(script: str, install: str) -> Iterator[Peer]:
    """Run a peer for a while."""
    running = Peer(script, install)
    try:
        yield running
    finally:
        running.close()
