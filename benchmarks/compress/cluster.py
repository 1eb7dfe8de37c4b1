"""A slow network that is real: one network namespace per node, on a bridge, behind a token bucket each.

Needs root and the programs ``ip`` and ``tc``. Where there is none, `refusal` says why, and messages can be
held to a rate in user space (`tightrope_ranks.compress.Link`), which is said wherever it is used.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BURST: Final = "128kb"
_ROOT: Final = Path(__file__).parent.parent.parent


def refusal() -> str:
    """Say why there can be no namespaces here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no program {missing[0]} (Debian: apt install iproute2)"
    name = f"tight{os.getpid()}x"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", *_bucket(1e6))
    except subprocess.CalledProcessError as error:
        return f"this system refuses: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@contextmanager
def cluster(num: int, bits: float, *, both: bool = False) -> Iterator[list[str]]:
    """Make nodes that send at most so many bits per second each; yield their namespaces.

    Args:
        num: of nodes, at most 250.
        bits: per second.
        both: whether they receive no more, either.
    """
    own = f"tight{os.getpid()}"
    names = [f"{own}n{node}" for node in range(num)]
    try:
        _run("ip", "netns", "add", own)
        _in(own, "ip", "link", "add", "bridge", "type", "bridge")
        _in(own, "ip", "link", "set", "bridge", "up")
        for node, name in enumerate(names):
            _run("ip", "netns", "add", name)
            _in(
                own,
                "ip",
                "link",
                "add",
                f"port{node}",
                "type",
                "veth",
                "peer",
                "name",
                "link0",
                "netns",
                name,
            )
            _in(own, "ip", "link", "set", f"port{node}", "master", "bridge", "up")
            _in(name, "ip", "addr", "add", f"10.77.0.{node + 1}/24", "dev", "link0")
            for device in ("link0", "lo"):
                _in(name, "ip", "link", "set", device, "up")
            _in(name, "tc", "qdisc", "add", "dev", "link0", "root", *_bucket(bits))
            if both:
                _in(own, "tc", "qdisc", "add", "dev", f"port{node}", "root", *_bucket(bits))
        yield names
    finally:
        for name in (*names, own):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run_ranks(module: str, nodes: Sequence[str | None], arguments: Sequence[str], *, seconds: float) -> str:
    """Run a module once per node and return what rank 0 prints; the others' ends are waited for.

    Args:
        module: gets ``--rank``, ``--ranks``, ``--meet`` (a file) and the arguments.
        nodes: namespaces; None = this one.
        arguments: of each.
        seconds: after which all are killed.

    Raises:
        RuntimeError: one failed, or took too long; has what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        running = [_start(module, rank, nodes, folder, arguments) for rank in range(len(nodes))]
        try:
            deadline = time.monotonic() + seconds
            texts = [one.communicate(timeout=max(1.0, deadline - time.monotonic()))[0] for one in running]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{module} took more than {seconds:g} s") from error
        finally:
            for one in running:
                one.kill()
    for one, text in zip(running, texts, strict=True):
        if one.returncode != 0:
            raise RuntimeError(f"{module} ended with {one.returncode}:\n{text[-3000:]}")
    return texts[0]


def _start(
    module: str, rank: int, nodes: Sequence[str | None], folder: str, arguments: Sequence[str]
) -> "subprocess.Popen[str]":
    own = [sys.executable, "-m", module, f"--rank={rank}", f"--ranks={len(nodes)}", f"--meet={folder}/meet"]
    inside = ["ip", "netns", "exec", str(nodes[rank])] if nodes[rank] else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if nodes[rank]:
        environment["GLOO_SOCKET_IFNAME"] = "link0"
    return subprocess.Popen(
        [*inside, *own, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=_ROOT,
        env=environment,
    )  # fmt: skip


def _bucket(bits: float) -> list[str]:
    return ["tbf", "rate", f"{bits:.0f}bit", "burst", _BURST, "latency", "400ms"]


def _in(name: str, *command: str) -> None:
    _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
