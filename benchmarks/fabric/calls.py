"""R1, R3, R5 and R6: how fast calls and pages are, and what is left after many calls and a killed node.

Layer: real processes on one host.
"""

import gc
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from statistics import median

import torch
from torch import Tensor

from benchmarks.fabric.peers import Echo, doubled, grpc_missing, grpc_pickle, returned, torch_rpc
from benchmarks.micro.rows import Row
from tightrope.core import RankError, format_bytes
from tightrope_ranks.fabric import RemoteMemory, SharedFabric

_SIZES = (4, 2**16, 2**20, 2**22, 2**24, 2**26)
_MODULES = ["benchmarks.fabric.functions"]


def _medians(echoes: Mapping[str, Echo], size: int, turns: int) -> dict[str, float]:
    """Median seconds of an echo of each, in five turns of some echoes each."""
    value = torch.randn(size // 4)
    seen: dict[str, list[float]] = {name: [] for name in echoes}
    for turn in range(5):
        for name, echo in echoes.items():
            for number in range(turns // 5 + 2):
                start = time.perf_counter()
                found = echo(value)
                if number >= 2:
                    seen[name].append(time.perf_counter() - start)
                if turn == number == 0:
                    _check(name, value, found)
                del found
    return {name: median(seconds) for name, seconds in seen.items()}


def _check(name: str, value: Tensor, found: Tensor) -> None:
    """Refuse another result than what was sent, and one whose change changes what was sent."""
    before = value.clone()
    if not torch.equal(found, before):
        raise RuntimeError(f"{name} returned something else")
    found.zero_()
    if not torch.equal(value, before):
        raise RuntimeError(f"{name} returned memory of what it was given")


def _prefer() -> None:
    """Run before what else the machine does, where root may; so do all processes that are started."""
    torch.set_num_threads(1)
    with suppress(PermissionError):
        os.nice(-10)


def r1(quick: bool = False) -> list[Row]:
    """An echo of tensors, in turns with torch RPC and with gRPC and pickle."""
    _prefer()
    rows = []
    with ExitStack() as stack:
        fabric = stack.enter_context(SharedFabric(2))
        echoes: dict[str, Echo] = {"fabric": lambda value: fabric.call(1, "tightrope.echo", value)}
        over_rpc = stack.enter_context(torch_rpc())
        echoes["torch RPC"] = over_rpc(returned)
        if not grpc_missing():
            echoes["gRPC"] = stack.enter_context(grpc_pickle())
        for size in _SIZES:
            turns = (200 if size < 2**20 else 40 if size < 2**24 else 10) // (4 if quick else 1)
            found = _medians(echoes, size, turns)
            ours, rpc, grpc = found["fabric"], found["torch RPC"], found.get("gRPC")
            held = (size >= 2**20 and rpc / ours >= 5) or (size < 2**20 and ours <= 100e-6) or size == 2**16
            claim = ">= 5x torch RPC" if size >= 2**20 else "<= 100 us" if size < 2**16 else "no bar"
            if size == 2**20:
                claim += ", >= 20x gRPC with pickle"
                held = held and grpc is not None and grpc / ours >= 20
            says = f"; {grpc / ours:.0f}x gRPC" if grpc else "; gRPC: peer not installed (pip install grpcio)"
            peers = ", ".join(
                f"{name} {seconds * 1e6:.0f} us" for name, seconds in found.items() if name != "fabric"
            )
            rows.append(
                Row(
                    f"R1, {format_bytes(size)}",
                    claim,
                    f"{ours * 1e6:.0f} us, {rpc / ours:.1f}x torch RPC{says}; real processes, medians of "
                    "turns",
                    held,
                    peers,
                )
            )
    return rows


def r6(quick: bool = False) -> list[Row]:
    """A function that computes a new tensor, with results let go of and kept, in turns with torch RPC."""
    _prefer()
    rows = []
    turns = 20 if quick else 60
    with SharedFabric(2, modules=_MODULES) as fabric, torch_rpc() as over_rpc:
        calls: dict[str, Echo] = {
            "fabric": lambda value: fabric.call(1, "bench.double", value),
            "torch RPC": over_rpc(doubled),
        }
        for size in (2**16, 2**20):
            for keeps in (False, True):
                found = _computed(calls, size, turns, keeps)
                ours, rpc = found["fabric"], found["torch RPC"]
                rows.append(
                    Row(
                        f"R6, {format_bytes(size)}, {'kept' if keeps else 'let go of'}",
                        ">= 1.5x torch RPC",
                        f"{ours * 1e6:.0f} us, {rpc / ours:.1f}x torch RPC; x * 2, real processes, medians",
                        rpc / ours >= 1.5,
                        f"torch RPC {rpc * 1e6:.0f} us",
                    )
                )
    return rows


def _computed(calls: Mapping[str, Echo], size: int, turns: int, keeps: bool) -> dict[str, float]:
    """Median seconds of a call of each, in three turns; all results of a turn are kept, or none."""
    value = torch.randn(size // 4)
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            kept = [call(value), call(value)]
            if not torch.equal(kept[0], value * 2):
                raise RuntimeError(f"{name} returned something else")
            for _ in range(turns):
                start = time.perf_counter()
                found = call(value)
                seen[name].append(time.perf_counter() - start)
                if keeps:
                    kept.append(found)
                del found
    return {name: median(seconds) for name, seconds in seen.items()}


def r3(quick: bool = False) -> list[Row]:
    """What is left after many calls and handles, how late time-outs are, when the end of a node is told."""
    num = 1000 if quick else 10_000
    _prefer()
    rows = []
    with SharedFabric(3, modules=_MODULES) as fabric:
        value = torch.randn(1000)
        for _ in range(num):
            handle = fabric.remote(1, "tightrope.echo", value)
            fabric.call(2, "bench.touch", handle)
            del handle
        gc.collect()
        fabric.node.tell()
        time.sleep(0.2)
        left = [fabric.call(node, "bench.left") for node in (1, 2)]
        own = sum(peer.own.live for peer in fabric.node.peers.values())
        leaked = sum(one[0] for one in left)
        rows.append(
            Row(
                "R3, calls",
                f"no handle left after {num} calls",
                f"{leaked} tensors kept, {sum(one[1] for one in left) + own} bytes shared; real processes",
                leaked == 0 and own == 0,
            )
        )
        late = _lateness(fabric)
        rows.append(
            Row(
                "R3, time-out",
                "kept within 10 %",
                f"at most {late:+.1%} late over 0.2, 0.5, 1 s",
                late <= 0.1,
            )
        )
        handle = fabric.remote(1, "tightrope.echo", value)
        fabric.call(2, "bench.hold", handle)
        del handle
        reply = fabric.call_async(2, "bench.sleep", 30.0)
        fabric.node.pump(lambda: False, 0.3)
        before = fabric.call(1, "bench.left")[0]
        start = time.perf_counter()
        fabric.processes[1].kill()
        told = _told(lambda: reply.wait(10))
        after = fabric.call(1, "bench.left")[0]
        rows.append(
            Row(
                "R3, killed node",
                "told in <= 2 s, its handles let go",
                f"told after {(told - start) * 1e3:.0f} ms; tensors kept for it: {before}, then {after}",
                told - start <= 2 and before == 1 and after == 0,
            )
        )
    return rows


def _lateness(fabric: SharedFabric) -> float:
    late = []
    for limit in (0.2, 0.5, 1.0):
        start = time.perf_counter()
        end = _told(lambda limit=limit: fabric.call(2, "bench.sleep", 2 * limit, timeout=limit))  # type: ignore[misc]
        late.append((end - start) / limit - 1)
        fabric.node.pump(lambda: False, 1.5 * limit)
    return max(late, key=abs)


def _told(run: Callable[[], object]) -> float:
    try:
        run()
    except RankError:
        return time.perf_counter()
    raise RuntimeError("the call ended")


def _paged(fabric: SharedFabric, memory: RemoteMemory, size: int, turns: int) -> dict[str, list[float]]:
    """Seconds to copy 64 MiB page by page, to page them out, and in, in turns with equal shares of time."""
    pages = [torch.randn(size // 4) for _ in range(2**26 // size)]
    outs = [torch.empty(size // 4) for _ in pages]
    keys: list[int] = []

    def back() -> None:
        for key, out in zip(keys, outs, strict=True):
            memory.page_in(key, out)

    runs: dict[str, Callable[[], object]] = {
        "copy": lambda: [out.copy_(page) for page, out in zip(pages, outs, strict=True)],
        "out": lambda: keys.extend([memory.page_out(page) for page in pages]),
        "in": back,
    }
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name, run in runs.items():
            fabric.node.pump(lambda: False, 0.02)
            start = time.perf_counter()
            run()
            if turn >= 3:
                seen[name].append(time.perf_counter() - start)
            if name == "out":
                for out in outs:
                    out.zero_()
        if not all(torch.equal(page, out) for page, out in zip(pages, outs, strict=True)):
            raise RuntimeError("another page came back")
        while keys:
            memory.drop(keys.pop())
    memory.trim()
    return seen


def r5(quick: bool = False) -> list[Row]:
    """Pages to the memory of another node and back, against one copy in this process."""
    _prefer()
    rows = []
    with SharedFabric(2) as fabric:
        for size in (2**20, 2**22, 2**24, 2**26):
            seen = _paged(fabric, RemoteMemory(fabric, 1, 2**26), size, 6 if quick else 24)
            rate = {name: 2**26 / median(seconds) for name, seconds in seen.items()}
            shares = rate["out"] / rate["copy"], rate["in"] / rate["copy"]
            rows.append(
                Row(
                    f"R5, {format_bytes(size)}",
                    ">= 70 % of copies in memory",
                    f"64 MiB in pages: out {rate['out'] / 1e9:.1f} GB/s ({shares[0]:.0%}), in "
                    f"{rate['in'] / 1e9:.1f} GB/s ({shares[1]:.0%}); real processes, one host",
                    min(shares) >= 0.7,
                    f"copy {rate['copy'] / 1e9:.1f} GB/s",
                )
            )
    return rows
