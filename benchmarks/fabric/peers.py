"""The same echo in torch RPC and in gRPC with pickle, each with a process of its own at the other end."""

import importlib.util
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Echo = Callable[[Tensor], Tensor]
_ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def grpc_missing() -> bool:
    """Whether gRPC is not installed (``pip install grpcio`` into an environment of its own)."""
    return importlib.util.find_spec("grpc") is None


@contextmanager
def served(kind: str, port: int) -> Iterator[None]:
    """Run the other end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.fabric.peers", kind, str(port)],
        cwd=_ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def returned(value: Tensor) -> Tensor:
    """Return what came: what torch RPC calls."""
    return value


def doubled(value: Tensor) -> Tensor:
    """Return a new tensor: what a function that computes does."""
    return value * 2


@contextmanager
def torch_rpc() -> Iterator[Callable[[Echo], Echo]]:
    """Yield what calls a function over torch RPC as it comes."""
    from torch.distributed import rpc

    port = free_port()
    with served("rpc", port):
        _join_rpc(port, 0)
        yield lambda function: lambda value: rpc.rpc_sync("node1", function, (value,))
        rpc.shutdown()


def _join_rpc(port: int, rank: int) -> None:
    from torch.distributed import rpc

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rpc.init_rpc(f"node{rank}", rank=rank, world_size=2)  # type: ignore[no-untyped-call]


@contextmanager
def grpc_pickle() -> Iterator[Echo]:
    """Yield an echo over gRPC, with tensors pickled both ways."""
    import grpc

    port = free_port()
    with served("grpc", port):
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        grpc.channel_ready_future(channel).result(30)
        call = channel.unary_unary("/tightrope/echo")
        yield lambda value: pickle.loads(call(pickle.dumps(value, protocol=5)))
        channel.unary_unary("/tightrope/stop")(b"")
        channel.close()


def _serve_grpc(port: int) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    import grpc

    end = Event()

    def echo(data: bytes, _: Any) -> bytes:
        return pickle.dumps(pickle.loads(data), protocol=5)

    def stop(data: bytes, _: Any) -> bytes:
        end.set()
        return data

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(1), options=options)
    names = {
        "echo": grpc.unary_unary_rpc_method_handler(echo),
        "stop": grpc.unary_unary_rpc_method_handler(stop),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tightrope", names),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    end.wait(600)
    time.sleep(0.2)
    server.stop(0)


def main(arguments: Sequence[str]) -> None:
    """Be the other end."""
    torch.set_num_threads(1)
    kind, port = arguments
    if kind == "rpc":
        from torch.distributed import rpc

        _join_rpc(int(port), 1)
        rpc.shutdown()
    else:
        _serve_grpc(int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
