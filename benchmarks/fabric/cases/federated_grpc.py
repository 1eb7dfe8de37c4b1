"""`federated` over gRPC."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor

from benchmarks.fabric.cases import nets

messages, services = grpc.protos_and_services("benchmarks/fabric/cases/federated.proto")
TIMEOUT = 30.0
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def packed(tensor: Tensor) -> Any:
    array = tensor.detach().contiguous().numpy()
    return messages.Array(shape=array.shape, dtype=str(array.dtype), data=array.tobytes())


def unpacked(array: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy())


class Client(services.ClientServicer):  # type: ignore[misc, name-defined]
    def __init__(self, end: Event) -> None:
        self.end = end

    def Train(self, request: Any, context: Any) -> Any:
        given = [unpacked(one) for one in request.weights]
        weights, count = nets.locally(request.client, request.turn, given)
        return messages.Trained(weights=[packed(one) for one in weights], count=count)

    def Stop(self, request: Any, context: Any) -> Any:
        self.end.set()
        return messages.Nothing()


def serve() -> None:
    end = Event()
    server = grpc.server(ThreadPoolExecutor(1), options=OPTIONS)
    services.add_ClientServicer_to_server(Client(end), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    end.wait()
    server.stop(1).wait()


@contextmanager
def started(num: int) -> Iterator[tuple[list[Any], list[Any]]]:
    command = [sys.executable, "-m", __spec__.name]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(num)]
    channels, stubs = [], []
    try:
        for process in processes:
            port = process.stdout.readline().strip()  # type: ignore[union-attr]
            channels.append(grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS))
            stubs.append(services.ClientStub(channels[-1]))
        yield processes, stubs
        for process, stub in zip(processes, stubs, strict=True):
            with suppress(grpc.RpcError):
                stub.Stop(messages.Nothing(), timeout=TIMEOUT)
            process.wait(TIMEOUT)
    finally:
        for channel in channels:
            channel.close()
        for process in processes:
            process.kill()
            process.wait()


def train(rounds: int, lost: int | None = None) -> list[Tensor]:
    weights = nets.weights_of(nets.classifier())
    with started(3) as (processes, stubs):
        for turn in range(rounds):
            if turn == lost:
                processes[2].kill()
            given = [packed(one) for one in weights]
            calls = [
                stub.Train.future(messages.Round(client=client, turn=turn, weights=given), timeout=TIMEOUT)
                for client, stub in enumerate(stubs, 1)
            ]
            found = []
            for call in calls:
                with suppress(grpc.RpcError):
                    came = call.result()
                    found.append(([unpacked(one) for one in came.weights], came.count))
            weights = nets.mean_of(found)
    return weights


if __name__ == "__main__":
    serve()
